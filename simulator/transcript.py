"""The event stream as text that a person can read and review as a diff.

One line for each event (``>``) and command (``<``), with the time in milliseconds.
"""

from __future__ import annotations

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
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.operating import described
from mainspring.messages.scaling import Offer, Provide, ProviderLeft, ProviderSaid, Retain, Retire


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
