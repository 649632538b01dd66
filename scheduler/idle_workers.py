"""The choice of workers that are asked for a batch when requests come for a model that many of them hold.

A model on few workers has all of them asked that would take work. Of those that hold a *wide* model one is
asked, and the next only if it left requests: 256 idle workers need not be asked for one request. `idle` is
the set of workers that would take more, so that ``Model.held & idle`` are those to ask.

A policy may keep an idle worker free for a batch of a wide model that is to grow (`SchedulerState.hold`).
Other workers of the kind that hold the model would wait for the same. They have no alarm of their own
(`SchedulerState.wait`), and nobody asks them, for any model, until the first one is asked again and waits no
more.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.scheduler.alarms import WorkerTimers

WIDE_FROM: Final = 8
"""A model on more workers than this may be wide."""
WIDE_PART: Final = 8
"""It is if it is on more than one in this many of those that take work: a choice for one worker looks at wide
models in vain that are on others."""


def is_replicated_widely(cluster: Cluster, model: Model) -> bool:
    """Return whether a model is on so many workers that they are better looked at together."""
    copies = len(model.usable)
    return copies > WIDE_FROM and WIDE_PART * copies > cluster.open_workers


class IdleWorkers:
    """Remembers who is idle, and for which wide models workers are to be asked."""

    __slots__ = ("_before", "_behind", "_cluster", "_held", "_tried", "_waits", "_wanted", "idle")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.idle = 0
        """The workers that were asked and would have taken more than there was."""
        self._wanted: dict[int, Model] = {}
        """Wide models with requests for which a worker is to be asked, by number."""
        self._held: dict[str, Model] = {}
        """The model whose batch each worker is kept free for, by the worker's name."""
        self._before: Model | None = None
        """The model that the worker which is being asked was kept free for until now."""
        self._behind: dict[int, Model] = {}
        """Models for which no worker is asked while those are kept free."""
        self._tried = 0
        """Workers that had nothing to begin when they were asked at this instant."""
        self._waits = 0
        """Workers that would wait as one does that was asked at this instant."""

    def want(self, model: Model) -> None:
        """Have a worker asked for a wide model."""
        self._wanted[model.number] = model

    def asked(self, timers: WorkerTimers) -> None:
        """Note that a worker is being asked; `busy` or `left_idle` says what came of it."""
        timers.held_for = None
        self._before = self._held.pop(timers.worker.name, None) if self._held else None

    def keep_free(self, worker: Worker, model: Model) -> None:
        """Note that the worker that is being asked waits for a batch of a wide model to grow."""
        self._held[worker.name] = model

    def busy(self, worker: Worker) -> None:
        """Note that a worker that was asked takes no more for now."""
        self.idle &= ~worker.bit
        if self._before is not None:
            self._resume(self._before)

    def left_idle(self, timers: WorkerTimers) -> None:
        """Note that a worker that was asked would take more, or waits (`WorkerTimers.held_for`)."""
        worker, held_for = timers.worker, timers.held_for
        bit = worker.bit
        self.idle |= bit
        self._tried |= bit
        if held_for is not None:
            self._waits |= held_for.held & self._cluster.of_kind[worker.kind]
        if self._before is not None and self._held.get(worker.name) is not self._before:
            self._resume(self._before)

    def forget(self, timers: WorkerTimers) -> None:
        """Forget a worker that is gone."""
        self.asked(timers)
        self.busy(timers.worker)

    def next(self) -> Worker | None:
        """Return the worker to ask next at this instant; None if nobody else is."""
        wanted = self._wanted
        if not wanted:
            return None
        found: Worker | None = None
        untried, passed = self.idle & ~self._tried, 0
        free = untried & ~self._waits
        if not free and not self._behind:
            # Nearly all are behind: where workers keep free for wide models, most calls end here.
            for number in [
                n for n, model in wanted.items() if not (model.queue.dues and model.held & untried)
            ]:
                del wanted[number]
            self._wanted, self._behind = self._behind, wanted
            return None
        # On many workers there are many models, and of more than 62 workers sets are large numbers.
        for number, model in wanted.items():
            if model.queue.dues:
                held = model.held
                if asked := held & free:
                    found = self._cluster.worker_bits.first_of(asked)
                    break
                if held & untried:
                    self._behind[number] = model
            passed += 1
        if found is None:
            wanted.clear()
        elif passed:
            for number in list(islice(wanted, passed)):
                del wanted[number]
        return found

    def end(self) -> None:
        """Note that time goes on: those that were asked may be asked again."""
        self._tried = self._waits = 0

    def validate(self, timers: dict[str, WorkerTimers]) -> None:
        """Check that workers are there that are remembered, and that those kept free will be asked again."""
        workers = self._cluster.workers
        seated = sum([worker.bit for worker in workers.values()])
        assert not self.idle & ~seated, f"idle are {self.idle:x}, of {seated:x}"
        for name, model in self._held.items():
            assert name in workers, f"{name} is kept free for {model.name}, and is gone"
            own = timers[name]
            assert own.held_for is model, f"{name} is kept free for {model.name}, not {own.held_for}"
            assert own.hold_ns is not None, f"{name} is kept free for {model.name}, for ever"

    def _resume(self, model: Model) -> None:
        """Have workers asked for the model that one was kept free for, and for those behind it."""
        self._wanted[model.number] = model
        self._wanted.update(self._behind)
        self._behind.clear()
