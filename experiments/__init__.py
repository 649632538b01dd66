"""Experiments and benchmarks with the whole system: the demonstration, and the cost of the serving path."""
