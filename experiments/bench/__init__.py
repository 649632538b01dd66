"""Measurements of this machine's serving path against its own limits; ``make bench`` runs them all."""
