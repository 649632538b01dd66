"""First in, first out, with dynamic batching and queue time-outs as Triton Inference Server has them.

After Triton's model configuration (its user guide: "Dynamic Batcher", "Delayed Batching", "Queue Policy"):
the settings below bear the names of ``dynamic_batching`` and ``default_queue_policy``. One queue for each
model in order of arrival. When a device is free, it runs the model whose batch was ready first, in the
largest preferred size that can be filled, or else with as many rows as wait, up to the largest size. A
batch that fills no preferred size, or not the largest, is held until its oldest request has waited for
``max_queue_delay_ms``. A request that waited longer than its time-out is rejected, or put behind all others.
Nothing else looks at a deadline: what is begun may end late.

Where it differs: Triton has all models loaded, this loads them on demand (`arrival_order`), first come
first served and over the least recently used; Triton runs an instance of each model at its own pace, here a
device runs one batch at a time and models take turns in the order in which their batches became ready; and
a request's own time-out, which Triton takes from the client, leaves the time that the largest batch takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.baselines.arrival_order import BEHIND_NS, ArrivalOrder, FifoQueue
from mainspring.scheduler.policies.options import FifoOptions

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(ArrivalOrder):
    """Queues by arrival, batches as large as what waits, time-outs."""

    name: ClassVar[str] = "fifo"
    Options: ClassVar[type[msgspec.Struct]] = FifoOptions

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, FifoOptions)
        super().__init__(state, options, options.max_queue_delay_ms, shares=True)
        self._preferred = options.preferred()
        self._max_rows = options.max_batch_size
        self._timeout_ns = milliseconds(options.queue_timeout_ms)
        self._share = options.timeout_share
        self._rejects = options.timeout_action == "reject"

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        """Return when the request's time in the queue is over, if it is then to be rejected."""
        return self._timeout_at_ns(request) if self._rejects else None

    def full_rows(self, placement: Placement) -> int:
        """Return the smallest preferred size, or the largest of all if none is preferred."""
        most = self._most_rows(placement)
        return min(self._preferred[0], most) if self._preferred else most

    def batch_rows(self, placement: Placement, waiting: int) -> int:
        """Return the largest preferred size that can be filled, or else what may go at all."""
        most = self._most_rows(placement)
        filled = [size for size in self._preferred if size <= min(waiting, most)]
        return filled[-1] if filled else most

    def sort_out(self, now_ns: int, queue: FifoQueue) -> None:
        """Put those whose time is over behind all others, if they are not to be rejected."""
        while not self._rejects and queue.head_rank_ns < BEHIND_NS:
            timeout_at_ns = self._timeout_at_ns(queue.head)
            if timeout_at_ns is None or now_ns <= timeout_at_ns:
                return
            queue.put_behind()

    def _most_rows(self, placement: Placement) -> int:
        """Return the most rows of a batch."""
        largest = placement.times.sizes[-1]
        return min(self._max_rows, largest) if self._max_rows else largest

    def _timeout_at_ns(self, request: Request) -> int | None:
        """Return when a request will have waited for too long; None for never."""
        limits_ns = [self._timeout_ns] if self._timeout_ns else []
        if self._share and request.due_ns is not None:
            limits_ns.append(
                round(self._share * self._slack_ns(request.model, request.due_ns - request.arrived_ns))
            )
        return request.arrived_ns + min(limits_ns) if limits_ns else None

    def _slack_ns(self, model: Model, given_ns: int) -> int:
        """Return what is left of a request's time for waiting, if its batch will be the largest that fits."""
        slack_ns = given_ns
        for times in model.infer_times.values():
            largest = self._max_rows or times.sizes[-1]
            fitting_ns = [
                duration_ns
                for size, duration_ns in zip(times.sizes, times.ns, strict=True)
                if duration_ns < given_ns and size <= largest
            ]
            slack_ns = min(slack_ns, given_ns - max(fitting_ns, default=given_ns))
        return slack_ns
