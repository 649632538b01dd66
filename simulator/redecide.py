"""A recorded run decided again: the same events to a fresh scheduler must bring the same commands out.

`telemetry.log` says why an event log holds all that this needs.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from mainspring.messages.actions import (
    Command,
    Doubted,
    DropWorker,
    Infer,
    Load,
    Note,
    Open,
    Prepare,
    Ranked,
    Reject,
    Release,
    Result,
    Timed,
    Unload,
    without_evidence,
)
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    GatewayRefused,
    ModelAdded,
    ModelRemoved,
    ModelRestored,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.operating import described
from mainspring.messages.scaling import Offer, Provide, ProviderLeft, ProviderSaid, Retain, Retire
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.entries import EVIDENCE, IN_PLACE, REFUSED_EARLY, SegmentHeader
from mainspring.telemetry.log import read_entries


def line(now_ns: int, message: Event | Command) -> str | None:
    """Return one message of the stream as a line; None for a wake-up, which says nothing."""
    if isinstance(message, Wakeup):
        return None
    text = _command(message)
    arrow = "<" if text is not None else ">"
    return f"{now_ns / 1e6:10.3f} {arrow} {text or _event(message)}"


def _command(message: Event | Command) -> str | None:
    match message:
        case Prepare():
            return f"PREPARE {message.action_id} {message.model.name} on {message.worker}"
        case Release():
            return f"RELEASE {message.action_id} {message.model} on {message.worker}"
        case Unload():
            return f"UNLOAD {message.action_id} {message.model} on {message.worker}"
        case Load():
            pages = " ".join(map(str, message.pages))
            where = f"{message.model} on {message.worker} pages [{pages}]"
            return f"LOAD {message.action_id} {where} {_window(message)}"
        case Open():
            return f"OPEN {message.action_id} {message.model} on {message.worker} {_window(message)}"
        case Infer():
            ids = " ".join(
                f"{request}{'*' if cold else ''}"
                for request, cold in zip(message.request_ids, message.cold, strict=True)
            )
            return (
                f"INFER {message.action_id} {message.model} on {message.worker} batch {message.batch_size} "
                f"requests [{ids}] {_window(message)}"
            )
        case Reject():
            finish_ns = message.earliest_finish_ns
            possible = "" if finish_ns is None else f"; earliest finish {finish_ns / 1e6:.3f}"
            return f"REJECT request {message.request_id} {message.reason.value}: {message.detail}{possible}"
        case DropWorker(to=to):
            return f"{'MOVE' if to else 'DROP'} {message.worker}: {message.reason}"
        case Ranked(due_ns=due_ns, turn_ns=turn_ns):
            rank = f"came {turn_ns / 1e6:.3f}" if due_ns is None else f"due {due_ns / 1e6:.3f}"
            return f"RANK request {message.request_id} as if it {rank}"
        case Doubted():
            return f"DOUBT the estimates of {message.model}"
        case Retire(worker=worker, drained=drained):
            return f"DRAIN {worker}, which is to leave" if drained else f"RETIRE {worker}"
        case Retain(worker=worker):
            return f"RETAIN {worker}"
        case Provide(provider=provider, kind=kind, workers=workers):
            return f"PROVIDE {kind} by {provider}: {' '.join(workers) or 'none'}"
        case _:
            return None


def _event(message: Event | Command) -> str:
    match message:
        case RequestArrived():
            due = (
                "best effort" if message.deadline_ns is None else f"deadline {message.deadline_ns / 1e6:.3f}"
            )
            return f"request {message.request_id} {message.model} rows {message.rows} {due}"
        case RequestCancelled():
            return f"cancel request {message.request_id}"
        case GatewayLeft():
            return f"gateway {message.number} left"
        case GatewayRefused():
            return f"{message.gateway} refused by itself {dict(sorted(message.requests.items()))}"
        case ModelAdded(model=spec):
            return f"model {spec.name} added, extents {list(spec.extents)}"
        case ModelRemoved():
            return f"model {message.name} removed"
        case ModelRestored():
            return f"the files of model {message.model} have changed for {message.worker}"
        case WorkerJoined():
            held = [resident.model for resident in message.resident]
            return f"{message.worker} joined, {message.pages} pages, resident {held}"
        case OperatorAsked():
            return f"{message.who} asked to {described(message.command)}"
        case WorkerLeft():
            return f"{message.worker} left: {message.reason}"
        case ProviderSaid():
            runs = "; ".join([_offer(each) for each in message.offers])
            return f"{message.provider} {'is there and ' if message.greets else ''}runs {runs or 'nothing'}"
        case ProviderLeft():
            return f"{message.provider} left: {message.reason}"
        case Result():
            detail = f" ({message.detail})" if message.detail else ""
            times = f"{message.begin_ns / 1e6:.3f} to {message.end_ns / 1e6:.3f}"
            return f"result {message.action_id} {message.status.value} {times}{detail}"
        case _:
            raise TypeError(f"no event: {message!r}")


def _offer(offer: Offer) -> str:
    fault = f" ({offer.fault})" if offer.fault else ""
    return f"{offer.kind}: {' '.join(offer.workers) or 'none'}{fault}"


def _window(action: Timed) -> str:
    return (
        f"window {action.earliest_ns / 1e6:.3f} to {action.latest_ns / 1e6:.3f}, predicted "
        f"{action.predicted_begin_ns / 1e6:.3f} + {action.predicted_duration_ns / 1e6:.3f}"
    )


CONTEXT_LINES = 12
"""Lines of the conversation that are told before the first difference."""


class LogError(ValueError):
    """A log can't be decided again; the text says why."""


class Difference(msgspec.Struct, frozen=True):
    """The first difference between a recorded run and its repetition."""

    command: int
    """Number of commands that were equal before it."""
    now_ns: int
    """The controller's clock."""
    recorded: str
    """Command that came out live; a text that says so if nothing did."""
    again: str
    before: tuple[str, ...]
    """The last lines of the conversation before it."""

    def story(self) -> str:
        """Return what a person needs to see."""
        lines = [f"after {self.command} equal commands, at {self.now_ns / 1e6:.3f} ms:"]
        lines += [f"    {each}" for each in self.before]
        return "\n".join([*lines, f"  recorded: {self.recorded}", f"  again:    {self.again}"])


class Redecision(msgspec.Struct, frozen=True):
    """The result of deciding a log again."""

    runs: int
    """Starts of a controller that the log holds from their beginning."""
    events: int
    commands: int
    """Commands that were compared."""
    difference: Difference | None
    passed_over: int = 0
    """Events of an older run whose beginning the log's bound had deleted."""


class _Run:
    """One run of a controller, decided again alongside the log."""

    def __init__(self, header: SegmentHeader) -> None:
        try:
            self._scheduler = Scheduler(configuration(header))
        except ValueError as error:
            raise LogError(str(error)) from None
        self._in_place = header.format >= IN_PLACE
        self._evident = header.format >= EVIDENCE
        self.expected: deque[Command] = deque()
        self.recent: deque[str] = deque(maxlen=CONTEXT_LINES)

    def take_event(self, now_ns: int, event: Event) -> None:
        """Give the scheduler an event; what it decides at a `Wakeup` is expected from the log next."""
        self._scheduler.handle(now_ns, event)
        commands: list[Command] = self._scheduler.taken() if self._in_place else []
        if isinstance(event, Wakeup):
            commands += self._scheduler.schedule(now_ns)
        else:
            self._note(now_ns, event)
        if not self._in_place:
            commands = [each for each in commands if not isinstance(each, Note)]
        if not self._evident:
            commands = list(map(without_evidence, commands))
        self.expected.extend(commands)

    def agrees(self, now_ns: int, command: Command) -> bool:
        """Return whether the log's command is the expected one; if so, go on to the one after it."""
        if not self.expected or self.expected[0] != command:
            return False
        self._note(now_ns, self.expected.popleft())
        return True

    def _note(self, now_ns: int, message: Event | Command) -> None:
        text = line(now_ns, message)
        if text is not None:
            self.recent.append(text)


def configuration(header: SegmentHeader) -> SchedulerConfig:
    """Return the scheduler's configuration of a run; raise `LogError` if there is none that is known."""
    try:
        recorded = dict(header.about["scheduler"])
        # Versions 1 to 4 refused nothing early; later ones said ``early``, ``last``, or nothing for a
        # policy's own way.
        refuse = recorded.pop("refuse", "early" if header.format >= REFUSED_EARLY else "last")
        if refuse != "early":
            recorded["refuse_wrongly"] = 0.0 if refuse == "last" else None
        return msgspec.convert(recorded, SchedulerConfig)
    except KeyError:
        raise LogError(
            "the log does not say how a scheduler was configured: it is not a controller's"
        ) from None
    except ValueError as error:
        raise LogError(f"the log has no configuration that this version knows: {error}") from None


def redecide(log: Path | str) -> Redecision:
    """Decide a log again up to the first difference, from the first run on that it holds from its beginning.

    Raises OSError if it can't be read, and `LogError` if it holds no such run.
    """
    run: _Run | None = None
    runs = events = commands = passed_over = 0
    for now_ns, entry in read_entries(log):
        if isinstance(entry, SegmentHeader):
            if entry.first_of_run:
                run, runs = _Run(entry), runs + 1
        elif run is None:
            passed_over += isinstance(entry, Event)
        elif isinstance(entry, Event):
            if run.expected:
                difference = _difference(run, commands, now_ns, None)
                return Redecision(runs, events, commands, difference, passed_over)
            events += 1
            run.take_event(now_ns, entry)
        elif run.agrees(now_ns, entry):
            commands += 1
        else:
            difference = _difference(run, commands, now_ns, entry)
            return Redecision(runs, events, commands, difference, passed_over)
    if run is None:
        raise LogError(
            lacks_start(log) if passed_over else f"{log} holds no event: it is not a log of a controller"
        )
    # The end of a log may be cut off between a call of the scheduler and its commands.
    return Redecision(runs, events, commands, None, passed_over)


def lacks_start(log: Path | str) -> str:
    """Return an error's sentence about a log that holds no run from its beginning."""
    return (
        f"{log} lacks the start of its run: its oldest segments were deleted to stay within "
        "event_log_max_bytes (set it higher), or it is a slice from later on; only a run that is logged from "
        "its start can be decided again"
    )


def _difference(run: _Run, commands: int, now_ns: int, recorded: Command | None) -> Difference:
    again = run.expected[0] if run.expected else None
    told = [
        "no more commands" if command is None else str(line(now_ns, command)).strip()
        for command in (recorded, again)
    ]
    if told[0] == told[1]:
        told = [f"{text} {command}" for text, command in zip(told, (recorded, again), strict=True)]
    return Difference(commands, now_ns, told[0], told[1], tuple(run.recent))
