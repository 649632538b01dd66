"""What is in a log: records by kind, and for each run its length, what was asked for and what became of it.

One pass in bounded memory: percentiles are right to 0.4 %.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from mainspring.messages.events import ModelAdded, RequestArrived, WorkerJoined
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.log import SegmentHeader
from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.telemetry.runs import Run, SliceNote, find_runs, read_run, slice_note


class RunStats(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a controller, as far as the log has it."""

    number: int
    run: int
    """`SegmentHeader.run`."""
    whole: bool
    """Whether it is there from its first record."""
    sliced: SliceNote | None
    """Where it was cut from, if it is a slice."""
    began: str
    """Local time."""
    seconds: float
    segments: int
    size_bytes: int
    policy: str
    records: dict[str, int]
    """By kind."""
    workers: dict[str, str]
    """Device kind of each worker that there ever was."""
    models: int
    """Models that were served at any time."""
    models_asked: int
    """Models that a request came for."""
    requests: int
    outcomes: dict[str, int]
    """``in_time`` (requests without a deadline too), ``late``, ``rejected``, ``cancelled``, and what had not
    ended: ``waiting``, ``running``."""
    rejected: dict[str, int]
    """By reason code."""
    cold: int
    """Requests that were executed and whose model was resident nowhere when they arrived."""
    offered_rps: float | None
    """Over the whole run; None if it has no length."""
    in_time_rps: float | None
    busiest_second: int
    """Most requests in one second of the run."""
    latency_p50_ms: float | None
    """From arrival at the controller to the end of EXEC, of what was executed; right to 0.4 %."""
    latency_p99_ms: float | None
    latency_p9999_ms: float | None
    actions: dict[str, dict[str, int]]
    """By kind and how they ended; ``outstanding`` if they had not."""


class LogStats(msgspec.Struct, frozen=True):
    """A whole log."""

    size_bytes: int
    segments: int
    records: int
    runs: list[RunStats]


def log_stats(directory: Path | str) -> LogStats:
    """Read a log; raises OSError if it can't be read, and `telemetry.runs.LogProblem` if it is none."""
    runs = [_RunReader(run).read() for run in find_runs(directory)]
    return LogStats(
        size_bytes=sum(run.size_bytes for run in runs),
        segments=sum(run.segments for run in runs),
        records=sum(sum(run.records.values()) for run in runs),
        runs=runs,
    )


class _RunReader:
    """One pass over a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._note: SliceNote | None = None
        self._records: Counter[type] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._actions: dict[str, Counter[str]] = {}
        self._latency = DurationHistogram()
        self._asked: Counter[str] = Counter()
        self._seconds: Counter[int] = Counter()
        self._models: dict[str, None] = {}
        self._workers: dict[str, str] = {}
        self._cold = 0
        self._lifecycles = Lifecycles(self._request, self._action)

    def read(self) -> RunStats:
        """Read every record once, one segment in memory at a time; OSError if one can't be read."""
        first_ns, seconds, asked = self._run.first_ns, self._seconds, self._asked
        for now_ns, entry in read_run(self._run):
            self._records[type(entry)] += 1
            if isinstance(entry, RequestArrived):
                seconds[(now_ns - first_ns) // 1_000_000_000] += 1
                asked[entry.model] += 1
            elif isinstance(entry, ModelAdded):
                self._models[entry.model.name] = None
            elif isinstance(entry, WorkerJoined):
                self._workers[entry.worker] = entry.device_kind
            elif isinstance(entry, SegmentHeader):
                self._note = self._note or slice_note(entry)
            self._lifecycles.take(now_ns, entry)
        self._lifecycles.finish()
        return self._finish()

    def _request(self, life: RequestLife) -> None:
        self._outcomes[life.outcome] += 1
        if life.outcome == "rejected":
            self._rejected[life.reason] += 1
        elif life.outcome in ("in_time", "late"):
            self._cold += life.cold
            assert life.ended_ns is not None, "what was executed has ended"
            self._latency.add(life.ended_ns - life.arrived_ns)

    def _action(self, life: ActionLife) -> None:
        self._actions.setdefault(life.kind, Counter())[life.status or "outstanding"] += 1

    def _finish(self) -> RunStats:
        run, requests = self._run, sum(self._asked.values())
        length_s = run.seconds if run.seconds > 0 else None
        return RunStats(
            number=run.number,
            run=run.id,
            whole=run.whole,
            sliced=self._note,
            began=run.wall(run.first_ns),
            seconds=run.seconds,
            segments=len(run.paths),
            size_bytes=run.size_bytes,
            policy=run.policy,
            records={kind.__name__: count for kind, count in self._records.most_common()},
            workers=dict(sorted(self._workers.items())),
            models=len(self._models),
            models_asked=len(self._asked),
            requests=requests,
            outcomes=dict(self._outcomes.most_common()),
            rejected=dict(self._rejected.most_common()),
            cold=self._cold,
            offered_rps=length_s and requests / length_s,
            in_time_rps=length_s and self._outcomes["in_time"] / length_s,
            busiest_second=max(self._seconds.values(), default=0),
            latency_p50_ms=self._latency.percentile_ms(50),
            latency_p99_ms=self._latency.percentile_ms(99),
            latency_p9999_ms=self._latency.percentile_ms(99.99),
            actions={kind: dict(ends.most_common()) for kind, ends in sorted(self._actions.items())},
        )
