"""The simulation of a recorded run's arrivals under other decisions, beside what did happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Command, Infer, Reject, Result
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, GatewayLeft, ModelAdded, RequestArrived, RequestCancelled
from mainspring.messages.ids import gateway_of
from mainspring.messages.targets import kind_of
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.bound.possible import in_time, possible
from mainspring.simulator.device import Preloaded
from mainspring.simulator.environment import NEVER_NS
from mainspring.simulator.recorded import Recording, recorded_arrivals
from mainspring.simulator.run import play
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.telemetry.log import read_log
from mainspring.telemetry.report import Possible, Summary
from mainspring.telemetry.summary import Analyser, Analysis
from mainspring.traces.records import FIRST_REASON, NO_DEADLINE, OUTPUTS, Columns, Records
from mainspring.traces.report import Progress, summarise
from mainspring.traces.source import OpenSource


@dataclass(frozen=True)
class Happened:
    """A run as its controller saw it."""

    summary: Summary
    analysis: Analysis
    records: Records
    early: tuple[int, ...] = ()
    """Keys of the requests that were refused early (`messages.evidence.Ahead`)."""


@dataclass(frozen=True)
class Hastiness:
    """The requests that were refused early in one run, and their outcomes in another."""

    refused: int
    """Requests with a deadline that were not answered in the first run."""
    early: int
    """Number of those that were refused early."""
    answered: int
    """Number of these that the other run answered in time."""
    gained: int
    """Net gain of requests answered in time in the other run; the others of ``answered`` took places."""

    def told(self) -> str:
        """Return it in a sentence."""
        share = f" ({self.answered / self.early:.1%})" if self.early else ""
        return (
            f"{self.early:,} of {self.refused:,} requests without an answer were refused early; "
            f"{self.answered:,} of them{share} are answered in time instead, and {self.gained:+,} in all"
        )


def hastiness(happened: Happened, instead: Happened) -> Hastiness:
    """Compare what was refused early in one run with another run of the same requests."""
    sent, replied = happened.records.columns()
    other_sent, other_replied = instead.records.columns()
    if len(sent) != len(other_sent):
        raise ValueError(f"{len(sent)} and {len(other_sent)} requests are not the same")
    first, second = _in_time(sent, replied), _in_time(other_sent, other_replied)
    early = list(happened.early)
    refused = (sent["slo_ns"] != NO_DEADLINE) & (replied["outcome"] >= FIRST_REASON)
    return Hastiness(
        int(refused.sum()), len(early), int(second[early].sum()), int(second.sum()) - int(first.sum())
    )


def _in_time(sent: Columns, replied: Columns) -> npt.NDArray[np.bool_]:
    took_ns = replied["replied_ns"] - sent["intended_ns"]
    answered: npt.NDArray[np.bool_] = (replied["outcome"] == OUTPUTS) & (took_ns <= sent["slo_ns"])
    return answered


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
    return Happened(summary, analyser.finish(), stream.records, tuple(stream.early))


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
        kind = kind_of(joined.device_kind, joined.targets)
        simulation.join(when_ns, joined.worker, kind, joined.pages, Preloaded(prepared, resident))
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
    return Happened(summary, analyser.finish(), stream.records, tuple(stream.early))


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
    workers = [
        (joined.worker, kind_of(joined.device_kind, joined.targets), joined.pages)
        for _, joined in recording.joins
    ]
    found = possible(happened.records, list(models.values()), workers, progress=progress)
    if found is None:
        return happened, instead
    reached = in_time(instead.records)
    found = msgspec.structs.replace(found, at_most=max(found.at_most, float(reached)))
    return _with(happened, found), _with(instead, msgspec.structs.replace(found, in_time=reached))


def _with(run: Happened, found: Possible) -> Happened:
    return replace(run, summary=msgspec.structs.replace(run.summary, possible=found))


def other_policy(
    recording: Recording,
    policy: str | None = None,
    options: Mapping[str, bool | int | float | str] | None = None,
    refuse_wrongly: float | None = None,
) -> SchedulerConfig:
    """Return the recorded configuration with another policy, or the same, and options of it.

    ``refuse_wrongly`` is as recorded if it is not given (`SchedulerConfig`). What is not among ``options`` is
    as recorded if the policy is the same, and its default otherwise.
    """
    recorded = recording.scheduler
    same = policy is None or policy == recorded.policy
    kept = recorded.policy_options if same else {}
    return msgspec.structs.replace(
        recorded,
        policy=policy or recorded.policy,
        policy_options={**kept, **(options or {})},
        refuse_wrongly=recorded.refuse_wrongly if refuse_wrongly is None else refuse_wrongly,
    )


class StreamRecords:
    """Takes every entry of an event log, or of a simulation's stream, in order: what became of each request.

    An answer's instant is when its INFER's result, or its rejection, passed the controller; clients and
    gateways are one way further.
    """

    def __init__(self) -> None:
        self.records = Records()
        self.start_ns = NEVER_NS
        """The first request's arrival, from which records count."""
        self.early: list[int] = []
        """Keys of the requests that were refused early."""
        self._open: dict[int, tuple[int, int, int | None]] = {}
        """Unanswered requests: (record's key, arrival, deadline)."""
        self._pieces: dict[int, list[int]] = {}
        """Pieces of each query."""
        self._infers: dict[int, tuple[int, Infer]] = {}
        """Outstanding INFERs, with the instant of sending."""

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Take one entry in."""
        if isinstance(entry, RequestArrived):
            self._arrived(now_ns, entry)
        elif isinstance(entry, Infer):
            self._infers[entry.action_id] = (now_ns, entry)
        elif isinstance(entry, Result):
            self._result(now_ns, entry)
        elif isinstance(entry, Reject):
            if entry.request_id in self._open and entry.evidence is not None and entry.evidence.ahead:
                self.early.append(self._open[entry.request_id][0])
            for each in self._pieces.pop(entry.request_id, [entry.request_id]):
                self._error(now_ns, each, entry.reason)
        elif isinstance(entry, RequestCancelled):
            for each in self._pieces.pop(entry.request_id, [entry.request_id]):
                self._error(now_ns, each, Reason.CANCELLED)
        elif isinstance(entry, GatewayLeft):
            gone = [request_id for request_id in self._open if gateway_of(request_id) == entry.number]
            for request_id in gone:
                self._error(now_ns, request_id, Reason.CANCELLED)

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        self.start_ns = min(self.start_ns, now_ns)
        since_ns = now_ns - self.start_ns
        slo_ns = None if event.deadline_ns is None else event.deadline_ns - now_ns
        key = self.records.sent(since_ns, since_ns, event.model, event.rows, slo_ns)
        self._open[event.request_id] = (key, now_ns, event.deadline_ns)
        if event.query:
            self._pieces.setdefault(event.query, []).append(event.request_id)

    def _result(self, now_ns: int, result: Result) -> None:
        sent_ns, action = self._infers.pop(result.action_id, (0, None))
        if action is None or result.status is not Status.OK:
            return
        for request_id, cold in zip(action.request_ids, action.cold, strict=True):
            known = self._open.pop(request_id, None)
            if known is not None:
                key, arrived_ns, deadline_ns = known
                left_ns = None if deadline_ns is None else deadline_ns - now_ns
                queue_ns, execute_ns = sent_ns - arrived_ns, result.end_ns - result.begin_ns
                timing = Timing(
                    now_ns - arrived_ns, queue_ns, execute_ns, left_ns, action.batch_size, cold, action.worker
                )
                self.records.outputs(key, now_ns - self.start_ns, timing)

    def _error(self, now_ns: int, request_id: int, reason: Reason) -> None:
        known = self._open.pop(request_id, None)
        if known is not None:
            self.records.error(known[0], now_ns - self.start_ns, reason)
