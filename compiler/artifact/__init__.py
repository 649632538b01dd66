"""A compiled model as it lies in a store: what a worker reads (design: the artifact)."""
