"""The reference that the kernel is held against: a station as a simulation of events."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence


def serve_by_events(
    due_ns: Sequence[int], durations_ns: Sequence[Sequence[int]], kinds: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return when each query ends and by which server: arrivals and ends one after the other, by a queue."""
    done_ns, by = [0] * len(due_ns), [0] * len(due_ns)
    idle = set(range(len(kinds)))
    waiting: deque[int] = deque()
    # Of events at one instant, ends come first: a server that is just idle can take the query that comes now.
    events = [(when_ns, 1, query) for query, when_ns in enumerate(due_ns)]
    heapq.heapify(events)
    while events:
        now_ns, what, which = heapq.heappop(events)
        if what:
            waiting.append(which)
        else:
            idle.add(which)
        if events and events[0][:2] == (now_ns, 0):
            continue
        while waiting and idle:
            query, server = waiting.popleft(), min(idle)
            idle.discard(server)
            done_ns[query] = now_ns + durations_ns[kinds[server]][query]
            by[query] = server
            heapq.heappush(events, (done_ns[query], 0, server))
    return done_ns, by
