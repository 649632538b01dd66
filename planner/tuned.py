"""A graph's queries served while the replicas of its steps change: what a tuner would have made of them.

As `graph_queues`, but that each server is there from one instant to another. One that is taken away ends what
it has begun. Replicas are paid from the instant at which they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from mainspring.planner.graph_queues import Configuration, GraphProblem
from mainspring.planner.problem import Whole
from mainspring.planner.queues import NEVER_NS, compiled
from mainspring.planner.tuner import Sample, Tuner

SECOND_NS = 1_000_000_000
ACTIVATION_NS = 5 * SECOND_NS
"""Time from asking for a replica until it serves, as the paper has it."""
DECIDE_NS = SECOND_NS
"""Time between decisions."""


class Servers(msgspec.Struct):
    """Servers of a step, each from an instant to another, in nanoseconds."""

    asked_ns: list[int]
    from_ns: list[int]
    until_ns: list[int]


class Change(msgspec.Struct, frozen=True):
    """Replicas of each step from an instant on."""

    at_ns: int
    replicas: tuple[int, ...]


class Outcome(msgspec.Struct, frozen=True):
    """The end of a sample: latencies, what was late, what it cost."""

    late: float
    """The share of the queries that ended late."""
    cost: float
    """Price of all replicas for as long as they were paid."""
    latency_ns: Whole
    """Latency of each query, in order of arrival."""
    changes: tuple[Change, ...]


def serve_changing(
    order: Any,
    due_ns: Any,
    durations_ns: Any,
    most: int,
    growth: Any,
    between_ns: int,
    free_ns: Any,
    until_ns: Any,
    done_ns: Any,
) -> None:
    """Serve items in order by servers that begin nothing from ``until_ns`` on; ``free_ns`` is when they come.

    As `queues.run_station`: ``n`` items take ``growth[n]`` times as long as the longest of them.
    """
    position, items = 0, len(order)
    while position < items:
        due = due_ns[order[position]]
        chosen, begin_ns = -1, 0
        for server in range(len(free_ns)):
            at_ns = max(due, free_ns[server])
            if at_ns < until_ns[server] and (chosen < 0 or at_ns < begin_ns):
                chosen, begin_ns = server, at_ns
        longest_ns = durations_ns[order[position]]
        behind, last = position + 1, min(items, position + most)
        while behind < last and due_ns[order[behind]] <= begin_ns:
            longest_ns = max(longest_ns, durations_ns[order[behind]])
            behind += 1
        if behind - position > 1:
            longest_ns = int(longest_ns * growth[behind - position] + 0.5)
        end_ns = begin_ns + longest_ns + between_ns
        free_ns[chosen] = end_ns
        while position < behind:
            done_ns[order[position]] = end_ns
            position += 1


@cache
def _loop() -> Any:
    if compiled() is None:
        return serve_changing
    import numba

    return numba.njit(cache=True, nogil=True)(serve_changing)


def servers(changes: Sequence[Change], step: int, activation_ns: int = ACTIVATION_NS) -> Servers:
    """Return a step's servers; those that were asked for last are the first to go. One always stays."""
    found = Servers([], [], [])
    staying: list[int] = []
    for change in changes:
        wanted = max(1, change.replicas[step])
        while len(staying) < wanted:
            staying.append(len(found.asked_ns))
            found.asked_ns.append(change.at_ns)
            found.from_ns.append(change.at_ns + activation_ns if change is not changes[0] else 0)
            found.until_ns.append(NEVER_NS)
        for gone in staying[wanted:]:
            found.until_ns[gone] = change.at_ns
        del staying[wanted:]
    return found


def play_station(
    items_ns: Whole,
    durations_ns: Whole,
    growth: np.ndarray,
    mine: Servers,
    between_ns: int,
    over_ns: int | None = None,
) -> tuple[Whole, int]:
    """Return when each item of a station is done, and for how long all servers are paid, until ``over_ns`` or
    the last item comes; batches have at most as many rows as ``growth`` goes up to."""
    done_ns, last_ns = np.zeros(len(items_ns), np.int64), int(items_ns.max()) if over_ns is None else over_ns
    _loop()(
        *(np.argsort(items_ns, kind="stable"), items_ns, durations_ns, len(growth) - 1, growth, between_ns),
        *(np.array(mine.from_ns), np.array(mine.until_ns), done_ns),
    )
    spans = zip(mine.asked_ns, mine.until_ns, strict=True)
    return done_ns, sum(min(until, last_ns) - min(asked, last_ns) for asked, until in spans)


def play_changes(
    problem: GraphProblem,
    stations: Configuration,
    changes: Sequence[Change],
    activation_ns: int = ACTIVATION_NS,
) -> Outcome:
    """Serve a problem's queries; ``changes`` begin with the replicas of the first instant.

    Kinds and largest batches are those of ``stations``.
    """
    queries, ends, cost = problem.queries, list[Whole](), 0.0
    for place, (step, station) in enumerate(zip(problem.steps, stations, strict=True)):
        ready_ns = np.maximum.reduce([ends[each] for each in step.after]) if step.after else queries.due_ns
        mine = servers(changes, place, activation_ns)
        table_ns = step.tables_ns[station.kind][: station.batch]
        growth = np.concatenate([[1.0], table_ns / table_ns[0]])
        durations_ns = step.durations_ns(station.kind)
        done_ns, paid_ns = play_station(
            ready_ns[step.query], durations_ns, growth, mine, problem.between_ns, int(queries.due_ns[-1])
        )
        ends.append(ready_ns.copy())
        np.maximum.at(ends[-1], step.query, done_ns)
        cost += problem.kinds[station.kind].price * paid_ns / 3.6e12
    latency_ns = np.maximum.reduce(ends) - queries.due_ns + problem.around_ns
    late = float((latency_ns > queries.slo_ns)[queries.counted :].mean())
    return Outcome(late, cost, latency_ns, tuple(changes))


def tuned_changes(sample: Sample, arrivals_ns: Whole, decide_ns: int = DECIDE_NS) -> tuple[Change, ...]:
    """Return what the tuner decides, which hangs on the arrivals alone."""
    tuner, fed = Tuner(sample, 0), 0
    found = [Change(0, tuner.replicas)]
    for now_ns in range(decide_ns, int(arrivals_ns[-1]), decide_ns):
        until = int(np.searchsorted(arrivals_ns, now_ns, side="right"))
        for each in arrivals_ns[fed:until].tolist():
            tuner.arrived(each)
        fed = until
        replicas = tuner.decide(now_ns)
        if replicas != found[-1].replicas:
            found.append(Change(now_ns, replicas))
    return tuple(found)
