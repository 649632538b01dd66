"""One request: what the core keeps of it, and its one reply; and the table of all that have none yet."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Accepted, Answer, Connection, Dispatched, Frame
from mainspring.gateway.core.timing import computed, kept
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.model import FOUND_BYTES, TensorSpec
from mainspring.messages.peers import Output, TensorHeader

_EARLIER_NS: Final = 1_000_000
_EARLIER_SHARE: Final = 64
"""So much before an answer would be late, or this part of its SLO if that is less, the client is told."""
_CONTROLLER_NS: Final = 20_000_000
"""How long a request waits at least: the controller says when an answer would have been possible."""


OVERDUE_NS: Final = 60_000_000_000
"""How long after its dispatch a request without a deadline is submitted again if no outputs came."""
NEVER_NS: Final = 1 << 62
"""Later than every instant."""

_CONTENT: Final = (bytes, bytearray, memoryview)

Refusal = tuple[Reason, str]
"""Why a request gets no outputs, as a code and for a person."""


class Pending:
    """A request without an answer."""

    __slots__ = (
        *("accepted", "arrived_ns", "cache_ns", "came_ns", "connection", "deadline_ns", "digest"),
        *(
            "dispatches",
            "done",
            "due_ns",
            "expires_ns",
            "follows",
            "frames",
            "ids",
            "input_bytes",
            "key",
            "request_id",
        ),
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
        """In the order of the model's inputs, kept until the reply is out so that they can be sent again. Of
        a sequence's request, those that its client gave until its turn, then with the state, too."""
        self.arrived_ns = self.came_ns = arrived_ns
        """When it was there, and its first bytes."""
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
        """Whether it is not submitted: another request of the same digest is, or an earlier one of its
        sequence has no answer."""
        self.wake_ns = 0
        """Its next timer."""
        self.request_id: int | None = None
        """Its id at the present controller; None while there is none."""
        self.ids: list[int] = []
        """All ids that it ever had: outputs under an old id are as good."""
        self.dispatches: list[Dispatched] = []
        self.done = 0
        """How many of these came before it was last submitted."""

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
        expires_ns = now_ns + self._best_effort_ns if self._best_effort_ns else NEVER_NS
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
    return spec.found(frame) if isinstance(frame, _CONTENT) else (spec.shape, len(frame))


def answer(
    now_ns: int, request: Pending, dispatch: Dispatched, output: Output, frames: tuple[Frame, ...]
) -> Answer:
    """Return the reply: the outputs that the client wants, and where its time went."""
    timing = computed(now_ns, request.came_ns, request.arrived_ns, request.deadline_ns, dispatch, output)
    return _answer(request, frames, timing)


def answer_kept(now_ns: int, request: Pending, frames: tuple[Frame, ...]) -> Answer:
    """Return the reply with outputs that were computed before: no worker had a part in it."""
    timing = kept(now_ns, request.came_ns, request.arrived_ns, request.deadline_ns)
    return _answer(request, frames, timing)


def _answer(request: Pending, frames: tuple[Frame, ...], timing: Timing) -> Answer:
    accepted = request.accepted
    signature = accepted.signature.at(accepted.sizes)
    specs, shape = signature.spec.outputs, signature.spec.client_shape
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
        memoryview(frame)[FOUND_BYTES:] if spec.varies and isinstance(frame, _CONTENT) else frame
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
    if not best_effort and not request.accepted.late_outputs:
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


_SPARE_TIMERS: Final = 1_024
"""Timers of answered requests that the heap may hold before it is rebuilt without them."""


class Timers:
    """The next timer of each pending request, as a heap that forgets lazily."""

    def __init__(self, pending: Mapping[int, Pending]) -> None:
        """``pending`` is the table by serial: what is not in it any more has no timer."""
        self._pending = pending
        self._heap: list[tuple[int, int]] = []

    def arm(self, request: Pending, wake_ns: int) -> None:
        """Set the request's one timer."""
        request.wake_ns = wake_ns
        heapq.heappush(self._heap, (wake_ns, request.serial))
        if len(self._heap) > 2 * len(self._pending) + _SPARE_TIMERS:
            self._heap = [(each.wake_ns, each.serial) for each in self._pending.values()]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """Return the instant of the nearest timer."""
        while self._heap:
            wake_ns, serial = self._heap[0]
            if wake_ns >= NEVER_NS:
                return None
            if self._current(wake_ns, serial) is not None:
                return wake_ns
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> Pending | None:
        """Return a request whose timer is due, once for each timer."""
        while self._heap and self._heap[0][0] <= now_ns:
            request = self._current(*heapq.heappop(self._heap))
            if request is not None:
                return request
        return None

    def armed(self) -> dict[int, int]:
        """Return the live timers by serial, for `validate`."""
        return {serial: wake_ns for wake_ns, serial in self._heap if self._current(wake_ns, serial)}

    def _current(self, wake_ns: int, serial: int) -> Pending | None:
        request = self._pending.get(serial)
        return request if request is not None and request.wake_ns == wake_ns else None


class RequestTable:
    """Every pending request, by serial, by the ids that controllers know it by, and by its client's key."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self.pending: dict[int, Pending] = {}
        """By serial, in the order of arrival."""
        self.by_id: dict[int, Pending] = {}
        """By every id that it was ever submitted under."""
        self._by_connection: dict[Connection, dict[int, Pending]] = {}
        self._input_bytes = 0
        self.timers = Timers(self.pending)

    def __len__(self) -> int:
        return len(self.pending)

    def of_connection(self, connection: Connection) -> list[Pending]:
        """Return a connection's requests."""
        return list(self._by_connection.get(connection, {}).values())

    def count_of(self, connection: Connection) -> int:
        """Return how many requests a connection has."""
        return len(self._by_connection.get(connection, ()))

    def find(self, connection: Connection, key: int) -> Pending | None:
        """Return the request that its client calls by a key."""
        return self._by_connection.get(connection, {}).get(key)

    def refusal(self, request: Pending) -> Refusal | None:
        """Return why a request can't be added, if it can't."""
        if self.find(request.connection, request.key) is not None:
            return Reason.DUPLICATE_KEY, f"a request with key {request.key} is in flight on this connection"
        return _no_room(
            self._config,
            on_connection=self.count_of(request.connection),
            in_flight=len(self.pending),
            held_bytes=self._input_bytes,
            more_bytes=request.input_bytes,
        )

    def add(self, request: Pending) -> None:
        """Enter a request."""
        self.pending[request.serial] = request
        self._by_connection.setdefault(request.connection, {})[request.key] = request
        self._input_bytes += request.input_bytes

    def name(self, request: Pending, request_id: int) -> None:
        """Have a request known by an id from now on, beside those that it had."""
        request.request_id = request_id
        request.ids.append(request_id)
        self.by_id[request_id] = request

    def remove(self, request: Pending) -> None:
        """Forget a request."""
        del self.pending[request.serial]
        for each in request.ids:
            del self.by_id[each]
        own = self._by_connection[request.connection]
        del own[request.key]
        if not own:
            del self._by_connection[request.connection]
        self._input_bytes -= request.input_bytes

    def validate(self) -> None:
        """Check that every index says the same; raise AssertionError with the story of what does not."""
        for request in self.pending.values():
            own = self.find(request.connection, request.key)
            assert own is request, f"not under its key: {request.story()}"
            lost = [each for each in request.ids if self.by_id.get(each) is not request]
            assert not lost, f"ids {lost} do not lead to {request.story()}"
            known = request.request_id is None or request.request_id == request.ids[-1]
            assert known, f"not known by its last id: {request.story()}"
        armed = self.timers.armed()
        assert armed == {r.serial: r.wake_ns for r in self.pending.values()}, f"timers {armed}"
        assert len(self.by_id) == sum(len(r.ids) for r in self.pending.values()), "ids of answered requests"
        keys = sum(map(len, self._by_connection.values()))
        assert keys == len(self.pending), f"{keys} keys for {len(self.pending)} requests"
        assert all(self._by_connection.values()), "a connection without requests"
        held = sum(r.input_bytes for r in self.pending.values())
        assert held == self._input_bytes, f"{held} bytes held, {self._input_bytes} counted"


def _no_room(
    config: GatewayConfig, *, on_connection: int, in_flight: int, held_bytes: int, more_bytes: int
) -> Refusal | None:
    """Return why there is no room for one more request with ``more_bytes`` of inputs, or None.

    ``on_connection`` and ``in_flight`` are the requests without an answer of its connection and of all;
    ``held_bytes`` are the inputs of all.
    """
    if on_connection >= config.max_in_flight_per_connection:
        return (
            Reason.OVERLOADED,
            f"{on_connection} requests are in flight on this connection, the most it may have",
        )
    if in_flight >= config.max_in_flight:
        return Reason.OVERLOADED, f"{in_flight} requests are in flight, the most the gateway takes"
    if held_bytes + more_bytes > config.max_in_flight_bytes:
        return (
            Reason.OVERLOADED,
            f"requests in flight hold {held_bytes:,} bytes of inputs, the most allowed",
        )
    return None
