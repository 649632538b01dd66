"""A package, so that its cluster and its browser end with its last test."""
