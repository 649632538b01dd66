"""Measures models on one device, without a cluster around it."""
