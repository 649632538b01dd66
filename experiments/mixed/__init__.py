"""A mixed cluster under half its load, from which a worker is killed: ``make bench-mixed``."""
