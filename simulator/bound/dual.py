"""A clairvoyant upper bound on goodput: the Lagrangian dual of the best schedule for known arrivals.

Device time (by the bucket and the kind of device), pages and transfer time get prices. At given prices
each model chooses for itself which of its requests to serve in which batches (`program`), each batch at
its cheapest place in time (`prices`). What all models gain so, and what all devices' time, pages and
transfers are worth at these prices, is together at least the goodput of any schedule: whatever the
prices are, the sum is a bound, and a subgradient descent looks for prices that make it small.

With a floor, a share of its requests that each model must have answered, each model has a price too: what one
of its requests is worth beyond the others. Then no schedule that keeps the floor serves more.

It is an upper bound for what it leaves out: copies of a model beyond one take no pages, a device is a share
of all devices' time, and executions may be cut at the edges of buckets. It is loose where memory is short
and where deadlines are tight on a single device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mainspring.simulator.bound.program import Choice, Floats, Grid, Ints, Prices, Problem, Windows, solve

ITERATIONS = 150
BUCKETS_A_BATCH = 4
"""Buckets in the median model's longest batch that can be in time."""
_STEP = 0.04
"""Length of the first step, in the worth of a nanosecond for each device too many."""
_COOLING = 20
"""Iterations after which steps are half as long."""
_MOMENTUM = 0.5
_MEMORY_STEP = 0.2
_CONSTANT_STEPS = 10
_EXTRA_WORTH = 4.0
"""The first step of a stream's price is a fifth of this."""


@dataclass(frozen=True)
class Stream:
    """The requests of one model with a deadline, of a row each."""

    arrival_ns: Ints
    """Instants of arrival, in ascending order, not empty."""
    due_ns: Ints
    """The deadline of each."""
    infer_ns: Mapping[str, Mapping[int, int]]
    """Duration by kind of device and batch size."""
    load_ns: Mapping[str, int] = field(default_factory=dict)
    pages: int = 0
    resident: bool = True
    """True if some device holds it before the first request."""


@dataclass(frozen=True)
class Fleet:
    """The devices."""

    devices: Mapping[str, int]
    """Number of devices, by kind."""
    pages: int | None = None
    """Pages of all devices together; None if there are always enough."""


@dataclass(frozen=True)
class Bound:
    """No schedule answers more requests in time."""

    requests: float
    offered: int
    iterations: list[float]
    """The dual's value at each iteration's prices; the bound is the least of them, or all that is offered."""


def goodput_bound(
    streams: Sequence[Stream],
    fleet: Fleet,
    *,
    iterations: int = ITERATIONS,
    bucket_ns: int | None = None,
    floor: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> Bound:
    """Return how many of these requests could be answered by their deadlines at best.

    With ``floor`` by a schedule that answers at least this share of each stream's requests, rounded down; if
    none can, the result is low and says nothing else.

    Deadlines that are earlier than an earlier request's of the same model are put off to it, which
    can only raise the bound. More iterations and shorter buckets bring it down. The result depends on the
    arguments alone. ``progress`` is told now and then which part of the work is done. Raises ValueError
    without requests or devices, or for arrivals out of order.
    """
    _check(streams, fleet)
    if not 0 <= floor <= 1:
        raise ValueError(f"the floor is {floor}; it must be a share from 0 to 1")
    dual = _Dual(streams, fleet, bucket_ns or _bucket_ns(streams), floor)
    asked = iterations + 2 * _CONSTANT_STEPS
    for count, _ in enumerate(dual.descend(iterations), 1):
        if progress is not None:
            progress(count / asked)
    offered = sum(len(stream.arrival_ns) for stream in streams)
    return Bound(min(*dual.values, float(offered)), offered, dual.values)


def _check(streams: Sequence[Stream], fleet: Fleet) -> None:
    if not streams or not all(len(stream.arrival_ns) for stream in streams):
        raise ValueError("there must be a stream, and a request in each")
    if not fleet.devices or min(fleet.devices.values()) < 1:
        raise ValueError(f"there must be a device of each kind, not {dict(fleet.devices)}")
    for number, stream in enumerate(streams):
        if np.any(np.diff(stream.arrival_ns) < 0):
            raise ValueError(f"the arrivals of stream {number} must be in ascending order")
        missing = [kind for kind in fleet.devices if not stream.infer_ns.get(kind)]
        if missing:
            raise ValueError(f"stream {number} has no durations for devices of kind {missing[0]}")


def _bucket_ns(streams: Sequence[Stream]) -> int:
    longest = []
    for stream in streams:
        slo_ns = int(np.max(stream.due_ns - stream.arrival_ns))
        durations = [ns for table in stream.infer_ns.values() for ns in table.values()]
        longest.append(max((ns for ns in durations if ns <= slo_ns), default=min(durations)))
    return max(1, int(np.median(longest)) // BUCKETS_A_BATCH)


@dataclass(frozen=True)
class _Answer:
    """The models' choices at given prices, each list in the order of the streams."""

    prices: dict[str, Prices]
    costs: list[dict[str, list[Floats]]]
    """Costs of batches of 1, 2, ... requests, by kind of device."""
    choices: list[Choice]


class _Dual:
    """The prices, and the dual's value as they go."""

    def __init__(self, streams: Sequence[Stream], fleet: Fleet, bucket_ns: int, floor: float) -> None:
        self._streams = streams
        self._least = [math.floor(floor * len(stream.arrival_ns)) for stream in streams]
        """Number of each stream's requests that must be answered."""
        self._extra = [0.0] * len(streams)
        """Price of a request of each stream below that."""
        self._extra_steps = [_Steps() for _ in streams]
        self._fleet = fleet
        start_ns = min(int(stream.arrival_ns[0]) for stream in streams)
        end_ns = max(int(stream.due_ns.max()) for stream in streams)
        self._grid = Grid(start_ns, end_ns, bucket_ns)
        self._length_ns = float(self._grid.count * bucket_ns)
        self._windows = [_windows(stream, fleet, self._grid) for stream in streams]
        self._rng = np.random.default_rng(0)
        self._worth = {kind: 1 / _row_ns(streams, kind) for kind in fleet.devices}
        """Requests for a nanosecond of a device, by kind."""
        self._time = {kind: np.zeros(self._grid.count) for kind in fleet.devices}
        self._page = 0.0
        """Price of a nanosecond of a page."""
        self._load = 0.0
        """Price of a nanosecond of a transfer."""
        self._page_steps, self._load_steps = _Steps(), _Steps()
        self.values: list[float] = []

    def descend(self, iterations: int) -> Iterator[None]:
        """Find the best constant price, then let prices differ; a value is noted at each step."""
        low, high = 0.0, 1.0
        for _ in range(_CONSTANT_STEPS):
            inner = [low + (high - low) * share for share in (0.4, 0.6)]
            values = []
            for share in inner:
                self._time = {
                    kind: np.full(self._grid.count, share * worth) for kind, worth in self._worth.items()
                }
                self._ask()
                values.append(self.values[-1])
                yield
            low, high = (low, inner[1]) if values[0] <= values[1] else (inner[0], high)
        means = {kind: np.zeros(self._grid.count) for kind in self._fleet.devices}
        for turn in range(iterations):
            answer = self._ask()
            step = _STEP / (1 + turn / _COOLING)
            for kind, used in self._used(answer).items():
                devices = self._fleet.devices[kind]
                means[kind] = _MOMENTUM * means[kind] + (1 - _MOMENTUM) * (used / devices - 1)
                raised = self._time[kind] + step * self._worth[kind] * means[kind]
                self._time[kind] = np.maximum(raised, 0)
            self._charge_memory(answer.choices)
            self._charge_floor(answer.choices)
            yield

    def _ask(self) -> _Answer:
        """Note the dual's value at the present prices; return what the models do."""
        prices = {kind: Prices(self._grid, per_ns) for kind, per_ns in self._time.items()}
        costs = [
            {kind: [window.costs(prices[kind]) for window in each] for kind, each in windows.items()}
            for windows in self._windows
        ]
        problems = [
            self._problem(stream, each, 1.0 + extra)
            for stream, each, extra in zip(self._streams, costs, self._extra, strict=True)
        ]
        value, choices = solve(problems)
        for extra, least in zip(self._extra, self._least, strict=True):
            value -= extra * least
        for kind, per_ns in self._time.items():
            value += float(per_ns.sum()) * self._grid.bucket_ns * self._fleet.devices[kind]
        value += self._load * sum(self._fleet.devices.values()) * self._length_ns
        value += self._page * (self._fleet.pages or 0) * self._length_ns
        self.values.append(value)
        return _Answer(prices, costs, choices)

    def _problem(self, stream: Stream, costs: Mapping[str, Sequence[Floats]], worth: float) -> Problem:
        """Return a model's problem; ``worth`` is what answering one of its requests counts."""
        requests = len(stream.arrival_ns)
        gains = np.full((requests, max(map(len, costs.values()))), -np.inf)
        for each in costs.values():
            for count, cost in enumerate(each, 1):
                gain = worth * count - cost
                gains[count - 1 :, count - 1] = np.maximum(gains[count - 1 :, count - 1], gain)
        hold = self._page * stream.pages
        # The first batch may begin as late as its deadline, and the last one end right after its arrival.
        slack_ns = float(np.max(stream.due_ns - stream.arrival_ns))
        enter = self._load * _load_ns(stream) - hold * slack_ns
        arrivals_ns = stream.arrival_ns.astype(float)
        return Problem(gains, arrivals_ns, float(self._grid.start_ns), hold, enter, stream.resident)

    def _used(self, answer: _Answer) -> dict[str, Floats]:
        """Return the devices of each kind that are used in each bucket."""
        used = {kind: np.zeros(self._grid.count) for kind in answer.prices}
        for windows, each, choice in zip(self._windows, answer.costs, answer.choices, strict=True):
            for count in np.unique(choice.batches[:, 1]).tolist():
                ends = choice.batches[choice.batches[:, 1] == count, 0] - (count - 1)
                costs = {kind: own[count - 1][ends] for kind, own in each.items() if len(own) >= count}
                cheapest = np.argmin(np.stack(list(costs.values())), axis=0)
                for place, kind in enumerate(costs):
                    rows = ends[cheapest == place]
                    if len(rows):
                        window = windows[kind][count - 1]
                        begins_ns = window.cheapest(answer.prices[kind], rows, self._rng)
                        used[kind] += self._grid.usage(begins_ns, window.duration_ns)
        return used

    def _charge_memory(self, choices: Sequence[Choice]) -> None:
        if self._fleet.pages is None:
            return
        offered = sum(len(stream.arrival_ns) for stream in self._streams)
        pages_ns, loads_ns = 0.0, 0.0
        for stream, choice in zip(self._streams, choices, strict=True):
            slack_ns = float(np.max(stream.due_ns - stream.arrival_ns))
            pages_ns += stream.pages * (choice.held_ns - choice.loads * slack_ns)
            loads_ns += choice.loads * _load_ns(stream)
        room_ns = self._fleet.pages * self._length_ns
        devices_ns = sum(self._fleet.devices.values()) * self._length_ns
        self._page = self._page_steps.taken(self._page, offered / room_ns, pages_ns / room_ns - 1)
        self._load = self._load_steps.taken(self._load, offered / devices_ns, loads_ns / devices_ns - 1)

    def _charge_floor(self, choices: Sequence[Choice]) -> None:
        """Raise the price of each stream that answers too few, and lower the others'."""
        if not any(self._least):
            return
        for place, choice in enumerate(choices):
            short = self._least[place] - float(choice.batches[:, 1].sum())
            over = short / len(self._streams[place].arrival_ns)
            self._extra[place] = self._extra_steps[place].taken(self._extra[place], _EXTRA_WORTH, over)


class _Steps:
    """Steps of one price that adapt to how far demand and supply are apart (AdaGrad).

    With a price that is a little too low models come and go with every request; a little higher, none does.
    """

    def __init__(self) -> None:
        self._squares = 0.0

    def taken(self, price: float, worth: float, over: float) -> float:
        """Return the price after a step; ``over`` is the demand beyond the supply, as a share of it."""
        self._squares += over * over
        return max(0.0, price + _MEMORY_STEP * worth * over / math.sqrt(max(self._squares, 1e-12)))


def _windows(stream: Stream, fleet: Fleet, grid: Grid) -> dict[str, list[Windows]]:
    """Return for each kind the windows of batches of 1, 2, ... requests."""
    due_ns = np.maximum.accumulate(stream.due_ns)
    found: dict[str, list[Windows]] = {}
    for kind in fleet.devices:
        table = stream.infer_ns[kind]
        found[kind] = []
        for count in range(1, min(max(table), len(due_ns)) + 1):
            duration_ns = min(ns for size, ns in table.items() if size >= count)
            first_ns = stream.arrival_ns[count - 1 :].astype(float)
            last_ns = due_ns[: len(due_ns) - count + 1].astype(float) - duration_ns
            found[kind].append(Windows(grid, first_ns, last_ns, duration_ns))
    return found


def _row_ns(streams: Sequence[Stream], kind: str) -> float:
    """Return the average request's time in its best batch."""
    best = [min(ns / size for size, ns in stream.infer_ns[kind].items()) for stream in streams]
    return float(np.average(best, weights=[len(stream.arrival_ns) for stream in streams]))


def _load_ns(stream: Stream) -> int:
    return min(stream.load_ns.values(), default=0)
