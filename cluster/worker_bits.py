"""The bit that stands for each worker in sets of workers, which are ints.

The seat of a worker that has left is another one's later: once nothing is left of it in any model, which is
searched part by part, since there may be tens of thousands of models.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.served_models import ServedModels, Walk
from mainspring.cluster.workers import Worker

SWEPT_AT_ONCE: Final = 256
"""Models that are searched at a time for what is left of workers that are gone."""


class WorkerBits:
    """The seats of a cluster's workers."""

    __slots__ = ("_since", "_stale", "_unswept", "_walk", "served", "taken", "workers")

    def __init__(self, served: ServedModels) -> None:
        """``served`` gets the cluster's models (`DeviceKinds`)."""
        self.workers: list[Worker | None] = []
        """The worker whose `Worker.bit` is ``1 << index``."""
        self.taken = 0
        """The set of all workers."""
        self.served = served
        self._stale = 0
        """Bits of workers that are gone, which may still be in `Model.prepared` and `Model.absent`."""
        self._since = 0
        """Bits of workers that have left since the search for them began."""
        self._walk = Walk(served)
        """Goes to the models from which they have yet to be taken."""
        self._unswept = 0
        """Number of these models when the search began, less those that could be cleaned since."""

    def take(self, worker: Worker) -> None:
        """Give a worker the first seat that is free."""
        workers = self.workers
        while self.has_stale and self._unswept <= SWEPT_AT_ONCE:
            self.sweep()
        index, taken = 0, self.taken | self._stale | self._since
        while taken >> index & 1:
            index += 1
        workers[index : index + 1] = [worker]
        worker.bit = 1 << index
        self.taken |= worker.bit

    def leave(self, worker: Worker) -> None:
        """Free a worker's seat for another one, part by part."""
        self.workers[worker.bit.bit_length() - 1] = None
        self.taken &= ~worker.bit
        self._since |= worker.bit
        if not self._stale:
            self._begin()

    def first_of(self, workers: int) -> Worker:
        """Return the worker of the lowest bit of a set, which must not be empty."""
        worker = self.workers[(workers & -workers).bit_length() - 1]
        assert worker is not None, f"nobody is at a seat of {workers:x}"
        return worker

    @property
    def has_stale(self) -> bool:
        """Return whether something may be left of workers that are gone."""
        return bool(self._stale)

    def sweep(self) -> None:
        """Take what is left of workers that are gone out of some models."""
        stale = self._stale
        for _ in range(SWEPT_AT_ONCE):
            model = self._walk.next()
            if model is None:
                break
            if model.prepared & stale:
                model.prepared &= ~stale
            if model.absent & stale:
                model.absent &= ~stale
        self._unswept -= min(SWEPT_AT_ONCE, self._unswept)
        if not self._unswept:
            self._begin()

    def _begin(self) -> None:
        """Begin to search for workers that have left; models that come later know nothing of them."""
        self._walk.close()
        self._stale, self._since = self._since, 0
        if self._stale:
            self._walk, self._unswept = self.served.walk(), len(self.served)
