"""What would have happened: a recorded run's arrivals under other decisions, beside what did happen."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.device import Preloaded
from mainspring.simulator.faults import Faults
from mainspring.simulator.recorded import Recording, recorded_arrivals
from mainspring.simulator.run import play
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.stream import StreamRecords
from mainspring.telemetry.log import read_log
from mainspring.telemetry.report import Summary
from mainspring.telemetry.summary import Analyser, Analysis
from mainspring.traces.progress import Progress
from mainspring.traces.records import Records
from mainspring.traces.report import summarise
from mainspring.traces.source import OpenSource


class Happened(msgspec.Struct, frozen=True):
    """A run as its controller saw it."""

    summary: Summary
    analysis: Analysis


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
    return Happened(summary, analyser.finish())


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
            detection_ns=0,
        ),
        source=OpenSource(recorded_arrivals(recording)),
        records=records,
        record=record,
    )
    specs = {spec.name: spec for spec in recording.models}
    for when_ns, joined in recording.joins:
        prepared = [specs[name] for name in joined.prepared if name in specs]
        resident = [specs[each.model] for each in joined.resident if each.model in specs]
        held = Preloaded(prepared, resident)
        simulation.join(when_ns, joined.worker, joined.device_kind, joined.pages, held)
    for when_ns, event in recording.changes:
        simulation.feed(when_ns, event)
    ended = play(simulation, records, recording.end_ns, progress)
    notes: dict[str, str | int | float | bool | None] = {
        "simulated": True,
        "from_log": str(recording.log),
        "policy": config.policy,
        "ended": ended,
        "wall_s": round(time.perf_counter() - began_s, 3),
    }
    return Happened(summarise(stream.records, start_ns=stream.start_ns, notes=notes), analyser.finish())


def other_policy(recording: Recording, policy: str) -> SchedulerConfig:
    """Return the recorded configuration with another policy, and that policy's own defaults."""
    same = policy == recording.scheduler.policy
    options = recording.scheduler.policy_options if same else {}
    return msgspec.structs.replace(recording.scheduler, policy=policy, policy_options=options)
