"""A scheduler with an error of ours in it."""

from __future__ import annotations

from mainspring.messages.events import Event, RequestCancelled
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler


class Failing:
    """A scheduler that fails with a cancellation; a compiled one can't be patched."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler = Scheduler(config)

    def handle(self, now_ns: int, event: Event) -> None:
        if isinstance(event, RequestCancelled):
            raise AssertionError("page 3 has two owners")
        self._scheduler.handle(now_ns, event)

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)
