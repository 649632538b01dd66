"""The cluster on which a log was recorded, as the log has it: enough to simulate it under other decisions.

Durations are those that were measured: the median for each executable, batch size and kind of device, and how
far measurements are spread around it. What was never measured keeps its profile, corrected by as much as
what was measured was off. A batch of a model with open dimensions counts by how far it was off what the
profile says of its sizes, which moves what the profile says of all others of that batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from mainspring.messages.actions import Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.curve import Curve
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import ModelSpec, Profile
from mainspring.messages.targets import built_for, each_build
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.redecide import LogError, configuration, lacks_start
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import read_entries, read_log
from mainspring.telemetry.runs import slice_note
from mainspring.traces.arrival import Arrival

FOREVER_NS = 1 << 60
"""Time for which a worker stays away that did not come back."""
LEAD_NS = 1_000_000
"""Time by which the simulation begins before the log, so that the log's first record lies in the future."""
STANDSTILL_FACTOR = 5
STANDSTILL_NS = 200_000_000
"""An action that takes so many times as long as the median, and longer by this, stood still for a while."""

Key = tuple[str, str, int]
"""(kind of device, executable, batch size, or 0 for a LOAD)"""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and its workload as recorded; instants count from `start_ns`."""

    log: Path
    start_ns: int
    """Instant 0 on the controller's clock."""
    end_ns: int
    """The last arrival."""
    scheduler: SchedulerConfig
    models: tuple[ModelSpec, ...]
    """Models at the beginning, with measured durations."""
    joins: tuple[tuple[int, WorkerJoined], ...]
    """Workers' first joins, with their instants."""
    crashes: tuple[tuple[int, str, int], ...]
    """(instant, worker, down time) of workers that left and stayed away or came back with nothing, as in
    `Faults.crashes`."""
    session_losses: tuple[tuple[int, str, int], ...]
    """(instant, worker, time away) of workers that came back with what they held, as in
    `Faults.session_losses`."""
    changes: tuple[tuple[int, Event], ...]
    """Models that came, with measured durations too, and went later."""
    delay_ns: int
    """Median time from an action's end to its result at the controller."""
    duration_jitter: float
    """Standard deviation of the logarithm of durations over their medians, without the outermost 1 %."""
    requests: int
    stalls: int = 0
    """Number of times that a worker stood still: it was silent and came back with what it held, or an action
    took far longer than others of its kind. The simulation has no such pause."""


def read_recording(log: Path) -> Recording:
    """Read the log's last run; raise OSError if it can't be read, and `LogError` if it has no such run."""
    reader = _Reader()
    empty = True
    for now_ns, entry in read_entries(log, last_run=True):
        empty = False
        if not isinstance(entry, SegmentHeader):
            reader.take(now_ns, entry)
        elif entry.first_of_run or (reader.scheduler is None and slice_note(entry) is not None):
            # A slice begins with a picture of the cluster, which is as good as a run's beginning here.
            reader.scheduler = configuration(entry)
    if empty:
        raise LogError(f"{log} holds no event: it is not a log of a controller")
    if reader.scheduler is None:
        raise LogError(lacks_start(log))
    if not reader.requests:
        raise LogError(f"{log} has no request, so there is nothing to simulate")
    return reader.finish(log, reader.scheduler)


def recorded_arrivals(recording: Recording) -> Iterator[Arrival]:
    """Yield the arrivals, so that each reaches the controller at its recorded instant."""
    for now_ns, entry in read_log(recording.log, last_run=True):
        if isinstance(entry, RequestArrived):
            at_ns = max(0, now_ns - recording.start_ns - recording.delay_ns)
            slo_ns = None
            if entry.deadline_ns is not None:
                slo_ns = max(1, entry.deadline_ns - recording.start_ns - at_ns)
            more = entry.sizes, 0, entry.priority, entry.tenant
            yield Arrival(at_ns, entry.model, entry.rows, slo_ns, -1, *more)


class _Reader:
    """One pass over a run."""

    def __init__(self) -> None:
        self.scheduler: SchedulerConfig | None = None
        self.requests = 0
        self._start_ns = self._end_ns = 0
        self._models: dict[str, ModelSpec] = {}
        self._every: dict[str, ModelSpec] = {}
        self._joins: dict[str, tuple[int, WorkerJoined]] = {}
        self._left: dict[str, int] = {}
        self._crashes: list[tuple[int, str, int]] = []
        self._losses: list[tuple[int, str, int]] = []
        self._changes: list[tuple[int, Event]] = []
        self._open: dict[int, Infer | Load] = {}
        self._durations: dict[Key, list[int]] = {}
        self._delays: list[int] = []
        self._curves: dict[tuple[str, str], Curve] = {}
        """Curves by kind of device and model."""

    def take(self, now_ns: int, entry: object) -> None:
        """Enter the next event or command; time counts from `LEAD_NS` before the first one."""
        if not self._start_ns:
            self._start_ns = now_ns - LEAD_NS
        at_ns = now_ns - self._start_ns
        match entry:
            case RequestArrived():
                self.requests += 1
                self._end_ns = at_ns
            case Infer() | Load():
                self._open[entry.action_id] = entry
            case Result():
                self._result(now_ns, entry)
            case ModelAdded(model=spec):
                self._every[spec.name] = spec
                if self.requests:
                    self._changes.append((at_ns, entry))
                else:
                    self._models[spec.name] = spec
            case ModelRemoved(name=name) if not self.requests:
                self._models.pop(name, None)
            case ModelRemoved() | OperatorAsked():
                self._changes.append((at_ns, entry))
            case WorkerJoined(worker=name):
                if name in self._left:
                    left_ns = self._left.pop(name)
                    # A process that has restarted has prepared nothing yet.
                    lost = self._losses if entry.prepared or entry.resident else self._crashes
                    lost.append((left_ns, name, max(1, at_ns - left_ns)))
                self._joins.setdefault(name, (at_ns, entry))
            case WorkerLeft(worker=name):
                self._left[name] = at_ns

    def finish(self, log: Path, scheduler: SchedulerConfig) -> Recording:
        """Return what was taken: durations are medians, and workers that left stay away."""
        self._crashes += [(left_ns, name, FOREVER_NS) for name, left_ns in self._left.items()]
        medians = {key: int(np.median(values)) for key, values in self._durations.items()}
        ratios = [np.array(values) / medians[key] for key, values in self._durations.items()]
        logs = np.log(np.concatenate(ratios)) if ratios else np.zeros(1)
        low, high = np.percentile(logs, [0.5, 99.5])
        return Recording(
            log=log,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            scheduler=scheduler,
            models=tuple(self._measured(spec, medians) for spec in self._models.values()),
            joins=tuple(self._joins.values()),
            crashes=tuple(sorted(self._crashes)),
            session_losses=tuple(sorted(self._losses)),
            changes=tuple((at_ns, self._change(event, medians)) for at_ns, event in self._changes),
            delay_ns=int(np.median(self._delays)) if self._delays else 0,
            duration_jitter=float(np.std(logs[(logs >= low) & (logs <= high)])),
            requests=self.requests,
            stalls=len(self._losses) + self._standstills(medians),
        )

    def _standstills(self, medians: dict[Key, int]) -> int:
        """Return how many actions took far longer than the median of their kind."""
        return sum(
            duration_ns > STANDSTILL_FACTOR * medians[key] and duration_ns - medians[key] > STANDSTILL_NS
            for key, values in self._durations.items()
            for duration_ns in values
        )

    def _result(self, now_ns: int, result: Result) -> None:
        action = self._open.pop(result.action_id, None)
        if action is None or result.status is not Status.OK or action.worker not in self._joins:
            return
        spec = self._every.get(action.model)
        if spec is not None:
            joined = self._joins[action.worker][1]
            kind, spec = joined.device_kind, built_for(spec, joined.targets)
            size = action.batch_size if isinstance(action, Infer) else 0
            key = (kind, spec.executable if size else spec.stored_name, size)
            duration_ns = max(1, result.end_ns - result.begin_ns)
            if isinstance(action, Infer) and action.sizes:
                duration_ns = self._at_limits_ns(spec, kind, action, duration_ns)
            self._durations.setdefault(key, []).append(duration_ns)
            self._delays.append(max(0, now_ns - result.end_ns))

    def _at_limits_ns(self, spec: ModelSpec, kind: str, action: Infer, duration_ns: int) -> int:
        """Return what a batch would have taken at the limits of its model's symbols, by its profile."""
        profile = spec.profiles.get(kind)
        if profile is None or action.batch_size not in profile.infer_ns:
            return duration_ns
        curve = self._curves.get((kind, spec.name))
        if curve is None or curve.profile is not profile:
            curve = self._curves[kind, spec.name] = Curve(spec, profile)
        at_sizes_ns = curve.share(action.batch_size, action.sizes)[0]
        return max(1, duration_ns * profile.infer_ns[action.batch_size] // at_sizes_ns)

    def _change(self, event: Event, medians: dict[Key, int]) -> Event:
        return ModelAdded(self._measured(event.model, medians)) if isinstance(event, ModelAdded) else event

    def _measured(self, spec: ModelSpec, medians: dict[Key, int]) -> ModelSpec:
        """Return a model whose artifacts have measured durations for every kind of device of the run."""
        kinds = dict.fromkeys(event.device_kind for _, event in self._joins.values())
        profiles = [{kind: self._profile(each, kind, medians) for kind in kinds} for each in each_build(spec)]
        others = [
            msgspec.structs.replace(build, profiles=own)
            for build, own in zip(spec.others, profiles[1:], strict=True)
        ]
        return msgspec.structs.replace(spec, profiles=profiles[0], others=tuple(others))

    def _profile(self, spec: ModelSpec, kind: str, medians: dict[Key, int]) -> Profile:
        seed = spec.profiles.get(kind) or next(iter(spec.profiles.values()), Profile({}, 1))
        known = {size: medians.get((kind, spec.executable, size)) for size in spec.batch_sizes}
        seeds = seed.infer_ns
        off = [value / seeds[size] for size, value in known.items() if value and seeds.get(size)]
        factor = float(np.median(off)) if off else 1.0
        infer_ns = {
            size: value or max(1, round(seeds.get(size, 1) * factor)) for size, value in known.items()
        }
        shaped = {
            bucket: {size: max(1, round(ns * infer_ns[size] / seeds[size])) for size, ns in each.items()}
            for bucket, each in seed.shaped.items()
        }
        load_ns = medians.get((kind, spec.stored_name, 0), max(1, seed.load_ns))
        return msgspec.structs.replace(seed, infer_ns=infer_ns, load_ns=load_ns, shaped=shaped)
