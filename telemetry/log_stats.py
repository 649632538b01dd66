"""The contents of a log: records by kind, and for each run, or a part of one, its requests and actions.

A part has the requests that arrived in it and the actions that were sent in it, with their ends, which may be
later. One pass in bounded memory: percentiles are right to 0.4 %.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from mainspring.messages.actions import Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, RequestArrived, WorkerJoined
from mainspring.telemetry.entries import Entry, SegmentHeader
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.telemetry.runs import Run, SliceNote, find_runs, read_run, slice_note


class ModelStats(msgspec.Struct, frozen=True):
    """The requests for one model."""

    requests: int
    outcomes: dict[str, int]
    """Same as `RunStats.outcomes`, for this model."""
    latency_p50_ms: float | None
    """Same as `RunStats.latency_p50_ms`, for this model."""
    latency_p99_ms: float | None


class Parts(msgspec.Struct, frozen=True):
    """Durations of INFERs or LOADs that ended well; percentiles 50, 99 and 99.99, right to 0.4 %."""

    device_ms: tuple[float, float, float]
    """The device's part, by its own clock."""
    host_ms: tuple[float, float, float]
    """The rest, in which the host begins them and notices their ends."""
    longer_ms: tuple[float, float, float]
    """Time by which both together took longer than predicted; 0 where they did not."""
    longest: Longest


class Longest(msgspec.Struct, frozen=True):
    """The action that took longer than predicted by the most."""

    action_id: int
    model: str
    longer_ms: float
    device_ms: float
    host_ms: float


class RunStats(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a controller, or a part of it, as far as the log has it."""

    number: int
    run: int
    """`SegmentHeader.run`."""
    whole: bool
    """True if the log has the run from its first record."""
    sliced: SliceNote | None
    """Origin of the run, if it is a slice."""
    began: str
    """Local time."""
    seconds: float
    part_begins_s: float | None
    """Begin of the part that these numbers are about, in seconds of the run; None: they are about all."""
    segments: int
    """Number of segments of the whole run."""
    size_bytes: int
    """Size of the whole run, in bytes."""
    policy: str
    records: dict[str, int]
    """Number of records of each kind."""
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
    """Number of rejected requests, by reason code."""
    cold: int
    """Requests that were executed and whose model was resident nowhere when they arrived."""
    offered_rps: float | None
    """Requests a second; None if the run has no length."""
    in_time_rps: float | None
    busiest_second: int
    """Most requests in one second of the run."""
    latency_p50_ms: float | None
    """Latency from arrival at the controller to EXEC's end, of executed requests; right to 0.4 %."""
    latency_p99_ms: float | None
    latency_p9999_ms: float | None
    actions: dict[str, dict[str, int]]
    """Number of actions by kind and by how they ended; ``outstanding`` if they had not."""
    parts: dict[str, Parts]
    """Durations of actions whose device's part is known, by kind."""
    by_model: dict[str, ModelStats]
    """Requests of each model that one came for, the model with the longest p99 first."""


class LogStats(msgspec.Struct, frozen=True):
    """A whole log."""

    size_bytes: int
    segments: int
    records: int
    runs: list[RunStats]


def log_stats(directory: Path | str, part: tuple[Run, int, int] | None = None) -> LogStats:
    """Read a log's runs, or a ``part`` alone: a run and ``from_ns <= instant < to_ns`` of it.

    Raises OSError if the log can't be read, and `telemetry.runs.LogProblem` if the folder holds none.
    """
    if part is None:
        runs = [_RunReader(run, run.first_ns, run.last_ns + 1).read() for run in find_runs(directory)]
    else:
        runs = [_RunReader(*part).read()]
    return LogStats(
        size_bytes=sum(run.size_bytes for run in runs),
        segments=sum(run.segments for run in runs),
        records=sum(sum(run.records.values()) for run in runs),
        runs=runs,
    )


class _Model:
    """Counts of one model."""

    __slots__ = ("latency", "outcomes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.outcomes: Counter[str] = Counter()
        self.latency = DurationHistogram()

    def stats(self) -> ModelStats:
        """Return what was counted."""
        p50_ms, p99_ms = self.latency.percentile_ms(50), self.latency.percentile_ms(99)
        return ModelStats(self.requests, dict(self.outcomes.most_common()), p50_ms, p99_ms)


class _Durations:
    """The durations of actions of one kind."""

    __slots__ = ("_longest", "device", "host", "longer")

    def __init__(self) -> None:
        self.device, self.host, self.longer = (DurationHistogram() for _ in range(3))
        self._longest: Longest | None = None

    def add(self, action: Infer | Load, result: Result) -> None:
        """Count one that ended well."""
        duration_ns = result.end_ns - result.begin_ns
        host_ns = max(0, duration_ns - result.device_ns)
        longer_ns = duration_ns - action.predicted_duration_ns
        self.device.add(result.device_ns)
        self.host.add(host_ns)
        self.longer.add(longer_ns)
        if self._longest is None or longer_ns / 1e6 > self._longest.longer_ms:
            in_ms = (longer_ns / 1e6, result.device_ns / 1e6, host_ns / 1e6)
            self._longest = Longest(action.action_id, action.model, *in_ms)

    def parts(self) -> Parts:
        """Return what was counted."""
        assert self._longest is not None, "one was counted"
        return Parts(_three(self.device), _three(self.host), _three(self.longer), self._longest)


def _three(counted: DurationHistogram) -> tuple[float, float, float]:
    p50_ms, p99_ms, p9999_ms = (counted.percentile_ms(percent) or 0.0 for percent in (50, 99, 99.99))
    return p50_ms, p99_ms, p9999_ms


class _RunReader:
    """One pass over a run."""

    def __init__(self, run: Run, from_ns: int, to_ns: int) -> None:
        self._run = run
        self._from_ns = from_ns
        self._to_ns = to_ns
        self._part = from_ns > run.first_ns or to_ns <= run.last_ns
        self._note: SliceNote | None = None
        self._records: Counter[type] = Counter()
        self._rejected: Counter[str] = Counter()
        self._actions: dict[str, Counter[str]] = {}
        self._durations: dict[str, _Durations] = {}
        self._latency = DurationHistogram()
        self._seconds: Counter[int] = Counter()
        self._asked: dict[str, _Model] = {}
        self._served: dict[str, None] = {}
        self._workers: dict[str, str] = {}
        self._cold = 0
        self._lifecycles = Lifecycles(self._request, self._action)

    def read(self) -> RunStats:
        """Read every record once, one segment in memory at a time; OSError if one can't be read."""
        lives = self._lifecycles
        for now_ns, entry in read_run(self._run):
            if isinstance(entry, SegmentHeader):
                self._note = self._note or slice_note(entry)
            elif now_ns >= self._to_ns and not lives.awaits(self._to_ns):
                break
            if not self._part or self._from_ns <= now_ns < self._to_ns:
                self._count(now_ns, entry)
            lives.take(now_ns, entry)
            if isinstance(entry, WorkerJoined) and now_ns < self._to_ns:
                self._workers[entry.worker] = entry.device_kind
            elif isinstance(entry, ModelAdded) and now_ns < self._to_ns:
                self._served[entry.model.name] = None
        lives.finish()
        return self._finish()

    def _count(self, now_ns: int, entry: Entry) -> None:
        self._records[type(entry)] += 1
        if isinstance(entry, RequestArrived) and now_ns >= self._from_ns:
            self._seconds[(now_ns - self._from_ns) // 1_000_000_000] += 1
            self._model(entry.model).requests += 1

    def _model(self, name: str) -> _Model:
        model = self._asked.get(name)
        if model is None:
            model = self._asked[name] = _Model()
        return model

    def _request(self, life: RequestLife) -> None:
        if not self._from_ns <= life.arrived_ns < self._to_ns:
            return
        model = self._model(life.request.model)
        model.outcomes[life.outcome] += 1
        if life.outcome == "rejected":
            self._rejected[life.reason] += 1
        elif life.outcome in ("in_time", "late"):
            self._cold += life.cold
            assert life.ended_ns is not None, "a request that was executed has ended"
            self._latency.add(life.ended_ns - life.arrived_ns)
            model.latency.add(life.ended_ns - life.arrived_ns)

    def _action(self, life: ActionLife) -> None:
        if self._from_ns <= life.sent_ns < self._to_ns:
            self._actions.setdefault(life.kind, Counter())[life.status or "outstanding"] += 1
            action, result = life.action, life.result
            if result is None or result.status is not Status.OK or not result.device_ns:
                return
            if isinstance(action, Infer | Load):
                self._durations.setdefault(life.kind, _Durations()).add(action, result)

    def _finish(self) -> RunStats:
        run, requests = self._run, sum(model.requests for model in self._asked.values())
        seconds = (self._to_ns - self._from_ns) / 1e9 if self._part else run.seconds
        length_s = seconds if seconds > 0 else None
        outcomes = sum((model.outcomes for model in self._asked.values()), Counter[str]())
        by_model = {name: model.stats() for name, model in self._asked.items()}
        slowest = sorted(by_model.items(), key=lambda each: -(each[1].latency_p99_ms or 0.0))
        return RunStats(
            number=run.number,
            run=run.id,
            whole=run.whole,
            sliced=self._note,
            began=run.wall(self._from_ns),
            seconds=seconds,
            part_begins_s=(self._from_ns - run.first_ns) / 1e9 if self._part else None,
            segments=len(run.paths),
            size_bytes=run.size_bytes,
            policy=run.policy,
            records={kind.__name__: count for kind, count in self._records.most_common()},
            workers=dict(sorted(self._workers.items())),
            models=len(self._served),
            models_asked=len(self._asked),
            requests=requests,
            outcomes=dict(outcomes.most_common()),
            rejected=dict(self._rejected.most_common()),
            cold=self._cold,
            offered_rps=length_s and requests / length_s,
            in_time_rps=length_s and outcomes["in_time"] / length_s,
            busiest_second=max(self._seconds.values(), default=0),
            latency_p50_ms=self._latency.percentile_ms(50),
            latency_p99_ms=self._latency.percentile_ms(99),
            latency_p9999_ms=self._latency.percentile_ms(99.99),
            actions={kind: dict(ends.most_common()) for kind, ends in sorted(self._actions.items())},
            parts={kind: durations.parts() for kind, durations in sorted(self._durations.items())},
            by_model=dict(slowest),
        )
