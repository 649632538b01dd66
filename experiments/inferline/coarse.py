"""Baselines of InferLine: the pipeline as one black box, provisioned whole, and DS2.

Coarse-grained (SoCC '20, section 6): a unit is one replica of each step on the kind that is fastest for it,
a black box that takes a batch at a time through all steps, the largest one whose service time keeps the SLO.
Units are as many as the sample's mean rate takes (CG-Mean), or its peak rate in windows as long as the SLO
(CG-Peak). Kinder than that are units whose steps work side by side (`Unit.side_by_side`). Its tuner is
AutoScale's (Gandhi et al., 2012): the load is read off the number of queries in the system, more units are
asked for at once, and fewer after two minutes in which fewer would have done. DS2 (OSDI '18) sets each step's
replicas to its rate over what a replica serves, without any slack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from mainspring.planner.graph_queues import Configuration, GraphProblem, Station
from mainspring.planner.problem import Whole
from mainspring.planner.tuned import ACTIVATION_NS, Change, Outcome, play_station, servers
from mainspring.planner.tuner import envelope

SECOND_NS = 1_000_000_000
WAIT_NS = 120 * SECOND_NS
"""AutoScale's time until a unit that is not needed goes."""
DS2_WINDOW_NS = 10 * SECOND_NS


class Unit(msgspec.Struct, frozen=True):
    """A whole pipeline."""

    stations: Configuration
    """One replica of each step."""
    service_ns: tuple[int, ...]
    """Time of the longest path in batches of 1, 2 ... queries, up to the largest."""
    side_by_side: float
    """Queries a second if each step took its next batch as soon as it can."""
    price: float

    @property
    def throughput(self) -> float:
        """Queries a second, one batch at a time."""
        return len(self.service_ns) * SECOND_NS / self.service_ns[-1]


def unit(problem: GraphProblem) -> Unit:
    """Return the unit with the largest batch that keeps the SLO."""
    kinds = [int(np.argmin([table[0] for table in step.tables_ns])) for step in problem.steps]
    slo_ns, batch = int(problem.queries.slo_ns.max()), 1
    most = min(len(step.tables_ns[kind]) for step, kind in zip(problem.steps, kinds, strict=True))
    while 2 * batch <= most and service_ns(problem, kinds, 2 * batch) <= slo_ns:
        batch *= 2
    shares = [rate / problem.queries.rate for rate in problem.rates]
    slowest = min(
        step.throughput(kind, batch) / share
        for step, kind, share in zip(problem.steps, kinds, shares, strict=True)
    )
    stations = tuple(Station(kind, batch, 1) for kind in kinds)
    taken_ns = tuple(round(service_ns(problem, kinds, size)) for size in range(1, batch + 1))
    return Unit(stations, taken_ns, slowest, problem.price(stations))


def service_ns(problem: GraphProblem, kinds: list[int], batch: int) -> float:
    """Return the time of the longest path in batches of a size."""
    ends: list[float] = []
    for step, kind in zip(problem.steps, kinds, strict=True):
        begin_ns = max([ends[each] for each in step.after], default=0.0)
        ends.append(begin_ns + float(step.tables_ns[kind][batch - 1]) + problem.between_ns)
    return max(ends) + problem.around_ns


def peak(problem: GraphProblem) -> float:
    """Return the highest rate of the sample in any window as long as the SLO."""
    slo_ns = int(problem.queries.slo_ns.max())
    return envelope(problem.queries.due_ns, [slo_ns])[0] / slo_ns * SECOND_NS


def units_for(one: Unit, rate: float) -> int:
    """Return the units that serve a rate."""
    return max(1, math.ceil(rate / one.throughput - 1e-9))


def play_units(problem: GraphProblem, one: Unit, changes: Sequence[Change]) -> Outcome:
    """Serve a problem's queries by units, each a batch at a time; ``changes`` have the number of units."""
    queries = problem.queries
    whole_ns = np.full(len(queries), one.service_ns[0], np.int64)
    growth = np.array([1.0, *[each / one.service_ns[0] for each in one.service_ns]])
    done_ns, paid_ns = play_station(queries.due_ns, whole_ns, growth, servers(changes, 0), 0)
    latency_ns = done_ns - queries.due_ns
    late = float((latency_ns > queries.slo_ns)[queries.counted :].mean())
    return Outcome(late, one.price * paid_ns / 3.6e12, latency_ns, tuple(changes))


def fixed_units(count: int) -> tuple[Change, ...]:
    """Return that there are always so many."""
    return (Change(0, (count,)),)


def autoscale(one: Unit, arrivals_ns: Whole, first: int) -> tuple[Change, ...]:
    """Return what AutoScale does with units, its own queue played as a fluid, once a second.

    The load that it reads off the number in the system is by Little's law what a unit holds when it is just
    busy: a batch.
    """
    queue, units, low_since, ready = 0.0, first, 0, first
    found, coming = [Change(0, (first,))], list[tuple[int, int]]()
    for now_ns in range(SECOND_NS, int(arrivals_ns[-1]), SECOND_NS):
        came = _between(arrivals_ns, now_ns - SECOND_NS, now_ns)
        ready += sum(count for at_ns, count in coming if at_ns <= now_ns)
        coming = [each for each in coming if each[0] > now_ns]
        served = min(queue + came, ready * one.throughput)
        queue += came - served
        in_system = served * one.service_ns[-1] / SECOND_NS + queue
        wanted = max(1, math.ceil(in_system / len(one.service_ns) - 1e-9))
        if wanted > units:
            coming.append((now_ns + ACTIVATION_NS, wanted - units))
            units, low_since = wanted, now_ns
        elif wanted == units:
            low_since = now_ns
        elif now_ns - low_since >= WAIT_NS and not coming:
            units = ready = wanted
            low_since = now_ns
        if units != found[-1].replicas[0]:
            found.append(Change(now_ns, (units,)))
    return tuple(found)


def ds2(problem: GraphProblem, stations: Configuration, arrivals_ns: Whole) -> tuple[Change, ...]:
    """Return what DS2 does: each step's replicas for the mean rate of the last window, after each window."""
    shares = [rate / problem.queries.rate for rate in problem.rates]
    found = [Change(0, tuple(station.replicas for station in stations))]
    for now_ns in range(DS2_WINDOW_NS, int(arrivals_ns[-1]), DS2_WINDOW_NS):
        rate = _between(arrivals_ns, now_ns - DS2_WINDOW_NS, now_ns) * SECOND_NS / DS2_WINDOW_NS
        replicas = tuple(
            max(1, math.ceil(rate * share / step.throughput(station.kind, station.batch)))
            for step, station, share in zip(problem.steps, stations, shares, strict=True)
        )
        if replicas != found[-1].replicas:
            found.append(Change(now_ns, replicas))
    return tuple(found)


def _between(arrivals_ns: Whole, begin_ns: int, end_ns: int) -> int:
    first, last = np.searchsorted(arrivals_ns, [max(0, begin_ns), end_ns], side="right").tolist()
    return int(last - first)
