"""One station of unlike servers, first come, first served: the loop that estimates spend their time in.

A query goes to the first idle server in order of preference; if none is idle it waits for the one that is
idle first, behind those that came before it (Ribbon, section 5.1). It is what a pool of devices does, or one
stage of a pipeline: who comes to the next stage is what this one finishes, in the order of ``done_ns``.

Written for numba, and so that Python runs it too, on lists; both compute with whole nanoseconds, the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


def run_station(
    due_ns: Any,
    durations_ns: Any,
    kinds: Any,
    deadline_ns: Any,
    most_late: int,
    free_ns: Any,
    done_ns: Any,
    by: Any,
) -> int:
    """Serve the queries in order until more than ``most_late`` have ended late; return how many were served.

    ``due_ns`` ascends; ``durations_ns`` has a row for each kind; ``kinds`` are the servers', in order of
    preference; ``deadline_ns`` is when a query is late that ends behind it. Fills ``done_ns`` and ``by``, the
    server of each query; ``free_ns`` are the instants at which servers are idle, from the first query on.
    """
    servers = len(kinds)
    late = 0
    for query in range(len(due_ns)):
        begin_ns = due_ns[query]
        chosen = -1
        first = 0
        for server in range(servers):
            if free_ns[server] <= begin_ns:
                chosen = server
                break
            if free_ns[server] < free_ns[first]:
                first = server
        if chosen < 0:
            chosen = first
            begin_ns = free_ns[first]
        end_ns = begin_ns + durations_ns[kinds[chosen]][query]
        free_ns[chosen] = end_ns
        done_ns[query] = end_ns
        by[query] = chosen
        if end_ns > deadline_ns[query]:
            late += 1
            if late > most_late:
                return query + 1
    return len(due_ns)


@cache
def compiled() -> Any:
    """Return `run_station` compiled by numba; None where that is not installed (extra ``planner``)."""
    try:
        import numba
    except ImportError:
        return None
    return numba.njit(cache=True, nogil=True)(run_station)


def serve(
    due_ns: Whole, durations_ns: Whole, kinds: Sequence[int], deadline_ns: Whole, most_late: int
) -> tuple[Whole, Whole]:
    """Serve queries; return when each ended and by which server, of as many as were served.

    As `run_station`, whose loop is compiled where numba is installed and interpreted elsewhere.
    """
    station = compiled()
    if station is None:
        done: list[int] = [0] * len(due_ns)
        by: list[int] = [0] * len(due_ns)
        columns = due_ns.tolist(), durations_ns.tolist(), list(kinds), deadline_ns.tolist()
        served = run_station(*columns, most_late, [0] * len(kinds), done, by)
        return np.array(done[:served], np.int64), np.array(by[:served], np.int64)
    done_ns, by_ns = np.empty(len(due_ns), np.int64), np.empty(len(due_ns), np.int64)
    of, free_ns = np.array(kinds, np.int64), np.zeros(len(kinds), np.int64)
    served = station(due_ns, durations_ns, of, deadline_ns, most_late, free_ns, done_ns, by_ns)
    return done_ns[:served], by_ns[:served]
