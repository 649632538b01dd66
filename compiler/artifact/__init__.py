"""A compiled model in a store: what a worker reads."""
