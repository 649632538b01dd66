"""Reports to operators on lost workers and gateways that are not back: in the log, and by launchers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mainspring.controller.sessions import Session

_LOGGER = logging.getLogger(__name__)
MOST_REMEMBERED: Final = 4096
"""Peers that are gone; of those beyond, the first are forgotten."""


class Absences:
    """Tells of each peer that is lost, and of its return, once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """``tell`` is given a line for a person."""
        self._tell = tell
        self._since_ns: dict[tuple[str, str], int] = {}

    def lost(self, now_ns: int, session: Session, why: str) -> None:
        """A session has ended, and nobody wanted that."""
        name = (session.kind, session.name)
        if name not in self._since_ns and len(self._since_ns) >= MOST_REMEMBERED:
            del self._since_ns[next(iter(self._since_ns))]
        self._since_ns.setdefault(name, now_ns)
        self._say(f"{session.kind} {session.name} is lost: {why}")

    def here(self, now_ns: int, session: Session) -> None:
        """A peer has joined; nothing is said unless it was lost."""
        since_ns = self._since_ns.pop((session.kind, session.name), None)
        if since_ns is not None:
            self._say(f"{session.kind} {session.name} is back after {(now_ns - since_ns) / 1e9:.2g} s")

    def _say(self, text: str) -> None:
        _LOGGER.warning("%s", text)
        self._tell(text)
