"""Which requests stand too far behind others of their model to be served by their deadline.

A thousand requests that come at once with one deadline would otherwise all be given up in one moment, just
before it: as late as it can be known, and too many for all the refusals to be with their callers in time. At
their best size and on every worker at once, batches of the model serve a limited number of rows until a
deadline; a request behind twice as many is given up at once, and the longer the queue, the earlier its end
leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.scheduler.policies.mainspring.constants import CAPACITY_DOUBT, SHORT_QUEUE

if TYPE_CHECKING:
    from mainspring.cluster.placements import Model
    from mainspring.cluster.requests import Request
    from mainspring.scheduler.state import SchedulerState


def expires_early_ns(state: SchedulerState, request: Request, last_start_ns: int) -> int:
    """Return the last instant at which a queued request is worth keeping, as the queue is now.

    It is ``last_start_ns``, the last at which a dispatch could meet its deadline, if few are before it.
    """
    model = request.model
    if len(model.queue) <= SHORT_QUEUE or request.due_ns is None:
        return last_start_ns
    rows = model.queue.rows_before(request)
    needed_ns = rows * _row_ns(model) // (CAPACITY_DOUBT * max(1, state.cluster.open_workers))
    return min(last_start_ns, request.due_ns - needed_ns)


def _row_ns(model: Model) -> int:
    """Return the least time that a row takes on any kind of device, in the batch that is best for it."""
    least_ns = 0
    for times in model.infer_times.values():
        for index, size in enumerate(times.sizes):
            row_ns = times.ns[index] // size
            if row_ns < least_ns or not least_ns:
                least_ns = row_ns
    return least_ns
