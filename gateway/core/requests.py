"""One request: what the core keeps of it, its one reply, and where its time went, in durations that add up.

The gateway knows when a request came, when it was dispatched and when its outputs came; the worker tells how
long it copied, loaded, waited and computed. What is left is the way there and back, which are taken to be
equally long. Pure.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Accepted, Answer, Connection, Dispatched, Frame, Refuse
from mainspring.messages import ids
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.model import FOUND_BYTES, TensorSpec
from mainspring.messages.peers import Output, OutputTimes, TensorHeader
from mainspring.messages.served import for_clients

if TYPE_CHECKING:
    from mainspring.gateway.core.queries import Flow

NO_TIMES: Final = OutputTimes(0, 0, 0)


def instants(now_ns: int, arrived_ns: int, dispatched_ns: int, output: Output) -> tuple[int, int, int, int]:
    """Return what happened to a request between its arrival and now, when its outputs are there.

    In order and on the gateway's clock: it was dispatched, and its inputs were sent; they were in the
    worker's IO memory; EXEC began; EXEC ended.

    One that shares another's execution may have come after its dispatch, and while it was computed.
    """
    times = output.times or NO_TIMES
    sent_ns = max(arrived_ns, dispatched_ns)
    on_worker_ns = times.input_ns + times.wait_ns + output.execute_ns + times.output_ns
    way_ns = max(0, now_ns - sent_ns - on_worker_ns) // 2
    executed_ns = max(sent_ns, now_ns - way_ns - times.output_ns)
    begun_ns = max(sent_ns, executed_ns - output.execute_ns)
    return sent_ns, min(begun_ns, sent_ns + way_ns + times.input_ns), begun_ns, executed_ns


def computed(
    now_ns: int,
    came_ns: int,
    arrived_ns: int,
    deadline_ns: int | None,
    dispatch: Dispatched,
    output: Output,
) -> Timing:
    """Return where the time of a request went whose outputs a worker computed.

    ``came_ns``: when its first bytes came; ``arrived_ns``: when it was there, and understood.
    """
    sent_ns, placed_ns, begun_ns, executed_ns = instants(now_ns, arrived_ns, dispatch.at_ns, output)
    queue_ns, input_ns, wait_ns, load_ns = sent_ns - arrived_ns, placed_ns - sent_ns, begun_ns - placed_ns, 0
    times = output.times
    if times is not None and times.load_ns:
        # What the LOAD took counts as that alone, whatever else was waited for meanwhile.
        loaded_ns = max(arrived_ns, begun_ns - times.loaded_ns)
        from_ns = max(arrived_ns, loaded_ns - times.load_ns)
        load_ns = loaded_ns - from_ns
        queue_ns -= _overlap(arrived_ns, sent_ns, from_ns, loaded_ns)
        input_ns -= _overlap(sent_ns, placed_ns, from_ns, loaded_ns)
        wait_ns -= _overlap(placed_ns, begun_ns, from_ns, loaded_ns)
    return Timing(
        total_ns=now_ns - came_ns,
        queue_ns=queue_ns,
        execute_ns=executed_ns - begun_ns,
        left_ns=None if deadline_ns is None else deadline_ns - now_ns,
        batch_size=dispatch.batch_size,
        cold_start=dispatch.cold,
        worker=dispatch.worker,
        receive_ns=arrived_ns - came_ns,
        input_ns=input_ns,
        load_ns=load_ns,
        wait_ns=wait_ns,
        output_ns=now_ns - executed_ns,
    )


def kept(now_ns: int, came_ns: int, arrived_ns: int, deadline_ns: int | None) -> Timing:
    """Return where the time went of a request whose outputs were there: no worker had a part in it."""
    return Timing(
        total_ns=now_ns - came_ns,
        queue_ns=0,
        execute_ns=0,
        left_ns=None if deadline_ns is None else deadline_ns - now_ns,
        batch_size=0,
        cold_start=False,
        worker="",
        cached=True,
        receive_ns=arrived_ns - came_ns,
        output_ns=now_ns - arrived_ns,
    )


def _overlap(one_ns: int, end_ns: int, other_ns: int, other_end_ns: int) -> int:
    """Return for how long two stretches of time lie upon each other."""
    return max(0, min(end_ns, other_end_ns) - max(one_ns, other_ns))


_EARLIER_NS: Final = 1_000_000
_EARLIER_SHARE: Final = 64
"""The client is told a millisecond, or this part of its SLO if that is less, before an answer would be
late."""
_CONTROLLER_NS: Final = 20_000_000
"""Nanoseconds that a request waits at least: the controller says when an answer would have been possible."""


OVERDUE_NS: Final = 60_000_000_000
"""Nanoseconds after its dispatch at which a request without a deadline is submitted again if no outputs
came."""
NEVER_NS: Final = 1 << 62
"""Later than every instant."""

CONTENT: Final = (bytes, bytearray, memoryview)

NO_PIECES: Final[list[Pending]] = []
"""To be read only."""
Frames = tuple[Frame, ...]
Refusal = tuple[Reason, str]
"""The reason why a request gets no outputs, as a code and for a person."""


class Place(enum.Enum):
    """The place of a request; it is in exactly one place."""

    WAITING = "waiting"
    """No controller knows it: it has just come, or is to be submitted again. Outputs may be on their way."""
    FOLLOWING = "following"
    """It waits for another one: of the same digest, which is submitted, or an earlier one of its sequence."""
    SUBMITTED = "submitted"
    """A controller knows its id."""
    DISPATCHED = "dispatched"
    """Its inputs were pushed to a worker since it was submitted."""
    ENDED = "ended"


TRANSITIONS: Final = {
    Place.WAITING: (Place.FOLLOWING, Place.SUBMITTED, Place.ENDED),
    Place.FOLLOWING: (Place.WAITING, Place.ENDED),
    Place.SUBMITTED: (Place.DISPATCHED, Place.WAITING, Place.ENDED),
    Place.DISPATCHED: (Place.DISPATCHED, Place.WAITING, Place.ENDED),
    Place.ENDED: (),
}
"""The places that may follow each place; asserted where one is entered, by the methods of `Pending`."""

_WAITING: Final = Place.WAITING
_FOLLOWING: Final = Place.FOLLOWING
_SUBMITTED: Final = Place.SUBMITTED
_DISPATCHED: Final = Place.DISPATCHED
_ENDED: Final = Place.ENDED


class Pending:
    """A request without an answer."""

    __slots__ = (
        *("accepted", "arrived_ns", "cache_ns", "came_ns", "connection", "deadline_ns", "digest"),
        *(
            "dispatches",
            "done",
            "due_ns",
            "expires_ns",
            "flow",
            "frames",
            "ids",
            "input_bytes",
            "kept",
            "key",
            "pieces",
            "place",
            "request_id",
        ),
        *("serial", "step", "wake_ns", "whole"),
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
        self.connection, self.key, self.accepted = connection, key, accepted
        self.frames = frames
        """The inputs in the order of the model's, kept until the reply is out so that they can be sent again.
        Those of a sequence's request are its client's until its turn, then the state is among them."""
        self.arrived_ns = self.came_ns = arrived_ns
        """Instants at which it was wholly there, and at which its first bytes came."""
        self.deadline_ns = deadline_ns
        """Instant at which its caller is to have the answer; None without a deadline."""
        self.due_ns = due_ns
        """Instant at which the answer is to leave for that: the controller's deadline."""
        self.expires_ns = expires_ns
        """Instant at which it is answered with a time-out."""
        self.input_bytes = sum([len(frame) for frame in frames])
        self.digest = digest
        """The cache's key for its outputs; None if they are not kept."""
        self.cache_ns = 0  # Time taken to look for its outputs in the cache, and to keep them.
        self.place = _WAITING
        """Changed by the methods below alone."""
        self.wake_ns = 0  # Instant of its timer.
        self.request_id: int | None = None
        """Its id at the present controller; None while there is none."""
        self.ids: list[int] = []
        """All ids that it ever had: outputs under an old id are as good."""
        self.dispatches: list[Dispatched] = []
        self.done = 0  # Dispatches that came before it was last submitted.
        self.flow: Flow | None = None
        """Of a query, what its pieces are (`queries`); None of any other request."""
        self.pieces = NO_PIECES
        """The pieces of a query that have begun; its dispatches are theirs."""
        self.whole: Pending | None = None
        """The request that it is a piece of. A piece has neither a timer nor a reply of its own."""
        self.kept: tuple[Frame, ...] | None = None
        """Outputs of a piece that has ended, until the others have theirs; empty if it has none."""
        self.step = 0
        """Of a piece, the index of its query's step."""

    @property
    def shard(self) -> int | None:
        """Return the shard that knows it by its present id; None while none does."""
        return None if self.request_id is None else ids.shard_of(self.request_id)

    @property
    def follows(self) -> bool:
        """Return whether it is not to be submitted now (`Place.FOLLOWING`)."""
        return self.place is _FOLLOWING

    def follow(self) -> None:
        """Have it wait for another request."""
        assert self.place is _WAITING, f"it can't follow another one: {self.story()}"
        self.place = _FOLLOWING

    def lead(self) -> None:
        """Have it wait for another request no more."""
        assert self.place is _FOLLOWING, f"it followed none: {self.story()}"
        self.place = _WAITING

    def submit(self, request_id: int) -> None:
        """Have a controller know it by an id."""
        assert self.place is _WAITING, f"it can't be submitted: {self.story()}"
        self.place = _SUBMITTED
        self.request_id = request_id
        self.ids.append(request_id)
        self.done = len(self.dispatches)

    def dispatch(self, dispatch: Dispatched) -> None:
        """Note that its inputs are pushed to a worker."""
        assert self.place is _SUBMITTED or self.place is _DISPATCHED, (
            f"it can't be dispatched: {self.story()}"
        )
        self.place = _DISPATCHED
        self.dispatches.append(dispatch)

    def recall(self) -> None:
        """Have no controller know it, or its pieces, any more; it was submitted."""
        assert self.place is _SUBMITTED or self.place is _DISPATCHED, f"no controller has it: {self.story()}"
        self.place = _WAITING
        self.request_id = None
        for piece in self.pieces:
            if piece.request_id is not None:
                piece.recall()

    def end(self) -> None:
        """Note that it has its reply, or that nobody wants one."""
        assert self.place is not _ENDED, f"it has ended before: {self.story()}"
        self.place = _ENDED

    @property
    def until_ns(self) -> int:
        """The instant until which an answer is of use."""
        return self.expires_ns if self.deadline_ns is None else self.deadline_ns

    def next_look_ns(self, now_ns: int) -> int:
        """Return when to look at it that was submitted, if it has no answer by then."""
        return self.expires_ns if self.deadline_ns is not None else min(self.expires_ns, now_ns + OVERDUE_NS)

    def outputs_overdue(self, now_ns: int) -> bool:
        """Return whether it has no deadline, and was dispatched so long ago that its outputs may have been
        lost on their way; whichever come first answer it."""
        dispatched = self.deadline_ns is None and len(self.dispatches) > self.done
        return dispatched and self.dispatches[-1].at_ns + OVERDUE_NS <= now_ns

    def story(self) -> str:
        """Return one line for a person that looks for a fault."""
        sent = ", ".join(f"action {d.action_id} on {d.worker}" for d in self.dispatches) or "never dispatched"
        return (
            f"request {self.serial} (key {self.key} of {self.connection}, model {self.accepted.model!r}, "
            f"arrived {self.arrived_ns}, deadline {self.deadline_ns}, id {self.request_id} of {self.ids}, "
            f"{self.place.value}, timer {self.wake_ns}, {sent})"
        )


def may_lack(accepted: Accepted) -> bool:
    """Say whether a request is for a graph that answers without some steps where they can't be in time: just
    before the deadline its reply leaves with what there is."""
    graph = accepted.signature.graph
    return graph is not None and graph.may_lack


def _takes_late(accepted: Accepted) -> bool:
    return accepted.late_outputs and not may_lack(accepted)


class Patience:
    """The rule for how long requests wait for outputs at most."""

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
        expires_ns = now_ns + self._best_effort_ns if self._best_effort_ns else NEVER_NS
        if accepted.slo_ns is not None:
            deadline_ns = now_ns + accepted.slo_ns
            due_ns = deadline_ns - max(0, accepted.back_ns)
            # Who has no use for late outputs is told just before they would be late.
            expires_ns = due_ns - min(_EARLIER_NS, accepted.slo_ns // _EARLIER_SHARE)
            if not may_lack(accepted):
                expires_ns = max(expires_ns, now_ns + _CONTROLLER_NS)
            if _takes_late(accepted) or expires_ns > deadline_ns + self._grace_ns:
                expires_ns = deadline_ns + self._grace_ns
        return Pending(
            serial, connection, key, accepted, ordered, now_ns, deadline_ns, due_ns, expires_ns, digest
        )


# --- with outputs ---


def wrong_outputs(accepted: Accepted, frames: tuple[Frame, ...]) -> str | None:
    """Return what is wrong with the sizes of a worker's outputs, if anything is."""
    signature = accepted.signature.at(accepted.sizes)
    wanted = [accepted.rows * size for size in signature.output_row_bytes]
    given = [len(frame) for frame in frames]
    if given == wanted:
        return None
    if signature.varies and len(given) == len(wanted):
        try:
            wanted = [
                _found(each, frame)[1] if each.varies else size
                for each, frame, size in zip(signature.spec.outputs, frames, wanted, strict=True)
            ]
        except (ValueError, struct.error) as error:
            return f"outputs of {given} bytes: {error}"
    return None if given == wanted else f"outputs of {given} bytes instead of {wanted}"


def _found(spec: TensorSpec, frame: Frame) -> tuple[tuple[int, ...], int]:
    """Return the shape of an output that varies, and its bytes; raise ValueError or `struct.error`.

    Those of a frame without content, as simulations have them, are the largest.
    """
    return spec.found(frame) if isinstance(frame, CONTENT) else (spec.shape, len(frame))


def refused(
    request: Pending, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None
) -> Refuse:
    """Return the reply without outputs; controller and workers call the model otherwise than clients do."""
    said = for_clients(detail, request.accepted.model, request.accepted.signature.spec.public_name)
    return Refuse(request.connection, request.key, reason, said, earliest_finish_left_ns)


def answer(
    now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None, frames: Frames
) -> Answer:
    """Return the reply: the outputs that the client wants, and where its time went.

    With no dispatch they were computed before: no worker had a part in it.
    """
    times = request.came_ns, request.arrived_ns, request.deadline_ns
    if dispatch is None or output is None:
        timing = kept(now_ns, *times)
    else:
        timing = computed(now_ns, *times, dispatch, output)
    if dispatch is not None and request.flow is not None and (steps := request.flow.timing()):
        timing = msgspec.structs.replace(timing, steps=steps, learnt=request.flow.learnt)
    elif request.flow is not None and request.flow.learnt is not None:
        timing = msgspec.structs.replace(timing, learnt=request.flow.learnt)
    accepted = request.accepted
    signature = accepted.signature.at(accepted.sizes)
    specs, shape = signature.spec.outputs, signature.spec.client_shape
    if request.flow is not None and request.flow.headers:
        headers = [request.flow.headers[index] for index in accepted.output_order]
        given = [frames[index] for index in accepted.output_order]
        return Answer(request.connection, request.key, tuple(headers), tuple(given), timing)
    wanted = [specs[index] for index in accepted.output_order]
    chosen = [frames[index] for index in accepted.output_order]
    if signature.varies:
        wanted, chosen = as_found(wanted, chosen)
    return Answer(
        connection=request.connection,
        key=request.key,
        outputs=tuple([TensorHeader(each.name, each.dtype, shape(each, accepted.rows)) for each in wanted]),
        frames=tuple(chosen),
        timing=timing,
    )


def as_found(specs: list[TensorSpec], frames: list[Frame]) -> tuple[list[TensorSpec], list[Frame]]:
    """Return outputs with the shapes that the run found, and their bytes without these."""
    shapes = [
        _found(spec, frame)[0] if spec.varies else spec.shape
        for spec, frame in zip(specs, frames, strict=True)
    ]
    fixed = [
        TensorSpec(spec.name, spec.dtype, shape, rows_axis=spec.rows_axis)
        for spec, shape in zip(specs, shapes, strict=True)
    ]
    return fixed, [
        memoryview(frame)[FOUND_BYTES:] if spec.varies and isinstance(frame, CONTENT) else frame
        for spec, frame in zip(specs, frames, strict=True)
    ]


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
    if not best_effort and not _takes_late(request.accepted):
        waited_ms = (now_ns - request.arrived_ns) / 1e6
        return (
            Reason.TIMED_OUT,
            f"no outputs came in {waited_ms:.1f} ms; others would come after the deadline",
        )
    limit = "the operator's best_effort_timeout_ms" if best_effort else "its deadline and the grace"
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
