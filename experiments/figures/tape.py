"""What the scheduler of a simulation costs: its events are kept and played again by themselves, and timed."""

from __future__ import annotations

import gc
import time

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, RequestArrived, Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler


class Tape:
    """The events of a run, in their order."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event | Command]] = []

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Keep an event; commands follow from them."""
        if isinstance(entry, Event):
            self._events.append((now_ns, entry))

    def cost_us(self, config: SchedulerConfig) -> float | None:
        """Return the CPU that a new scheduler takes for each request, in microseconds; None without requests.

        What joining workers and new models take before the first request is not counted.
        """
        requests = [at for at, (_, event) in enumerate(self._events) if isinstance(event, RequestArrived)]
        if not requests:
            return None
        scheduler = Scheduler(config)
        self._play(scheduler, 0, requests[0])
        gc.collect()
        gc.disable()
        try:
            began_ns = time.thread_time_ns()
            self._play(scheduler, requests[0], len(self._events))
            took_ns = time.thread_time_ns() - began_ns
        finally:
            gc.enable()
        return took_ns / 1e3 / len(requests)

    def _play(self, scheduler: Scheduler, start: int, end: int) -> None:
        for now_ns, event in self._events[start:end]:
            if isinstance(event, Wakeup):
                scheduler.schedule(now_ns)
            else:
                scheduler.handle(now_ns, event)  # type: ignore[arg-type]
