"""The searches ``inferline`` and ``exact`` for graphs: kind, largest batch and replicas of each step.

InferLine (SoCC '20), algorithms 1 and 2, without their slips: line 6 of the first gives up if the service
time is *above* the SLO, and the second compares with the present price and grows a batch only if nothing is
cheaper. Kinds have no total order, so a downgrade tries every cheaper one. Devices beyond a kind's `most`
count before the price, so that the search leaves them if it can.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from mainspring.planner.graph_queues import (
    Configuration,
    GraphEstimate,
    GraphProblem,
    GraphQueues,
    Station,
)
from mainspring.planner.problem import PlanError
from mainspring.planner.tuner import Sample, TunedStep, envelope, windows_ns

MOST_DEVICES = 4_096
"""Most replicas of a step."""
MOST_STEPS_EXACT = 3
LARGEST_BATCH = 64
LOAD_STEPS = 10
"""Halvings of the range of loads, to a thousandth of the sample's rate."""
NEARLY = 1.05
"""Windows may be longer than the sample by this."""
MOST_TRIED = 2_000
"""Configurations that the search ``exact`` plays at most, unless it is told."""

Cost = tuple[int, float]
"""Devices beyond the kinds' bounds, and the price of all."""


class InfeasibleSloError(PlanError):
    """No number of devices keeps the SLO."""

    def __init__(self, least_ms: float, step: str) -> None:
        """``least_ms`` is the least SLO that could be kept, ``step`` the one that takes most of it."""
        super().__init__(
            f"no devices keep this SLO: the least feasible is {least_ms:.4g} ms, of which step {step!r} "
            "takes most"
        )
        self.least_ms, self.step = least_ms, step


class GraphPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    graph: str
    steps: tuple[str, ...]
    kinds: tuple[str, ...]
    search: str
    rate: float
    """Queries a second of the sample."""
    objective: float
    best: GraphEstimate
    """The cheapest that keeps the promise; beyond the kinds' bounds if none was found within."""
    beyond: dict[str, int]
    """Devices of each kind more than its `most`; empty if the plan is feasible."""
    most_rate: float | None = None
    """The highest rate for which a plan within the bounds was found, if this is none."""
    greedy_price: float | None = None
    """Price of the plan of ``inferline``, with ``exact``."""
    proven: bool = False
    """True if nothing cheaper in these batches keeps the promise, as far as each step alone tells."""
    evaluations: int = 0
    sample: Sample | None = None
    """Its tuner's, with the sample's envelope."""
    models: tuple[str, ...] = ()
    """Model of each step."""

    @property
    def feasible(self) -> bool:
        """Return whether the plan is within the kinds' bounds."""
        return not self.beyond

    @property
    def gap(self) -> float | None:
        """Return how much dearer the greedy plan is than the exact one, as a share of the latter."""
        return None if self.greedy_price is None else self.greedy_price / self.best.price - 1


def batches(problem: GraphProblem, step: int, kind: int) -> list[int]:
    """Return the batches that a step may have on a kind: powers of two."""
    most = min(LARGEST_BATCH, len(problem.steps[step].tables_ns[kind]))
    return [1 << power for power in range(most.bit_length())]


def cost(problem: GraphProblem, found: Configuration) -> Cost:
    """Return what a configuration costs."""
    return sum(_beyond(problem, found).values()), problem.price(found)


def _beyond(problem: GraphProblem, found: Configuration) -> dict[str, int]:
    """Return how many devices of each kind are more than its bound."""
    pairs = zip(problem.spec.devices, problem.pool(found), strict=True)
    return {
        group.kind: count - group.most
        for group, count in pairs
        if group.most is not None and count > group.most
    }


def initial(estimator: GraphQueues) -> Configuration:
    """Return a configuration that keeps the promise, whatever it costs (algorithm 1); raise
    `InfeasibleSloError`."""
    problem = estimator.problem
    least_ms, step = estimator.least_slo()
    if least_ms * 1e6 > problem.queries.slo_ns.max():
        raise InfeasibleSloError(least_ms, step)
    kinds = [int(np.argmin([table[0] for table in step.tables_ns])) for step in problem.steps]
    found = [
        # Fewer can't serve what comes.
        Station(kind, 1, max(1, math.floor(rate / step.throughput(kind, 1))))
        for step, kind, rate in zip(problem.steps, kinds, problem.rates, strict=True)
    ]
    while not estimator.holds(tuple(found)):
        place = min(range(len(found)), key=lambda place: _headroom(problem, place, found[place]))
        if found[place].replicas >= MOST_DEVICES:
            raise PlanError(f"{MOST_DEVICES:,} devices for step {problem.steps[place].name!r} are not enough")
        found[place] = msgspec.structs.replace(found[place], replicas=found[place].replicas + 1)
    return tuple(found)


def _headroom(problem: GraphProblem, place: int, station: Station) -> float:
    """Return how many times what comes to a step its devices can serve."""
    one = problem.steps[place].throughput(station.kind, station.batch)
    return one * station.replicas / problem.rates[place]


def inferline(estimator: GraphQueues) -> Configuration:
    """Return the plan of algorithms 1 and 2; raise `PlanError`."""
    problem, found = estimator.problem, initial(estimator)
    while True:
        cheaper = [each for place in range(len(found)) for each in _cheaper(estimator, found, place)]
        best = min(cheaper, key=lambda each: cost(problem, each), default=found)
        if cost(problem, best) >= cost(problem, found):
            best = _grown(estimator, found)
        if best == found:
            return found
        found = best


def _with(found: Configuration, place: int, **changes: int) -> Configuration:
    station = msgspec.structs.replace(found[place], **changes)
    return (*found[:place], station, *found[place + 1 :])


def _cheaper(estimator: GraphQueues, found: Configuration, place: int) -> Iterator[Configuration]:
    """Yield what keeps the promise with a replica less of a step, or with another kind for it."""
    problem, station = estimator.problem, found[place]
    if station.replicas > 1:
        fewer = _with(found, place, replicas=station.replicas - 1)
        if estimator.holds(fewer):
            yield fewer
    for kind, each in enumerate(problem.kinds):
        if each.price < problem.kinds[station.kind].price or _beyond(problem, found):
            moved = _moved(estimator, found, place, kind)
            if moved is not None:
                yield moved


def _moved(estimator: GraphQueues, found: Configuration, place: int, kind: int) -> Configuration | None:
    """Return the best configuration with a step on a kind, the others as they are; None if none is better."""
    problem, best = estimator.problem, None
    limit = cost(problem, found)
    for batch in batches(problem, place, kind):

        def placed(replicas: int, batch: int = batch) -> Configuration:
            return _with(found, place, kind=kind, batch=batch, replicas=replicas)

        least = max(1, math.floor(problem.rates[place] / problem.steps[place].throughput(kind, batch)))
        most = _most(lambda count: cost(problem, placed(count)) < limit, least)  # noqa: B023
        if most < least or not estimator.holds(placed(most)):
            continue
        while least < most:
            middle = (least + most) // 2
            least, most = (least, middle) if estimator.holds(placed(middle)) else (middle + 1, most)
        best, limit = placed(most), cost(problem, placed(most))
    return best


def _most(within: Callable[[int], bool], least: int) -> int:
    """Return the largest number from ``least`` on that is within a limit; ``least`` - 1 if it is not."""
    found, step = least - 1, 1
    while found < MOST_DEVICES and within(found + step):
        found, step = found + step, 2 * step
    while step > 1:
        step //= 2
        if found + step <= MOST_DEVICES and within(found + step):
            found += step
    return found


def _grown(estimator: GraphQueues, found: Configuration) -> Configuration:
    """Return the configuration with a batch twice as large, where that saves most; or as it is."""
    problem, best, most = estimator.problem, found, 0.0
    for place, (step, station) in enumerate(zip(problem.steps, found, strict=True)):
        batch = 2 * station.batch
        if batch not in batches(problem, place, station.kind):
            continue
        gained = 1 - step.throughput(station.kind, station.batch) / step.throughput(station.kind, batch)
        worth = gained * station.replicas * problem.kinds[station.kind].price
        grown = _with(found, place, batch=batch)
        if worth > most and estimator.holds(grown):
            best, most = grown, worth
    return best


def exact(
    estimator: GraphQueues, greedy: Configuration, most: int | None = None
) -> tuple[Configuration, bool]:
    """Return the cheapest configuration, and whether all cheaper ones are known not to hold.

    Tries what is cheaper than the greedy plan by rising price, without those in which a step could not keep
    the promise if no other had a queue. Raises `PlanError` for a graph of too many steps.
    """
    problem = estimator.problem
    if len(problem.steps) > MOST_STEPS_EXACT:
        raise PlanError(
            f"--search exact is for graphs of up to {MOST_STEPS_EXACT} steps, and {problem.name} has "
            f"{len(problem.steps)}: take inferline"
        )
    limit = cost(problem, greedy)
    options = [_options(estimator, greedy, place) for place in range(len(greedy))]
    candidates = sorted(
        (cost(problem, each), each) for each in itertools.product(*options) if cost(problem, each) < limit
    )
    allowed = MOST_TRIED if most is None else most
    for _, each in candidates[:allowed]:
        if estimator.holds(each):
            return each, True
    return greedy, len(candidates) <= allowed


def _options(estimator: GraphQueues, greedy: Configuration, place: int) -> list[Station]:
    """Return the stations of a step that could be part of a plan below the greedy one's price."""
    problem, found = estimator.problem, []
    alone = _alone(estimator, place)
    others = sum(min(kind.price for kind in problem.kinds) for other in range(len(greedy)) if other != place)
    budget = problem.price(greedy) - others
    for kind, each in enumerate(problem.kinds):
        most = math.floor(budget / each.price + 1e-9)
        for batch in batches(problem, place, kind):
            least = max(1, math.floor(problem.rates[place] / problem.steps[place].throughput(kind, batch)))
            fits = next(
                (count for count in range(least, most + 1) if alone(Station(kind, batch, count))), most + 1
            )
            found += [Station(kind, batch, count) for count in range(fits, most + 1)]
    return found


def _alone(estimator: GraphQueues, place: int) -> Callable[[Station], bool]:
    """Return what tells whether a station would do if all other steps took no time in any queue."""
    problem = estimator.problem
    counted, slo_ns = problem.queries.counted, problem.queries.slo_ns

    def would_do(station: Station) -> bool:
        done_ns = estimator.play(None, only=(place, station))
        assert done_ns is not None
        latency_ns = done_ns - problem.queries.due_ns + problem.around_ns
        return float((latency_ns <= slo_ns)[counted:].mean()) >= problem.attainment

    return would_do


def plan_graph(
    estimator: GraphQueues, search: str = "inferline", evaluations: int | None = None
) -> GraphPlan:
    """Search for the cheapest devices of a graph's steps; ``evaluations`` bound ``exact``.

    Raises `InfeasibleSloError`, and `PlanError` for what can't be planned.
    """
    problem = estimator.problem
    greedy = inferline(estimator)
    found, proven, greedy_price = greedy, False, None
    if search == "exact":
        found, proven = exact(estimator, greedy, evaluations)
        greedy_price = problem.price(greedy)
    elif search != "inferline":
        raise PlanError(f"a graph is planned by --search inferline or exact, not {search}")
    beyond = _beyond(problem, found)
    return GraphPlan(
        graph=problem.name,
        steps=tuple(step.name for step in problem.steps),
        kinds=tuple(kind.name for kind in problem.kinds),
        search=search,
        rate=problem.queries.rate,
        objective=problem.attainment,
        best=estimator.evaluate(found),
        beyond=beyond,
        most_rate=_most_rate(problem, estimator.confidence) if beyond else None,
        greedy_price=greedy_price,
        proven=proven,
        evaluations=estimator.evaluations,
        sample=sample_of(problem, found),
        models=tuple(step.model for step in problem.steps),
    )


def _most_rate(problem: GraphProblem, confidence: float) -> float:
    """Halve towards the highest rate for which a plan within the kinds' bounds is found."""
    low, high = 0.0, 1.0
    for _ in range(LOAD_STEPS):
        middle = (low + high) / 2
        thinner = problem.at_load(middle)
        if _beyond(problem, inferline(GraphQueues(thinner, confidence))):
            high = middle
        else:
            low = middle
    return low * problem.queries.rate


def sample_of(problem: GraphProblem, stations: Configuration) -> Sample:
    """Return what a tuner has to know of a plan."""
    steps, ends_ns = [], list[float]()
    for step, station, rate in zip(problem.steps, stations, problem.rates, strict=True):
        begin_ns = max([ends_ns[each] for each in step.after], default=0.0)
        ends_ns.append(begin_ns + float(step.tables_ns[station.kind][station.batch - 1]))
        one = step.throughput(station.kind, station.batch)
        share = rate / problem.queries.rate
        steps.append(TunedStep(share, one, rate / (one * station.replicas), station.replicas))
    span_ns = NEARLY * float(problem.queries.due_ns[-1] - problem.queries.due_ns[0])
    every = windows_ns(round(max(ends_ns)))
    # A window longer than the sample would always be exceeded.
    windows = tuple(each for each in every if each <= span_ns) or every[:1]
    return Sample(windows, envelope(problem.queries.due_ns, windows), tuple(steps))
