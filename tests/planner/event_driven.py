"""The reference that the kernel is held against: a station as a simulation of events."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence


def serve_by_events(
    due_ns: Sequence[int],
    durations_ns: Sequence[Sequence[int]],
    kinds: Sequence[int],
    most: int = 1,
    growth: Sequence[float] = (1.0, 1.0),
) -> tuple[list[int], list[int]]:
    """Return when each query ends and by which server: arrivals and ends one after the other, by a queue.

    A server takes up to ``most`` that wait; n take ``growth[n]`` times as long as the longest of them.
    """
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
        if events and events[0][0] == now_ns:
            continue
        while waiting and idle:
            server = min(idle)
            batch = [waiting.popleft() for _ in range(min(most, len(waiting)))]
            idle.discard(server)
            longest_ns = max(durations_ns[kinds[server]][query] for query in batch)
            end_ns = now_ns + int(longest_ns * growth[len(batch)] + 0.5)
            for query in batch:
                done_ns[query], by[query] = end_ns, server
            heapq.heappush(events, (end_ns, 0, server))
    return done_ns, by
