"""Durations among the options of a verb; what is wrong with one is wrong usage (exit code 2)."""

from __future__ import annotations

import typer

from mainspring.client.durations import BadDuration, parse_duration_ns


def duration_ns(text: str, option: str, *, least_ns: int = 1) -> int:
    """Return what ``text`` means; raise BadParameter if it is not a duration, or below ``least_ns``."""
    nanoseconds = _parse(text, option)
    if nanoseconds is None or nanoseconds < least_ns:
        above = "above 0" if least_ns else "from 0 up"
        raise typer.BadParameter(
            f"{text} is not a time {above}; write it like 5s or 500ms", param_hint=option
        )
    return nanoseconds


def duration_or_none_ns(text: str, option: str) -> int | None:
    """Return what ``text`` means, None for ``none``; raise BadParameter if it is neither or not above 0."""
    nanoseconds = _parse(text, option)
    if nanoseconds is not None and nanoseconds <= 0:
        raise typer.BadParameter(
            f"{text} is not a time above 0; write it like 100ms, or none", param_hint=option
        )
    return nanoseconds


def _parse(text: str, option: str) -> int | None:
    try:
        return parse_duration_ns(text)
    except BadDuration as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
