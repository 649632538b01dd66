"""Versions of models as text, which is how clients say them. Pure."""

from __future__ import annotations

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.messages.codes import Reason


def version_of(text: str) -> int | None:
    """Return a version by its text; None for the default, which is empty text. Raises `Unfit`."""
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0:
        return int(text)
    raise Unfit(
        Reason.BAD_INPUT, f"the model's version is {text[:40]!r}; it is a whole number from 1 on, or empty"
    )
