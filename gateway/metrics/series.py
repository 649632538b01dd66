"""Counts of the requests under one label, and Prometheus' text format 0.0.4: families as lines. Pure.

The text is written here because a scrape of fifty models has nine thousand lines, in the thread that keeps
deadlines: prometheus-client takes ten microseconds for a line, this half a one. Its parser reads all of it in
the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from mainspring.messages.clients import StepTiming
from mainspring.messages.codes import Reason
from mainspring.telemetry.bounded import LATENCY_BOUNDS_NS, SLACK_BOUNDS_NS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escape(value: str) -> str:
    """Return a label's value as it stands between quotation marks."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels(**values: str) -> str:
    """Return labels as they stand between braces; those without a value are left out, which is the same."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in values.items() if value)


def head(name: str, kind: str, meaning: str) -> str:
    """Return the first lines of a family: ``kind`` is counter, gauge, histogram or untyped."""
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def sample(name: str, own: str, value: float) -> str:
    """Return one line; ``own`` are its labels."""
    return f"{name}{{{own}}} {value!r}\n" if own else f"{name} {value!r}\n"


def family(name: str, kind: str, meaning: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Yield a family of counters or gauges, each given as its labels and value; nothing without samples."""
    begun = False
    for own, value in samples:
        if not begun:
            yield head(name, kind, meaning)
            begun = True
        yield sample(name, own, value)


class Buckets:
    """The bounds of a histogram, made ready for many label sets."""

    def __init__(self, bounds: Iterable[int], unit: float) -> None:
        """``unit``: how many of the bounds' units make one of the metric's, 1e9 for seconds."""
        bounds = tuple(bounds)
        self._unit = unit
        self._ends = [f'le="{bound / unit!r}"}} ' for bound in bounds] + ['le="+Inf"} ']
        self._sums = bounds[0] >= 0

    def lines(self, name: str, own: str, counts: Iterable[int], total: int) -> str:
        """Return a histogram's lines for one label set; ``total`` is the sum of its observations.

        One with negative bounds has no sum: that of such observations can fall, which a counter may not.
        """
        begin = f"{name}_bucket{{{own}," if own else f"{name}_bucket{{"
        running = list(accumulate(counts))
        parts = [f"{begin}{end}{count}\n" for end, count in zip(self._ends, running, strict=True)]
        if self._sums:
            parts.append(sample(f"{name}_sum", own, total / self._unit))
        parts.append(sample(f"{name}_count", own, running[-1]))
        return "".join(parts)


CLIENTS_DOING = frozenset(
    {
        Reason.UNKNOWN_MODEL,
        Reason.BAD_INPUT,
        Reason.BAD_OUTPUT,
        Reason.BAD_SLO,
        Reason.TOO_MANY_ROWS,
        Reason.UNKNOWN_SEQUENCE,
        Reason.DUPLICATE_KEY,
        Reason.BAD_MESSAGE,
        Reason.CANCELLED,
        Reason.UNAUTHENTICATED,
        Reason.FORBIDDEN,
        Reason.RATE_LIMITED,
        Reason.OVER_SHARE,
    }
)
"""Reasons that lie with the client: such a request says nothing of whether deadlines are kept."""


class StepCounts:
    """Counters of one step of a graph, of answers."""

    __slots__ = ("execution_ns", "members", "missing", "queue_ns", "rows", "run", "skipped", "whole_ns")

    def __init__(self) -> None:
        self.run = self.skipped = self.missing = 0
        self.rows = self.whole_ns = self.queue_ns = self.execution_ns = 0
        self.members: Counter[str] = Counter()
        """Answers of each member of a family."""

    def count(self, step: StepTiming) -> None:
        """Count what a step came to in one answer."""
        if step.missing:
            self.missing += 1
        elif not step.rows:
            self.skipped += 1
        else:
            self.run += 1
            self.rows += step.rows
            if step.model:
                self.members[step.model] += 1
            self.whole_ns += step.end_ns - step.begin_ns
            self.queue_ns += step.queue_ns
            self.execution_ns += step.execute_ns


class Series:
    """Counters that only grow."""

    __slots__ = (
        "best_effort",
        "cold",
        "execution",
        "executions",
        "hit_ns",
        "hits",
        "in_time",
        "input_ns",
        "latency",
        "miss_ns",
        "misses",
        "output_ns",
        "queue",
        "rejected",
        "rows",
        "slack",
        "steps",
        "with_slo",
    )

    def __init__(self) -> None:
        self.latency = Histogram(LATENCY_BOUNDS_NS)
        """Time from arrival to reply, of every request that got outputs."""
        self.queue = Histogram(LATENCY_BOUNDS_NS)
        """Waiting for a dispatch and then for EXEC; not of cached outputs."""
        self.execution = Histogram(LATENCY_BOUNDS_NS)
        """EXEC of the batch that the request was in; not of cached outputs."""
        self.slack = Histogram(SLACK_BOUNDS_NS)
        """Time left to the deadline when the reply left."""
        self.rows = 0
        self.executions = 0
        self.input_ns = 0
        self.output_ns = 0
        self.cold = 0
        self.with_slo = 0
        """Requests with a deadline that ended for a reason of the server's, not of the client's."""
        self.in_time = 0
        """Number of these that were answered in time."""
        self.best_effort = 0
        """Requests without a deadline that got outputs."""
        self.hits = self.hit_ns = 0
        """Requests that the prediction cache answered, and the time that it took for them."""
        self.misses = self.miss_ns = 0
        """Requests that it could not answer, and the time of looking them up and of storing their outputs."""
        self.rejected: Counter[Reason] = Counter()
        self.steps: dict[str, StepCounts] = {}
        """Series of a graph's steps, by the step's name."""

    def answered(self, total_ns: int, left_ns: int | None) -> None:
        """Count a request that got outputs."""
        self.latency.observe(total_ns)
        if left_ns is None:
            self.best_effort += 1
            return
        self.slack.observe(left_ns)
        self.with_slo += 1
        if left_ns >= 0:
            self.in_time += 1

    def step(self, step: StepTiming) -> None:
        """Count a step of an answer of a graph."""
        counts = self.steps.get(step.name)
        if counts is None:
            counts = self.steps[step.name] = StepCounts()
        counts.count(step)

    def missed(self, cache_ns: int) -> None:
        """Count a request that ended and that the prediction cache could not answer."""
        self.misses += 1
        self.miss_ns += cache_ns

    def refused(self, reason: Reason, has_deadline: bool) -> None:
        """Count a request that got a reason instead."""
        self.rejected[reason] += 1
        if has_deadline and reason not in CLIENTS_DOING:
            self.with_slo += 1

    @property
    def late(self) -> int:
        """Requests that got outputs after their deadline."""
        return self.slack.count - self.in_time
