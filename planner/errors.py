"""The error of what can't be planned."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan asks for what can't be; the text says what would be right."""
