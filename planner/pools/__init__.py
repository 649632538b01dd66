"""Searches for the cheapest pool of devices that keeps a promise."""
