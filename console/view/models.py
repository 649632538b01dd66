"""Models, where each of them is, and what became of its requests lately."""

from __future__ import annotations

from collections import Counter, deque

from mainspring.console.view.requests import Request
from mainspring.messages.model import ModelSpec

PREPARING, FAILED, PREPARED, LOADING, RESIDENT, RELEASING, BROKEN = (
    "preparing",
    "failed",
    "prepared",
    "loading",
    "resident",
    "releasing",
    "broken",
)
"""Where a model is on a worker; one that the worker merely knows of has no `Placement`. BROKEN is like
FAILED, but prepared: LOADs failed again and again."""
READY = (PREPARED, LOADING, RESIDENT)
ARRIVED, IN_TIME, LATE, REJECTED, COLD, LOADS, EVICTIONS = range(7)
"""What is counted of each model: its requests, and how often it was loaded and gave its pages up."""
LATENCIES = 128
"""Of how many of its newest requests a model's latencies are remembered."""
SPAN_NS = 10_000_000_000
"""Old counts are dropped in steps of so much time."""


class Placement:
    """One model on one worker."""

    __slots__ = (
        "_states",
        "detail",
        "failures",
        "infers",
        "last_used_ns",
        "leaving",
        "model",
        "pages",
        "state",
    )

    def __init__(self, model: ModelState, state: str, states: Counter[str]) -> None:
        """``states`` counts the worker's placements by state."""
        self.model = model
        self.state = state
        self._states = states
        states[state] += 1
        self.pages: tuple[int, ...] = ()
        self.last_used_ns = 0
        """When an INFER or LOAD was last sent; 0 if that is not known."""
        self.detail = ""
        """Why it failed."""
        self.failures = 0
        """LOADs in a row that the engine could not do."""
        self.infers = 0
        """INFERs outstanding."""
        self.leaving = False
        """Whether the model was removed or replaced, and is only there until it is taken off."""

    def enter(self, state: str) -> None:
        """Note where the model is from now on."""
        self._states[self.state] -= 1
        self._states[state] += 1
        self.state = state


class ModelState:
    """One model."""

    __slots__ = (
        "counts",
        "demand",
        "last_load_ns",
        "latencies_ns",
        "name",
        "placements",
        "queued",
        "recent",
        "spec",
    )

    def __init__(self, name: str, spec: ModelSpec | None) -> None:
        self.name = name
        self.spec = spec
        """None if the stream never told of it."""
        self.placements: dict[str, Placement] = {}
        """By worker, without those that are leaving."""
        self.queued = 0
        """Requests that wait for an INFER."""
        self.counts = [0] * (EVICTIONS + 1)
        """Of the last minutes, as `ARRIVED` and so on say."""
        self.latencies_ns: deque[int] | None = None
        """Of its newest requests that were executed, the newest last; None before the first."""
        self.demand = 0
        """Arrivals in the last ten whole seconds."""
        self.recent: deque[Request] | None = None
        """Its newest requests, the newest last; None before the first."""
        self.last_load_ns: int | None = None
        """When its last LOAD was sent."""

    def where(self, *states: str) -> list[str]:
        """Return the workers on which it is in one of these states."""
        return [worker for worker, placement in self.placements.items() if placement.state in states]


class Counts:
    """Counts by model that are dropped again when they are old."""

    def __init__(self, span_ns: int, spans: int) -> None:
        """Count in steps of ``span_ns``, the one that is going on and so many before it."""
        self._span_ns = span_ns
        self._spans = spans
        self._number = -1
        self._old: deque[dict[ModelState, list[int]]] = deque()
        self._new: dict[ModelState, list[int]] = {}

    def add(self, model: ModelState, what: int) -> None:
        """Count one thing of a model."""
        model.counts[what] += 1
        counts = self._new.get(model)
        if counts is None:
            counts = self._new[model] = [0] * (EVICTIONS + 1)
        counts[what] += 1

    def reach(self, now_ns: int) -> None:
        """Drop what is old by now."""
        number = now_ns // self._span_ns
        if self._number < 0:
            self._number = number
        for _ in range(min(number - self._number, self._spans + 1)):
            self._old.append(self._new)
            self._new = {}
            if len(self._old) > self._spans:
                self._drop(self._old.popleft())
        self._number = max(self._number, number)

    @staticmethod
    def _drop(old: dict[ModelState, list[int]]) -> None:
        for model, counts in old.items():
            totals = model.counts
            for what, count in enumerate(counts):
                totals[what] -= count


class Demand:
    """Arrivals by model over the last ten whole seconds."""

    SECONDS = 10

    def __init__(self) -> None:
        self._old: deque[dict[ModelState, int]] = deque()
        self._new: dict[ModelState, int] = {}

    def add(self, model: ModelState) -> None:
        """Count an arrival."""
        self._new[model] = self._new.get(model, 0) + 1

    def pass_second(self) -> None:
        """A second has ended."""
        for model, count in self._new.items():
            model.demand += count
        self._old.append(self._new)
        self._new = {}
        if len(self._old) > self.SECONDS:
            for model, count in self._old.popleft().items():
                model.demand -= count
