"""The contents of an event log: its entries, also as text, the format's versions, and a header's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mainspring.cluster.rolling import HIGHEST_RANK, RANK
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import (
    Command,
    Doubted,
    DropWorker,
    Infer,
    Load,
    Open,
    Prepare,
    Ranked,
    Reject,
    Release,
    Result,
    Timed,
    Unload,
)
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    GatewayRefused,
    ModelAdded,
    ModelRemoved,
    ModelRestored,
    OperatorAsked,
    QueryArrived,
    Remembered,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.operating import described
from mainspring.messages.queries import Chosen, QueryStep, StepsKnown
from mainspring.messages.scaling import Offer, Provide, ProviderLeft, ProviderSaid, Retain, Retire
from mainspring.messages.snapshot import Told


class Settings(msgspec.Struct, frozen=True):
    """Numbers on which estimates and deadlines depend."""

    policy: str = ""
    """Name of the policy; empty while no header was read."""
    dispatch_delay_ns: int = 500_000
    """Time after its sending before which no action can begin."""
    response_margin_ns: int = 3_000_000
    """Time that is taken off each deadline for the way back."""
    estimate_rank: int = RANK
    """Same as `SchedulerConfig.estimate_rank`."""

    @classmethod
    def of(cls, about: dict[str, Any]) -> Settings:
        """Read a header's ``about``; a number that is missing or impossible is the scheduler's default."""
        scheduler = about.get("scheduler")
        known = scheduler if isinstance(scheduler, dict) else {}
        given = {}
        for name in ("dispatch_delay", "response_margin"):
            value = known.get(f"{name}_ms")
            if isinstance(value, int | float) and 0 <= value < 1e9:
                given[f"{name}_ns"] = round(value * 1_000_000)
        # Releases without the choice took the maximum.
        rank = known.get("estimate_rank", 1 if known else RANK)
        if isinstance(rank, int) and 1 <= rank <= HIGHEST_RANK:
            given["estimate_rank"] = rank
        return cls(policy=str(known.get("policy", "")), **given)

    def cluster(self) -> Cluster:
        """Return an empty state with these settings, on which the fold begins."""
        return Cluster(self.estimate_rank, self.dispatch_delay_ns, self.response_margin_ns)


FORMAT = 9
"""Version of the log's format. In version 1 the commands that an event brought about came behind the next
`Wakeup`, and what is noted and sent to nobody (`commands.Note`) was not written. Commands have no evidence
(`messages.evidence`) in versions 1 and 2, there are no OPENs before version 4, no request is refused early
before version 5, no cluster grows or shrinks before version 6, no worker moves to another controller by the
scheduler's decision before version 7, before version 8 no model's queue has a bound of its own and
nothing is said of what gateways refuse themselves, and before version 9 there are no families of models."""
IN_PLACE = 2
"""First version in which every command stands where it changed the state."""
EVIDENCE = 3
"""First version in which INFER, LOAD and rejections say what they were computed from."""
REFUSED_EARLY = 5
"""First version in which a request may be refused early."""


class SegmentHeader(msgspec.Struct, frozen=True, tag="segment_header"):
    """The first entry of each segment."""

    format: int
    run: int
    """Unix time in nanoseconds at which the writer was opened: the same in all segments of one run."""
    first_of_run: bool
    unix_ns: int
    """Unix time of the record, to relate the controller's monotonic clock to the calendar."""
    about: dict[str, Any]
    """Facts about the writer that a reader must know: for the controller, the scheduler's configuration."""


Entry = Event | Command | SegmentHeader | Told
Record = tuple[int, Entry]


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
        case Chosen():
            where = f"query {message.query_id} step {message.step}"
            return f"CHOOSE {message.model} for {where} at {message.price:.3g} for a second"
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


def _steps(steps: Iterable[QueryStep]) -> str:
    return ", ".join(f"{step.model} rows {step.rows}" for step in steps)


def _event(message: Event | Command) -> str:
    match message:
        case RequestArrived():
            due = (
                "best effort" if message.deadline_ns is None else f"deadline {message.deadline_ns / 1e6:.3f}"
            )
            return f"request {message.request_id} {message.model} rows {message.rows} {due}"
        case QueryArrived():
            return f"query {message.query_id}: {_steps(message.steps)}"
        case StepsKnown():
            return f"query {message.query_id} is known to have: {_steps(message.steps)}"
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
        case Remembered():
            return f"{len(message.estimates)} estimates of a former controller are known"
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
