"""Errors of a query, in a text for the one who sent it."""

from __future__ import annotations


class BadQuery(ValueError):
    """A parameter is not what the query takes; the text says what would be right."""


class Unknown(LookupError):
    """The worker, model or request that a query names is not there, or not remembered any more."""

    def __str__(self) -> str:
        """Return the text as it is, without `LookupError`'s quotes."""
        return str(self.args[0]) if self.args else ""
