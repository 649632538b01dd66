"""What would have happened: a recorded run's arrivals under other decisions, beside what did happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from mainspring.messages.events import ModelAdded
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.bound.possible import in_time, possible
from mainspring.simulator.device import Preloaded
from mainspring.simulator.faults import Faults
from mainspring.simulator.recorded import Recording, recorded_arrivals
from mainspring.simulator.run import play
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.stream import StreamRecords
from mainspring.telemetry.log import read_log
from mainspring.telemetry.report import Possible, Summary
from mainspring.telemetry.summary import Analyser, Analysis
from mainspring.traces.records import Records
from mainspring.traces.report import Progress, summarise
from mainspring.traces.source import OpenSource

Option = bool | int | float | str
"""What an option of a policy may be."""


@dataclass(frozen=True)
class Happened:
    """A run as its controller saw it."""

    summary: Summary
    analysis: Analysis
    records: Records


def what_happened(recording: Recording) -> Happened:
    """Return the report of the recorded run itself; raise OSError if the log can't be read."""
    stream = StreamRecords()
    for now_ns, entry in read_log(recording.log, last_run=True):
        stream.take(now_ns, entry)
    analyser = Analyser(stream.start_ns)
    for now_ns, entry in read_log(recording.log, last_run=True):
        analyser.take(now_ns, entry)
    notes = {"recorded": str(recording.log), "policy": recording.scheduler.policy}
    summary = summarise(stream.records, start_ns=stream.start_ns, notes=dict(notes))
    return Happened(summary, analyser.finish(), stream.records)


def what_if(
    recording: Recording,
    config: SchedulerConfig,
    *,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Happened:
    """Simulate a recorded run with another configuration of the scheduler."""
    began_s = time.perf_counter()
    stream, records = StreamRecords(), Records()
    analyser = Analyser()

    def record(now_ns: int, message: object) -> None:
        stream.take(now_ns, message)  # type: ignore[arg-type]
        analyser.take(now_ns, message)  # type: ignore[arg-type]

    simulation = Simulation(
        config,
        recording.models,
        [],
        seed=seed,
        faults=Faults(
            delay_ns=recording.delay_ns,
            duration_jitter=recording.duration_jitter,
            crashes=recording.crashes,
            session_losses=recording.session_losses,
            detection_ns=0,
        ),
        source=OpenSource(recorded_arrivals(recording)),
        records=records,
        record=record,
    )
    analyser.share(simulation.scheduler.cluster)
    specs = {spec.name: spec for spec in recording.models}
    for when_ns, joined in recording.joins:
        prepared = [specs[name] for name in joined.prepared if name in specs]
        resident = [specs[each.model] for each in joined.resident if each.model in specs]
        name, kind, pages = joined.worker, joined.device_kind, joined.pages
        simulation.join(when_ns, name, kind, pages, Preloaded(prepared, resident))
    for when_ns, event in recording.changes:
        simulation.feed(when_ns, event)
    notes: dict[str, str | int | float | bool | None] = {
        "simulated": True,
        "from_log": str(recording.log),
        "policy": config.policy,
        "ended": play(simulation, records, recording.end_ns, progress),
        "wall_s": round(time.perf_counter() - began_s, 3),
    }
    summary = summarise(stream.records, start_ns=stream.start_ns, notes=notes)
    return Happened(summary, analyser.finish(), stream.records)


def bounded(
    recording: Recording,
    happened: Happened,
    instead: Happened,
    progress: Callable[[float], None] | None = None,
) -> tuple[Happened, Happened]:
    """Return both runs with what was possible for their requests, which are the same.

    All workers and models of the recording count as there all the time, each duration as its median.
    """
    came = [event.model for _, event in recording.changes if isinstance(event, ModelAdded)]
    models = {spec.name: spec for spec in (*came, *recording.models)}
    workers = [(joined.worker, joined.device_kind, joined.pages) for _, joined in recording.joins]
    found = possible(happened.records, list(models.values()), workers, progress=progress)
    if found is None:
        return happened, instead
    reached = in_time(instead.records)
    found = msgspec.structs.replace(found, at_most=max(found.at_most, float(reached)))
    return _with(happened, found), _with(instead, msgspec.structs.replace(found, in_time=reached))


def _with(run: Happened, found: Possible) -> Happened:
    return replace(run, summary=msgspec.structs.replace(run.summary, possible=found))


def other_policy(
    recording: Recording, policy: str | None = None, options: Mapping[str, Option] | None = None
) -> SchedulerConfig:
    """Return the recorded configuration with another policy, or the same, and options of it.

    What is not among ``options`` is as recorded if the policy is the same, and its default otherwise.
    """
    recorded = recording.scheduler
    same = policy is None or policy == recorded.policy
    kept = recorded.policy_options if same else {}
    return msgspec.structs.replace(
        recorded, policy=policy or recorded.policy, policy_options={**kept, **(options or {})}
    )
