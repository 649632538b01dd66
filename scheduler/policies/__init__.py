"""Scheduling policies: one file each, one line in the registry."""
