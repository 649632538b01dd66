"""One request: what the core keeps of it, and the one reply that it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Answer, Connection, Dispatched, Frame
from mainspring.gateway.core.validation import Accepted
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader

_EARLIER_NS: Final = 1_000_000
_EARLIER_SHARE: Final = 64
"""So much before an answer would be late, or this part of its SLO if that is less, the client is told."""
_CONTROLLER_NS: Final = 20_000_000
"""How long a request waits at least: the controller says when an answer would have been possible."""


Refusal = tuple[Reason, str]
"""Why a request gets no outputs, as a code and for a person."""


class Pending:
    """A request without an answer."""

    __slots__ = (
        *("accepted", "arrived_ns", "cache_ns", "connection", "deadline_ns", "digest", "dispatches"),
        *("due_ns", "expires_ns", "follows", "frames", "ids", "input_bytes", "key", "request_id"),
        *("serial", "wake_ns"),
    )

    def __init__(
        self,
        serial: int,
        connection: Connection,
        key: int,
        accepted: Accepted,
        frames: tuple[Frame, ...],
        arrived_ns: int,
        deadline_ns: int | None,
        due_ns: int | None,
        expires_ns: int,
        digest: bytes | None = None,
    ) -> None:
        self.serial = serial
        """Position in the order of arrival; never changes, while request ids do."""
        self.connection = connection
        self.key = key
        self.accepted = accepted
        self.frames = frames
        """In the order of the model's inputs, kept until the reply is out so that they can be sent again."""
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        """When its caller is to have the answer."""
        self.due_ns = due_ns
        """When the answer is to leave for that: the controller's deadline."""
        self.expires_ns = expires_ns
        """When it is answered with a time-out."""
        self.input_bytes = sum([len(frame) for frame in frames])
        self.digest = digest
        """Where the cache keeps its outputs; None if they are not kept."""
        self.cache_ns = 0
        """Time taken to look for its outputs in the cache, and to keep them."""
        self.follows = False
        """Whether another request of the same digest is submitted in its place."""
        self.wake_ns = 0
        """Its next timer."""
        self.request_id: int | None = None
        """Its id at the present controller; None while there is none."""
        self.ids: list[int] = []
        """All ids that it ever had: outputs under an old id are as good."""
        self.dispatches: list[Dispatched] = []

    def story(self) -> str:
        """Return one line for a person that looks for a fault."""
        sent = ", ".join(f"action {d.action_id} on {d.worker}" for d in self.dispatches) or "never dispatched"
        return (
            f"request {self.serial} (key {self.key} of {self.connection}, model {self.accepted.model!r}, "
            f"arrived {self.arrived_ns}, deadline {self.deadline_ns}, id {self.request_id} of {self.ids}, "
            f"timer {self.wake_ns}, {sent})"
        )


class Patience:
    """How long requests wait for outputs at most."""

    def __init__(self, config: GatewayConfig) -> None:
        self._grace_ns = milliseconds(config.grace_ms)
        self._best_effort_ns = milliseconds(config.best_effort_timeout_ms)

    def begin(
        self,
        serial: int,
        now_ns: int,
        connection: Connection,
        key: int,
        accepted: Accepted,
        frames: Sequence[Frame],
        digest: bytes | None,
    ) -> Pending:
        """Return a request that came now; ``frames`` as its client ordered them."""
        ordered = tuple([frames[place] for place in accepted.frame_order])
        deadline_ns = due_ns = None
        expires_ns = now_ns + self._best_effort_ns
        if accepted.slo_ns is not None:
            deadline_ns = now_ns + accepted.slo_ns
            due_ns = deadline_ns - max(0, accepted.back_ns)
            # Who has no use for late outputs is told just before they would be late.
            expires_ns = due_ns - min(_EARLIER_NS, accepted.slo_ns // _EARLIER_SHARE)
            expires_ns = max(expires_ns, now_ns + _CONTROLLER_NS)
            if accepted.late_outputs or expires_ns > deadline_ns + self._grace_ns:
                expires_ns = deadline_ns + self._grace_ns
        return Pending(
            serial, connection, key, accepted, ordered, now_ns, deadline_ns, due_ns, expires_ns, digest
        )


# --- with outputs ---


def wrong_outputs(accepted: Accepted, frames: tuple[Frame, ...]) -> str | None:
    """Return what is wrong with the sizes of a worker's outputs, if anything is."""
    wanted = [accepted.rows * size for size in accepted.signature.output_row_bytes]
    given = [len(frame) for frame in frames]
    return None if given == wanted else f"outputs of {given} bytes instead of {wanted}"


def answer(
    now_ns: int, request: Pending, dispatch: Dispatched, execute_ns: int, frames: tuple[Frame, ...]
) -> Answer:
    """Return the reply: the outputs that the client wants, and where its time went."""
    timing = Timing(
        total_ns=now_ns - request.arrived_ns,
        # A request that shares another's execution may have come after its dispatch.
        queue_ns=max(0, dispatch.at_ns - request.arrived_ns),
        execute_ns=execute_ns,
        left_ns=None if request.deadline_ns is None else request.deadline_ns - now_ns,
        batch_size=dispatch.batch_size,
        cold_start=dispatch.cold,
        worker=dispatch.worker,
    )
    return _answer(request, frames, timing)


def answer_kept(now_ns: int, request: Pending, frames: tuple[Frame, ...]) -> Answer:
    """Return the reply with outputs that were computed before: no worker had a part in it."""
    timing = Timing(
        total_ns=now_ns - request.arrived_ns,
        queue_ns=0,
        execute_ns=0,
        left_ns=None if request.deadline_ns is None else request.deadline_ns - now_ns,
        batch_size=0,
        cold_start=False,
        worker="",
        cached=True,
    )
    return _answer(request, frames, timing)


def _answer(request: Pending, frames: tuple[Frame, ...], timing: Timing) -> Answer:
    accepted = request.accepted
    specs, shape = accepted.signature.spec.outputs, accepted.signature.spec.client_shape
    wanted = [specs[index] for index in accepted.output_order]
    return Answer(
        connection=request.connection,
        key=request.key,
        outputs=tuple([TensorHeader(each.name, each.dtype, shape(each, accepted.rows)) for each in wanted]),
        frames=tuple([frames[index] for index in accepted.output_order]),
        timing=timing,
    )


# --- without ---

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


def late_detail(late_ns: int) -> str:
    """Return why outputs that came after their deadline are not the answer, where clients want none such."""
    return f"the outputs came {late_ns / 1e6:.1f} ms after the deadline"


def replaced(model: str) -> Refusal:
    """Return the refusal of a request whose inputs fit the model no more."""
    return Reason.MODEL_REMOVED, f"model {model!r} was replaced by one with other inputs or outputs"


def bad_outputs(worker: str, wrong: str) -> Refusal:
    """Return the refusal of a request whose outputs make no sense."""
    return Reason.WORKER_FAILED, f"worker {worker} answered with {wrong}"
