"""Clipper's adaptive batching (NSDI '17, sections 4.3, 4.3.1, 4.3.2 and 4.4.1).

Each model on each worker, a *container replica* there, has its own limit on the rows of a batch, adapted to
how long its batches take: by additive increase and multiplicative decrease, which is the paper's default, or
by quantile regression (`batch_limits`). "Predictions are processed in batches by removing as many queries
as possible from a queue up to the maximum batch size." A batch below its limit may be delayed for more
requests to come (section 4.3.2). Requests are never refused for being late: in overload the queues grow
until almost all answers are.

What a batch may take is what its requests were given, unless ``latency_objective_ms`` says so; what it took
is the time of its EXEC. A limit that is none of the compiled sizes is padded to the next larger one, and
then that one's time is what is measured. Where it differs: the replicas of a model share one queue, a device
runs one batch at a time, and models are loaded on demand (`arrival_order`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.baselines.arrival_order import ArrivalOrder
from mainspring.scheduler.policies.baselines.batch_limits import (
    AimdLimit,
    BatchLimit,
    QuantileLimit,
    SingleRow,
)
from mainspring.scheduler.policies.options import ClipperOptions

if TYPE_CHECKING:
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Clipper(ArrivalOrder):
    """Queues by arrival, with a limit on batches that is learnt for each model on each worker."""

    name: ClassVar[str] = "clipper"
    Options: ClassVar[type[msgspec.Struct]] = ClipperOptions

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, ClipperOptions)
        # With a wait, a model's batch is ready at another instant on each worker, by the limit there.
        super().__init__(state, options, options.batch_wait_ms, shares=not options.batch_wait_ms)
        self._set = options
        self._objective_ns = milliseconds(options.latency_objective_ms)
        self._limits: dict[int, dict[int, BatchLimit]] = {}
        """The limit of each model on each worker, by their numbers."""

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        """Keep every request for as long as it takes."""
        return None

    def full_rows(self, placement: Placement) -> int:
        """Return the limit of the model on the worker."""
        return self.limit(placement).rows

    def batch_rows(self, placement: Placement, waiting: int) -> int:
        """Return the limit of the model on the worker."""
        return self.limit(placement).rows

    def executed(
        self, now_ns: int, placement: Placement, size_index: int, duration_ns: int, requests: list[Request]
    ) -> None:
        """Adapt the limit to how long a batch took."""
        objective_ns = self._objective_ns or min(
            [request.due_ns - request.arrived_ns for request in requests if request.due_ns is not None],
            default=0,
        )
        if objective_ns and not placement.leaving:
            rows = sum([request.rows for request in requests])
            limit = self.limit(placement)
            limit.measured(rows, placement.times.sizes[size_index], duration_ns, objective_ns)
            self.offer_again(placement)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Forget the limit of a model that leaves the worker for good."""
        super().residency_changed(now_ns, placement)
        if placement.leaving:
            self._limits.get(placement.worker.number, {}).pop(placement.model.number, None)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Forget the worker's limits."""
        super().worker_left(now_ns, worker)
        self._limits.pop(worker.number, None)

    def limit(self, placement: Placement) -> BatchLimit:
        """Return the limit of a model on a worker; it begins at the smallest batch."""
        limits = self._limits.setdefault(placement.worker.number, {})
        limit = limits.get(placement.model.number)
        if limit is None:
            limit = limits[placement.model.number] = self._new_limit(placement.times.sizes)
        return limit

    def _new_limit(self, sizes: tuple[int, ...]) -> BatchLimit:
        match self._set.batch_limit:
            case "aimd":
                return AimdLimit(sizes[-1], self._set.additive_step, self._set.backoff)
            case "quantile":
                return QuantileLimit(sizes, self._set.quantile_window)
            case "single":
                return SingleRow()
