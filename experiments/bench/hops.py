"""Where a request's time goes, read out of the controller's event log beside the client's own instants.

On one machine every process reads the same monotonic clock, so the instants of the log and those that the
client noted can be set side by side. Requests were sent one at a time: the n-th arrival in the log is the
n-th request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Infer, Result
from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import read_log

STAGES = (
    "client to gateway to controller",
    "controller: taken in until scheduled",
    "schedule, dispatch, input at the worker, EXEC awake",
    "EXEC around the engine",
    "outputs to gateway to client",
)
"""What lies between two instants that are known, in order; they add up to what the client sees, less EXEC."""

Floats = npt.NDArray[np.float64]


def split(events: Path, sent_ns: Sequence[int], received_ns: Sequence[int]) -> Floats:
    """Return milliseconds of shape (requests, len(STAGES)) for the requests of these instants.

    The log may have other requests too, before, between and after. Raises ValueError if the log has no
    arrival, no INFER or no result for one.
    """
    arrivals: list[tuple[int, int]] = []
    infers: dict[int, tuple[int, Infer]] = {}
    results: dict[int, Result] = {}
    for now_ns, entry in read_log(events):
        match entry:
            case RequestArrived():
                arrivals.append((now_ns, entry.request_id))
            case Infer():
                infers.update(dict.fromkeys(entry.request_ids, (now_ns, entry)))
            case Result():
                results[entry.action_id] = entry
    instants = np.array([at for at, _ in arrivals])
    rows = []
    for sent, received in zip(sent_ns, received_ns, strict=True):
        place = int(np.searchsorted(instants, sent))
        if place == len(arrivals) or instants[place] > received:
            raise ValueError(f"{events} has no arrival for the request sent at {sent}")
        arrived_ns, request_id = arrivals[place]
        if request_id not in infers or infers[request_id][1].action_id not in results:
            raise ValueError(f"{events} has no finished INFER for request {request_id}")
        scheduled_ns, infer = infers[request_id]
        result = results[infer.action_id]
        engine_ns = result.end_ns - result.begin_ns - result.device_ns
        edges = (sent, arrived_ns, scheduled_ns, result.begin_ns)
        rows.append([*np.diff(edges), engine_ns, received - result.end_ns])
    return np.array(rows, dtype=float) / 1e6
