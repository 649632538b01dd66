"""The table of all requests without a reply, the controllers that they go to, and the observers that are told
when one ends. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final, Protocol

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Arrive, Connection, Dispatched, Effect, Frame, Withdraw
from mainspring.gateway.core.requests import NEVER_NS, Pending, Place, Refusal
from mainspring.messages import ids
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output, Rejected
from mainspring.messages.queries import Chosen, Piece, StepsKnown


class Observer(Protocol):
    """Told once of every request, when it ends. Must be quick and may not raise."""

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """It got outputs: of this dispatch and message, or, with neither, of an earlier request."""

    def refused(self, request: Pending, reason: Reason) -> None:
        """It got a reason instead, or its client is gone."""

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """It was refused before the request table saw it."""


class Observers:
    """Passes what it is told on to each that was added."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Tell this one too from now on."""
        self._all = (*self._all, observer)

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Tell each observer, as `Observer.answered` says."""
        for observer in self._all:
            observer.answered(now_ns, request, dispatch, output)

    def refused(self, request: Pending, reason: Reason) -> None:
        """Tell each observer, as `Observer.refused` says."""
        for observer in self._all:
            observer.refused(request, reason)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Tell each observer, as `Observer.turned_away` says."""
        for observer in self._all:
            observer.turned_away(request, reason)


class OwnRefusals:
    """An observer of the request table that counts requests refused while no controller had them.

    What a controller had when it ended is in the controller's records, as rejected or cancelled.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Refusals since the gateway started, by `Reason`."""

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Count nothing."""

    def refused(self, request: Pending, reason: Reason) -> None:
        """Count a request that is not submitted now: it never was, or is given up."""
        if request.request_id is None and reason is not Reason.CANCELLED:
            self._count(reason)

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Count a request that was no good."""
        del request
        self._count(reason)

    def _count(self, reason: Reason) -> None:
        self.counts[reason.value] = self.counts.get(reason.value, 0) + 1


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


class Controllers:
    """The controllers that have welcomed the gateway, and how long a request waits for that of its model."""

    def __init__(self, config: GatewayConfig, shards: Mapping[str, int]) -> None:
        """``shards`` has the shard of each model that is not in shard 0; it is only looked at."""
        self._shards = shards
        self._rejoin_ns = milliseconds(config.hello_interval_ms)
        self._wait_ns = milliseconds(config.controller_wait_ms)
        self._numbers: dict[int, int] = {}
        """The gateway's number at each shard's controller that has welcomed it."""
        self._lost_ns: dict[int, int] = {}
        """Instant at which each shard's controller was lost last."""

    def welcomed(self, number: int) -> int:
        """Note the gateway's number at a controller; return that controller's shard."""
        shard = ids.shard_of_gateway(number)
        self._numbers[shard] = number
        return shard

    def lost(self, now_ns: int, shard: int) -> bool:
        """Note that a shard's controller is lost; return False if it was not there."""
        if self._numbers.pop(shard, None) is None:
            return False
        self._lost_ns[shard] = now_ns
        return True

    def number_for(self, model: str) -> int | None:
        """Return the gateway's number at the controller that has a model; None if that is not there."""
        return self._numbers.get(self._shards.get(model, 0))

    def concerns(self, request: Pending, shard: int) -> bool:
        """Return whether a request is at a shard's controller, or is to be submitted there."""
        at = request.shard
        return (self._shards.get(request.accepted.model, 0) if at is None else at) == shard

    def awaited_until_ns(self, now_ns: int, request: Pending) -> int | None:
        """Return until when a request waits for its controller; None if none would come in time."""
        if request.until_ns < now_ns + self._rejoin_ns:
            return None
        return min(request.until_ns, now_ns + self._wait_ns)

    def awaited_since_loss_ns(self, request: Pending) -> int:
        """Return the same of a request that has waited since it came, or since its controller was lost."""
        lost_ns = self._lost_ns.get(self._shards.get(request.accepted.model, 0), 0)
        return min(request.until_ns, max(request.arrived_ns, lost_ns) + self._wait_ns)


class RequestTable:
    """Every pending request, by serial, by the ids that controllers know it by, and by its client's key."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self.pending: dict[int, Pending] = {}
        """The requests without an answer by serial, in the order of arrival."""
        self.by_id: dict[int, Pending] = {}
        """The same requests by every id that they were ever submitted under."""
        self._by_connection: dict[Connection, dict[int, Pending]] = {}
        self._input_bytes = self._next_id = 0
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

    def arrive(self, request: Pending, number: int) -> Arrive:
        """Return what submits a request to the controller at which the gateway has a number."""
        accepted, request_id = request.accepted, self._name(request, number)
        left = [piece for piece in request.pieces if piece.kept is None]
        pieces = [
            Piece(self._name(piece, number), piece.accepted.rows, piece.step, piece.accepted.sizes)
            for piece in left
        ]
        query = 0 if request.whole is None else request.whole.request_id or 0
        account = (request.whole or request).accepted.account
        return Arrive(
            *(request_id, accepted.model, accepted.rows, request.due_ns, accepted.priority, accepted.sizes),
            *(tuple(pieces), query, request.step, () if request.flow is None else request.flow.steps),
            *("" if request.flow is None else request.flow.graph,),
            *("" if account is None else account.tenant,),
        )

    def sent_to(self, now_ns: int, worker: str) -> list[Pending]:
        """Return the requests, and the pieces, that still have time and were last dispatched to a worker."""
        found = [piece for request in self.pending.values() for piece in request.pieces or [request]]
        return [
            each
            for each in found
            if each.request_id is not None
            and each.dispatches
            and (each.deadline_ns is None or each.deadline_ns > now_ns)
            and each.dispatches[-1].worker == worker
        ]

    def go_on(
        self,
        now_ns: int,
        piece: Pending,
        by: Dispatched | None,
        message: Output | Rejected,
        frames: tuple[Frame, ...],
        effects: list[Effect],
    ) -> tuple[Frame, ...] | None:
        """Have a query go on, one of whose pieces has outputs or was rejected.

        Return the outputs of the whole, once no piece is without an end; submit those that may begin now.
        While no controller has the query, they go with it as soon as one does. Raises `QueryFailed`.
        """
        query = piece.whole
        assert query is not None, f"it is of no query: {piece.story()}"
        assert query.flow is not None, f"nothing says how it goes on: {query.story()}"
        self.keep(piece, frames)
        flow = query.flow
        flow.took(now_ns, piece, by, message if isinstance(message, Output) else None)
        more = flow.ended(piece) if isinstance(message, Output) else flow.missed(piece, message)
        query.pieces = [*query.pieces, *more] if more else query.pieces
        query_id = query.request_id
        if query_id is not None:
            if news := query.flow.news():
                effects.append(StepsKnown(query_id, news))
            effects += [self.arrive(each, ids.gateway_of(query_id)) for each in more]
        if [each for each in query.pieces if each.kept is None]:
            return None
        outputs = query.flow.outputs()
        if query_id is not None and query.flow.several:
            # It may wait for steps that never came.
            effects.append(Withdraw(query_id))
        return outputs

    def chosen(self, chosen: Chosen) -> None:
        """Note which member of a family answers for a step of a query."""
        query = self.by_id.get(chosen.query_id)
        if query is not None and query.flow is not None and query.request_id == chosen.query_id:
            query.flow.chose(chosen)

    def _name(self, request: Pending, number: int) -> int:
        """Have a request known by a new id from now on, beside those that it had; return it."""
        request_id = ids.request_id(number, self._next_id)
        self._next_id += 1
        request.submit(request_id)
        self.by_id[request_id] = request
        return request_id

    def keep(self, piece: Pending, frames: tuple[Frame, ...]) -> None:
        """Keep a piece's outputs, and nothing else of it: it ends."""
        self._end(piece)
        piece.kept, piece.frames, piece.request_id = frames, (), None

    def _end(self, request: Pending) -> None:
        request.end()
        for each in request.ids:
            del self.by_id[each]

    def remove(self, request: Pending) -> None:
        """Forget a request: it ends."""
        self._end(request)
        for piece in request.pieces:
            if piece.kept is None:
                self._end(piece)
        del self.pending[request.serial]
        own = self._by_connection[request.connection]
        del own[request.key]
        if not own:
            del self._by_connection[request.connection]
        self._input_bytes -= request.input_bytes

    def validate(self) -> None:
        """Check that every index says the same; raise AssertionError with the story of what does not."""
        known_as = 0
        pieces = [piece for request in self.pending.values() for piece in request.pieces]
        for request in (*self.pending.values(), *[piece for piece in pieces if piece.kept is None]):
            own = self.find(request.connection, request.key)
            assert own is (request.whole or request), f"not under its key: {request.story()}"
            known_as += len(request.ids)
            lost = [each for each in request.ids if self.by_id.get(each) is not request]
            assert not lost, f"ids {lost} do not lead to {request.story()}"
            submitted = request.place in (Place.SUBMITTED, Place.DISPATCHED)
            assert submitted == (request.request_id is not None), f"in a wrong place: {request.story()}"
            assert request.place is not Place.ENDED, f"it has ended: {request.story()}"
            known = request.request_id is None or request.request_id == request.ids[-1]
            assert known, f"not known by its last id: {request.story()}"
        armed = self.timers.armed()
        assert armed == {r.serial: r.wake_ns for r in self.pending.values()}, f"timers {armed}"
        assert len(self.by_id) == known_as, "ids of answered requests"
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
