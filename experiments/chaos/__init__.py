"""Faults on a running cluster, by a seed, and what its clients notice: ``make chaos``."""
