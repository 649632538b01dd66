"""First come, first served by the first idle device in order of preference: how Ribbon serves (SC '21, 5.1).

"The first arrived query going to the first available instance following the heterogeneous type order." Each
request runs by itself, in the smallest batch size that holds it, on the first idle device in the order of
``kinds``; if none is idle, on the one that is idle first. A device is given nothing in advance, nothing is
refused, and what has become late is run all the same. Plans of pools assume it (`planner.queues`). What waits
for a model with workers of its own runs together, up to the batch that its wish allows: plans of graphs do.

Where it differs: models are loaded on demand (`arrival_order`), and a request waits for a device that holds
its model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.policies.baselines.arrival_order import ArrivalOrder
from mainspring.scheduler.policies.options import FirstFreeOptions

if TYPE_CHECKING:
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.policies.base import Batch
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class FirstFree(ArrivalOrder):
    """Single requests in order of arrival, on the most preferred of the idle devices."""

    name: ClassVar[str] = "first-free"
    Options: ClassVar[type[msgspec.Struct]] = FirstFreeOptions
    lookahead_ms: ClassVar[float] = 0.0

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, FirstFreeOptions)
        super().__init__(state, options, 0.0)
        kinds = options.order()
        self._places = {kind: place for place, kind in enumerate(kinds)}
        self._last = len(kinds)
        self._left_ns = -1
        self._left: dict[int, int] = {}
        """The workers, as a set, to which each worker, by its number, has left a request at the instant of
        ``_left_ns``: to each only once, so that one that does not take it keeps it from nobody."""

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        """Keep every request for as long as it takes."""
        return None

    def full_rows(self, placement: Placement) -> int:
        """Return that nothing waits for others."""
        return 1

    def batch_rows(self, placement: Placement, waiting: int) -> int:
        """Return that requests run one by one, unless the model was assigned workers for batches."""
        return placement.model.most_rows or 1

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the oldest request that the worker can run, if it is idle and none is preferred to it."""
        return None if len(worker.exec) else super().next_batch(now_ns, worker, available_ns)

    def batch(self, now_ns: int, placement: Placement, index: int, first: int) -> Batch | None:
        """Return the first request alone, unless it is left to a device that is preferred."""
        preferred = self._preferred(now_ns, placement)
        if preferred is None:
            return super().batch(now_ns, placement, index, first)
        number = placement.worker.number
        self._left[number] = self._left.get(number, 0) | preferred.bit
        # The preferred one is asked first; this one then gets what is left.
        self.state.wants(preferred)
        self.state.wants(placement.worker)
        return None

    def _preferred(self, now_ns: int, placement: Placement) -> Worker | None:
        """Return the idle worker that could run a model now and is preferred to a placement's, or None."""
        if now_ns != self._left_ns:
            self._left_ns = now_ns
            self._left.clear()
        found: Worker | None = None
        best = self._rank(placement.worker)
        left_to = self._left.get(placement.worker.number, 0)
        for each in placement.model.usable.values():
            worker = each.worker
            if len(worker.exec) or worker.bit & left_to or not worker.open or each.load_slot is not None:
                continue
            rank = self._rank(worker)
            if rank < best:
                found, best = worker, rank
        return found

    def _rank(self, worker: Worker) -> tuple[int, int]:
        """Return a worker's place: by its kind, and then in the order in which workers joined."""
        return self._places.get(worker.device_kind, self._last), worker.number
