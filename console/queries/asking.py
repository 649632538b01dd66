"""What is wrong with a query; the text is for who asked."""

from __future__ import annotations


class BadQuery(ValueError):
    """A parameter is not what the query takes; the text says what would be right."""


class Unknown(LookupError):
    """There is no such worker, model or request, or nothing is remembered of it any more."""

    def __str__(self) -> str:
        """Return the text as it is, without `LookupError`'s quotes."""
        return str(self.args[0]) if self.args else ""
