"""Where a request's time went: durations that add up to its total. Pure.

The gateway knows when a request came, when it was dispatched and when its outputs came; the worker tells how
long it copied, loaded, waited and computed. What is left is the way there and back, which are taken to be
equally long.
"""

from __future__ import annotations

from typing import Final

from mainspring.gateway.core.effects import Dispatched
from mainspring.messages.clients import Timing
from mainspring.messages.peers import Output, OutputTimes

NO_TIMES: Final = OutputTimes(0, 0, 0)


def instants(now_ns: int, arrived_ns: int, dispatched_ns: int, output: Output) -> tuple[int, int, int, int]:
    """Return what happened to a request between its arrival and now, when its outputs are there.

    In order and on the gateway's clock: it was dispatched, and its inputs were sent; they were in the
    worker's IO memory; EXEC began; EXEC ended.

    One that shares another's execution may have come after its dispatch, and while it was computed.
    """
    times = output.times or NO_TIMES
    sent_ns = max(arrived_ns, dispatched_ns)
    on_worker_ns = times.input_ns + times.wait_ns + output.execute_ns + times.output_ns
    way_ns = max(0, now_ns - sent_ns - on_worker_ns) // 2
    executed_ns = max(sent_ns, now_ns - way_ns - times.output_ns)
    begun_ns = max(sent_ns, executed_ns - output.execute_ns)
    return sent_ns, min(begun_ns, sent_ns + way_ns + times.input_ns), begun_ns, executed_ns


def computed(
    now_ns: int,
    came_ns: int,
    arrived_ns: int,
    deadline_ns: int | None,
    dispatch: Dispatched,
    output: Output,
) -> Timing:
    """Return where the time of a request went whose outputs a worker computed.

    ``came_ns``: when its first bytes came; ``arrived_ns``: when it was there, and understood.
    """
    sent_ns, placed_ns, begun_ns, executed_ns = instants(now_ns, arrived_ns, dispatch.at_ns, output)
    queue_ns, input_ns, wait_ns, load_ns = sent_ns - arrived_ns, placed_ns - sent_ns, begun_ns - placed_ns, 0
    times = output.times
    if times is not None and times.load_ns:
        # What the LOAD took counts as that alone, whatever else was waited for meanwhile.
        loaded_ns = max(arrived_ns, begun_ns - times.loaded_ns)
        from_ns = max(arrived_ns, loaded_ns - times.load_ns)
        load_ns = loaded_ns - from_ns
        queue_ns -= _overlap(arrived_ns, sent_ns, from_ns, loaded_ns)
        input_ns -= _overlap(sent_ns, placed_ns, from_ns, loaded_ns)
        wait_ns -= _overlap(placed_ns, begun_ns, from_ns, loaded_ns)
    return Timing(
        total_ns=now_ns - came_ns,
        queue_ns=queue_ns,
        execute_ns=executed_ns - begun_ns,
        left_ns=None if deadline_ns is None else deadline_ns - now_ns,
        batch_size=dispatch.batch_size,
        cold_start=dispatch.cold,
        worker=dispatch.worker,
        receive_ns=arrived_ns - came_ns,
        input_ns=input_ns,
        load_ns=load_ns,
        wait_ns=wait_ns,
        output_ns=now_ns - executed_ns,
    )


def kept(now_ns: int, came_ns: int, arrived_ns: int, deadline_ns: int | None) -> Timing:
    """Return where the time went of a request whose outputs were there: no worker had a part in it."""
    return Timing(
        total_ns=now_ns - came_ns,
        queue_ns=0,
        execute_ns=0,
        left_ns=None if deadline_ns is None else deadline_ns - now_ns,
        batch_size=0,
        cold_start=False,
        worker="",
        cached=True,
        receive_ns=arrived_ns - came_ns,
        output_ns=now_ns - arrived_ns,
    )


def _overlap(one_ns: int, end_ns: int, other_ns: int, other_end_ns: int) -> int:
    """Return for how long two stretches of time lie upon each other."""
    return max(0, min(end_ns, other_end_ns) - max(one_ns, other_ns))
