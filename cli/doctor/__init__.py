"""A check of what this machine offers a cluster."""
