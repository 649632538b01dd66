"""Shows made for tests: what they show is told by the test, and how often they were made is counted."""

from __future__ import annotations

from time import thread_time_ns
from typing import Any

import msgspec

from mainspring.console.payloads import Schedule
from mainspring.console.queries.asking import Unknown
from mainspring.console.view.view import View
from mainspring.console.web.shows import Show


class Numbered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a counting show."""

    of: str = "all"


class Counting:
    """A show that says what it was told to."""

    def __init__(self) -> None:
        self.value: Any = 0
        self.calls = 0
        self.afters: list[int | None] = []
        self.cost_ns = 0
        self.missing = ""
        self.fails = False
        self.show = Show(Numbered, self._make)

    def _make(self, view: View, params: Numbered, after: int | None) -> Any:
        self.calls += 1
        self.afters.append(after)
        if self.missing:
            raise Unknown(self.missing)
        if self.fails:
            raise KeyError(params.of)
        until_ns = thread_time_ns() + self.cost_ns
        while thread_time_ns() < until_ns:
            pass
        return self.value


class Changing(Counting):
    """One that comes as a schedule, whose version rises each time."""

    def _make(self, view: View, params: Numbered, after: int | None) -> Schedule:
        super()._make(view, params, after)
        return Schedule(0, 1, [], [], version=self.calls, whole=after is None)
