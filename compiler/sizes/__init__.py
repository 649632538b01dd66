"""Open dimensions: which there are, their sizes, what outputs make of them, samples to try."""
