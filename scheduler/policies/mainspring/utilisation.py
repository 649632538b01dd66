"""How busy EXEC executors were lately: all together, and each of its own."""

from __future__ import annotations

import math

from mainspring.cluster.placements import Worker
from mainspring.scheduler.policies.mainspring.constants import UTILISATION_WINDOW_NS
from mainspring.scheduler.state import SchedulerState


class Decaying:
    """Time that was given away, forgotten with the window's time constant."""

    __slots__ = ("_at_ns", "_given_ns")

    def __init__(self) -> None:
        self._given_ns = 0.0
        self._at_ns = 0

    def add(self, now_ns: int, duration_ns: int) -> None:
        """Enter time that was given away."""
        self._decay(now_ns)
        self._given_ns += duration_ns

    def share(self, now_ns: int) -> float:
        """Return the part of the window that was given away."""
        self._decay(now_ns)
        return self._given_ns / UTILISATION_WINDOW_NS

    def _decay(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            self._given_ns *= math.exp((self._at_ns - now_ns) / UTILISATION_WINDOW_NS)
            self._at_ns = now_ns


class Utilisation:
    """The shares of EXEC executors' time that were given away."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._all = Decaying()
        self._own: dict[str, Decaying] = {}

    def gave(self, now_ns: int, worker: Worker, duration_ns: int) -> None:
        """Enter a batch that was sent to a worker."""
        self._all.add(now_ns, duration_ns)
        own = self._own.get(worker.name)
        if own is None:
            own = self._own[worker.name] = Decaying()
        own.add(now_ns, duration_ns)

    def share(self, now_ns: int) -> float:
        """Return the share of the time of all workers that take work, from 0 to a little more than 1."""
        return self._all.share(now_ns) / max(1, self._state.cluster.open_workers)

    def of(self, now_ns: int, worker: Worker) -> float:
        """Return the share of one worker's time."""
        own = self._own.get(worker.name)
        return 0.0 if own is None else own.share(now_ns)

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker."""
        self._own.pop(worker.name, None)
