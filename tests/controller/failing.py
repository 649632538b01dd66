"""Schedulers with an error of ours in them: a compiled one can't be patched."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.cluster.snapshot import Part
from mainspring.messages.events import Event, RequestCancelled
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler


class Failing:
    """A scheduler that fails with a cancellation."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler = Scheduler(config)

    def handle(self, now_ns: int, event: Event) -> None:
        if isinstance(event, RequestCancelled):
            raise AssertionError("page 3 has two owners")
        self._scheduler.handle(now_ns, event)

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)


class Untold:
    """A scheduler whose snapshots fail as long as it is ``broken``."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.broken = True
        self._scheduler = Scheduler(config)

    def snapshot(self) -> Iterator[Part]:
        if self.broken:
            raise AssertionError("page 3 has two owners")
        return self._scheduler.snapshot()

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)
