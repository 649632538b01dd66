"""Ribbon's figures (SC '21) from its artifact's measurements, and the planner held against its tables."""
