"""Faults that are planted to see whether towns find them."""
