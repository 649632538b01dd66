"""The source of what the web server shows: a view that a controller's stream or a recorded log keeps up to
date."""

from __future__ import annotations

from typing import Protocol

import msgspec

from mainspring.console.payloads import Head, Overview
from mainspring.console.view.view import View
from mainspring.messages.operating import OperatorCommand


class Replay(msgspec.Struct, frozen=True):
    """The position in a recorded run, and its speed."""

    first_ns: int
    last_ns: int
    at_ns: int
    speed: float
    """Seconds of the run in a second."""
    playing: bool
    reached_ns: int
    """Instant up to which the run was read since it was opened; what is behind that takes a while to be
    shown."""


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the position or speed in a recorded run; what is None stays as it is."""

    at_ns: int | None = None
    """Instant on the run's clock; one outside the run means its nearest end."""
    speed: float | None = None
    playing: bool | None = None


class Granted(msgspec.Struct, frozen=True):
    """The outcome of an operator's command."""

    done: bool
    detail: str
    """Description of what was begun, or why it was not and what would be right."""


class Unanswered(Exception):
    """The controller can't be asked, or does not answer; the text says why."""

    def __init__(self, text: str, *, at_once: bool) -> None:
        super().__init__(text)
        self.at_once = at_once
        """True if nothing was asked; else the command may have been granted, or may be yet."""


class Source(Protocol):
    """A `View` that something keeps up to date."""

    @property
    def view(self) -> View:
        """Return the view at the present moment."""

    @property
    def epoch(self) -> int:
        """Rises whenever what is shown does not follow from what was shown before."""

    async def follow(self) -> None:
        """Keep it up to date, for ever."""

    def close(self) -> None:
        """Leave whatever it follows."""

    def head(self) -> Head:
        """Return what a picture of this moment is of."""

    def replay(self) -> Replay | None:
        """Return the position in a recorded run; None for a live one."""

    def overview(self) -> Overview | None:
        """Return what became of a recorded run's requests; None for a live one."""

    def seek(self, to: Seek) -> None:
        """Move to another position in a recorded run. Raises ValueError if that is impossible."""

    async def operate(self, command: OperatorCommand, who: str) -> Granted:
        """Ask the controller for a change. Raises `Unanswered`."""
