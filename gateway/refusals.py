"""Why the request table answers a request without outputs, as a code and for a person. Pure."""

from __future__ import annotations

from mainspring.gateway.bounds import Refusal
from mainspring.gateway.pending import Pending
from mainspring.messages.codes import Reason

CLOSING: Refusal = (Reason.SHUTTING_DOWN, "the gateway stops")
CANCELLED: Refusal = (Reason.CANCELLED, "the client cancelled the request")
UNSENT: Refusal = (
    Reason.CONTROLLER_UNREACHABLE,
    "it could not be sent: the controller is not connected, or does not read",
)


def unreachable(now_ns: int, request: Pending) -> Refusal:
    """Return the refusal of a request that waited for a controller in vain."""
    waited_ms = (now_ns - request.arrived_ns) / 1e6
    detail = f"the gateway has no connection to the controller (waited {waited_ms:.0f} ms)"
    return Reason.CONTROLLER_UNREACHABLE, detail


def timed_out(now_ns: int, request: Pending) -> Refusal:
    """Return the refusal of a request that nothing came for."""
    best_effort = request.deadline_ns is None
    if not best_effort and not request.accepted.late_outputs:
        waited_ms = (now_ns - request.arrived_ns) / 1e6
        return (
            Reason.TIMED_OUT,
            f"no outputs came in {waited_ms:.1f} ms; others would come after the deadline",
        )
    limit = "the limit for best effort" if best_effort else "its deadline and the grace"
    waited_ms = (now_ns - request.arrived_ns) / 1e6
    return Reason.TIMED_OUT, f"neither outputs nor a rejection came within {limit} ({waited_ms:.0f} ms)"


def late(late_ns: int) -> str:
    """Return why outputs that came after their deadline are not the answer, where clients want none such."""
    return f"the outputs came {late_ns / 1e6:.1f} ms after the deadline"


def replaced(model: str) -> Refusal:
    """Return the refusal of a request whose inputs fit the model no more."""
    return Reason.MODEL_REMOVED, f"model {model!r} was replaced by one with other inputs or outputs"


def bad_outputs(worker: str, wrong: str) -> Refusal:
    """Return the refusal of a request whose outputs make no sense."""
    return Reason.WORKER_FAILED, f"worker {worker} answered with {wrong}"
