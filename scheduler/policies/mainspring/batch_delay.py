"""Whether to wait with a batch that could still grow.

Waiting pays where devices are nearly busy and hardly anyone else could use them meanwhile: few models on
many devices, each of which would otherwise run a small batch as soon as it is free. Elsewhere batches that
were put off to their last moment collide there.
"""

from __future__ import annotations

from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.mainspring.constants import (
    EXEC_SCARCE_FROM,
    LONGEST_DELAY_NS,
    SHORTEST_DELAY_NS,
)


def held_until_ns(batch: Batch, available_ns: int, waiting_models: int, utilisation: float) -> int | None:
    """Return when a batch that could begin at an instant should begin instead, or None to begin it.

    Its requests can be served until then in a batch of the next larger size, so waiting loses none of them.
    """
    placement, requests = batch.placement, batch.requests
    times = placement.times
    rows = sum([request.rows for request in requests])
    if (
        rows >= times.sizes[-1]
        or utilisation <= EXEC_SCARCE_FROM
        or waiting_models > len(placement.model.usable)
    ):
        return None
    larger = batch.size_index + (rows == times.sizes[batch.size_index])
    first_due_ns = min([request.due_ns for request in requests if request.due_ns is not None])
    last_start_ns = first_due_ns - times.ns[larger]
    share = min(1.0, (utilisation - EXEC_SCARCE_FROM) / (1.0 - EXEC_SCARCE_FROM))
    wait_ns = min(LONGEST_DELAY_NS, int(share * (last_start_ns - available_ns)))
    return available_ns + wait_ns if wait_ns > SHORTEST_DELAY_NS else None
