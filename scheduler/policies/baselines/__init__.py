"""Policies of other systems, to compare with."""
