"""A quick stand-in for the gateway in virtual time: one reply to each request, a time-out if nothing comes.

It decides as the live gateway's core does as long as no worker's loss is reported to it, and takes a fraction
of the time; `tests/simulator/test_gateway.py` plays seeds with both and compares every event and reply.
`simulator.gateway_core` drives the core itself.

What a request is counted as is decided here, as live: by the instant at which its reply leaves the gateway.
Clients are `Faults.client_delay_ns` away from it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.messages.actions import Infer, Reject
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived, RequestCancelled, pieces_of
from mainspring.messages.model import ModelSpec
from mainspring.messages.queries import Piece, QueryStep, StepsKnown
from mainspring.simulator.costs import ProcessCosts
from mainspring.simulator.environment import NEVER_NS, Agenda, Link
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival

_CONFIG: Final = GatewayConfig()
GRACE_NS: Final = milliseconds(_CONFIG.grace_ms)
"""Time for which a request waits for an answer after its deadline."""
BEST_EFFORT_NS: Final = 60_000_000_000
"""Time for which a request without a deadline waits for an answer where a fault loses outputs: an operator's
``best_effort_timeout_ms``. Elsewhere it waits for as long as it takes."""


_PIECE_BITS: Final = 42
"""The index of a piece is in the bits of its id above these, and the request's id in those below."""


def piece_id(request_id: int, index: int) -> int:
    """Return the id of a request's piece."""
    return request_id | (index + 1) << _PIECE_BITS


class Flight:
    """A request between its arrival at the gateway and its reply."""

    __slots__ = (
        "action_id",
        "arrived_ns",
        "client",
        "dispatched_ns",
        "expires_ns",
        "key",
        "pieces",
        "request",
        "retry_ns",
    )

    def __init__(
        self, request: RequestArrived, arrived_ns: int, expires_ns: int, key: int, client: int
    ) -> None:
        self.request = request
        self.arrived_ns = arrived_ns
        self.action_id = -1
        """The action that it was last dispatched for."""
        self.dispatched_ns = arrived_ns
        self.expires_ns = expires_ns
        self.key = key
        """Key of its record; -1 if none is kept."""
        self.client = client
        """The closed-loop client that waits for the reply; -1 if none does."""
        self.pieces: dict[int, int] = {}
        """Its pieces without outputs, if it is a query: the action that each was last dispatched for."""
        self.retry_ns = 0
        """Same as `Arrival.retry_ns`."""


class Replies(Protocol):
    """A receiver of requests' outcomes. ``now_ns`` is when the reply is at the client."""

    def outputs(self, now_ns: int, flight: Flight, timing: Timing) -> None:
        """Outputs came."""

    def error(self, now_ns: int, flight: Flight, reason: Reason) -> None:
        """An error came."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SimulatedGateway:
    """The request table."""

    def __init__(
        self,
        faults: Faults,
        costs: ProcessCosts,
        agenda: Agenda,
        to_controller: Link,
        replies: Replies,
    ) -> None:
        self.flights: dict[int, Flight] = {}
        """Requests without an answer, by id."""
        self.arriving: deque[tuple[int, RequestArrived | QueryArrived | StepsKnown | RequestCancelled]] = (
            deque()
        )
        """Events on their way to the controller: (instant of arrival there, event), in order."""
        self.pieces: dict[int, list[RequestArrived]] = {}
        """Pieces of the queries among them, which follow if the controller admits these."""
        self._wholes: dict[int, Flight] = {}
        """The query of each piece without outputs, by the piece's id."""
        self._most_rows: dict[str, int] = {}
        self.second_answers = 0
        """Outputs and rejections of requests that had an answer."""
        self.agenda = agenda
        self._replies = replies
        self._to_controller = to_controller
        self._client_delay_ns = faults.client_delay_ns
        self._loses = faults.output_loss_probability > 0
        self._arrival_ns = round(costs.gateway_arrival_us * 1e3)
        self._reply_ns = round(costs.gateway_reply_us * 1e3)
        self._dispatch_ns = round(costs.gateway_dispatch_us * 1e3)
        self._free_ns = 0
        self._swept_ns = 0
        self.sweep_ns = NEVER_NS
        """Instant at which `sweep` is to be called next."""

    def model_up(self, spec: ModelSpec) -> None:
        """Serve a model."""
        self._most_rows[spec.name] = spec.max_rows

    def model_down(self, name: str) -> None:
        """Serve a model no longer."""

    def worker_lost(self, now_ns: int, worker: str) -> None:
        """Take note that a worker is gone."""

    def validate(self) -> None:
        """Check the invariants."""

    def submit(self, now_ns: int, request_id: int, arrival: Arrival, key: int = -1) -> Flight:
        """Take a request in that comes from its client now."""
        flight = self.enter(now_ns, request_id, arrival, key)
        request = flight.request
        most = self._most_rows.get(arrival.model, arrival.rows)
        if arrival.rows > most:
            pieces = [piece_id(request_id, index) for index in range(-(-arrival.rows // most))]
            for each in pieces:
                self.await_piece(flight, each)
            self._ask(self._free_ns, request, pieces, most)
        else:
            self.arriving.append((self._to_controller.arrival_ns(self._free_ns), request))
        return flight

    def enter(self, now_ns: int, request_id: int, arrival: Arrival, key: int) -> Flight:
        """Enter a request, of which the controller is yet to be told."""
        model, rows, slo_ns = arrival.model, arrival.rows, arrival.slo_ns
        more = arrival.priority, arrival.sizes, 0, 0, arrival.tenant
        now_ns = max(now_ns, self._free_ns)
        if slo_ns is None:
            request = RequestArrived(request_id, model, rows, None, *more)
            expires_ns = now_ns + BEST_EFFORT_NS if self._loses else NEVER_NS
        else:
            deadline_ns = now_ns + slo_ns
            request = RequestArrived(request_id, model, rows, deadline_ns, *more)
            expires_ns = deadline_ns + GRACE_NS
        flight = Flight(request, now_ns, expires_ns, key, arrival.client)
        self.flights[request_id] = flight
        if self.sweep_ns == NEVER_NS:
            self.sweep_ns = now_ns
        self._free_ns = now_ns + self._arrival_ns
        return flight

    def await_piece(self, whole: Flight, request_id: int) -> None:
        """Have a query wait for a piece."""
        whole.pieces[request_id], self._wholes[request_id] = -1, whole

    def forget_piece(self, whole: Flight, request_id: int) -> None:
        """Have a query wait for a piece no longer."""
        del whole.pieces[request_id], self._wholes[request_id]

    def whole_of(self, request_id: int) -> Flight | None:
        """Return the query of a piece without outputs."""
        return self._wholes.get(request_id)

    def piece_ended(self, now_ns: int, whole: Flight, request_id: int) -> None:
        """Have more pieces begin, if a query has any that waited for this one."""

    def sends_ns(self, now_ns: int) -> int:
        """Return when what is sent now is at the controller."""
        return self._to_controller.arrival_ns(max(now_ns, self._free_ns))

    def _ask(self, sent_ns: int, request: RequestArrived, pieces: list[int], most: int) -> None:
        """Send the controller a request of many rows: a query, and pieces of at most so many rows."""
        step = QueryStep(request.model, request.rows, request.sizes)
        query = QueryArrived(
            *(request.request_id, request.deadline_ns, (step,), request.priority), tenant=request.tenant
        )
        rows = [min(most, request.rows - index * most) for index in range(len(pieces))]
        named = tuple([Piece(*each) for each in zip(pieces, rows, strict=True)])
        self.pieces[query.query_id] = list(pieces_of(query, named))
        self.arriving.append((self._to_controller.arrival_ns(sent_ns), query))

    def dispatched(self, now_ns: int, action: Infer) -> int:
        """Note that the controller dispatched requests; return when all their inputs are pushed."""
        flights = self.flights
        if self._dispatch_ns:
            now_ns = max(now_ns, self._free_ns)
            now_ns += self._dispatch_ns * len(action.request_ids)
            self._free_ns = now_ns
        for request_id in action.request_ids:
            flight = flights.get(request_id) or self._wholes.get(request_id)
            if flight is not None:
                flight.action_id = action.action_id
                flight.dispatched_ns = now_ns
                if request_id in flight.pieces:
                    flight.pieces[request_id] = action.action_id
        return now_ns

    def outputs(self, now_ns: int, action: Infer, execute_ns: int) -> None:
        """Answer a batch's requests with outputs."""
        flights = self.flights
        size, worker, cold = action.batch_size, action.worker, action.cold
        index = -1
        for request_id in action.request_ids:
            index += 1
            flight = flights.pop(request_id, None)
            if flight is None and request_id in self._wholes:
                whole = self._wholes.pop(request_id)
                whole.action_id = whole.pieces.pop(request_id)
                self.piece_ended(now_ns, whole, request_id)
                if whole.pieces:
                    if whole.action_id != action.action_id:
                        self._withdraw(now_ns, request_id)
                    continue
                flight = flights.pop(whole.request.request_id)
            if flight is None:
                self.second_answers += 1
                continue
            left_ns = self._reply_leaves(now_ns)
            if flight.action_id != action.action_id:
                # It has been dispatched elsewhere meanwhile.
                self._withdraw(left_ns, request_id)
            self._answer(left_ns, flight, execute_ns, size, cold[index], worker)

    def _answer(
        self, left_ns: int, flight: Flight, execute_ns: int, size: int, cold: bool, worker: str
    ) -> None:
        deadline_ns = flight.request.deadline_ns
        timing = Timing(
            left_ns - flight.arrived_ns,
            flight.dispatched_ns - flight.arrived_ns,
            execute_ns,
            None if deadline_ns is None else deadline_ns - left_ns,
            size,
            cold,
            worker,
        )
        self._replies.outputs(left_ns + self._client_delay_ns, flight, timing)

    def answer(self, now_ns: int, flight: Flight) -> None:
        """Answer a query with the pieces that have outputs; of those that have none it waits for none."""
        del self.flights[flight.request.request_id]
        self._answer(self._reply_leaves(now_ns), flight, 0, 0, False, "")

    def _give_up(self, request_id: int) -> Flight | None:
        """Forget a request, with all its pieces."""
        flight = self.flights.pop(request_id, None)
        if flight is not None:
            for each in flight.pieces:
                del self._wholes[each]
        return flight

    def rejected(self, now_ns: int, command: Reject) -> None:
        """Pass the controller's rejection on."""
        flight = self._give_up(command.request_id)
        if flight is None:
            self.second_answers += 1
        else:
            self._error(now_ns, flight, command.reason)

    def cancel(self, now_ns: int, request_id: int) -> None:
        """Give a request up for its client."""
        flight = self._give_up(request_id)
        if flight is not None:
            self._error(now_ns, flight, Reason.CANCELLED)
            self._withdraw(now_ns, request_id)

    def sweep(self, now_ns: int) -> None:
        """Arrange for the time-outs until the next sweep.

        What comes in meanwhile expires after it, so that the few which are left long past their deadline are
        all that need a timer.
        """
        flights = self.flights
        if not flights:
            self.sweep_ns = NEVER_NS
            return
        self.sweep_ns = now_ns + GRACE_NS
        for request_id, flight in flights.items():
            if flight.expires_ns <= self.sweep_ns:
                self.agenda.at(max(now_ns, flight.expires_ns), self._time_out, request_id, flight)

    def _time_out(self, request_id: int, flight: Flight) -> None:
        if self.flights.get(request_id) is flight:
            self._give_up(request_id)
            self._error(flight.expires_ns, flight, Reason.TIMED_OUT)
            self._withdraw(flight.expires_ns, request_id)

    def _withdraw(self, now_ns: int, request_id: int) -> None:
        """Tell the controller that no client waits for a request any more."""
        sent_ns = self._free_ns if self._free_ns > now_ns else now_ns
        self.arriving.append((self._to_controller.arrival_ns(sent_ns), RequestCancelled(request_id)))

    def _error(self, now_ns: int, flight: Flight, reason: Reason) -> None:
        self._replies.error(self._reply_leaves(now_ns) + self._client_delay_ns, flight, reason)

    def _reply_leaves(self, now_ns: int) -> int:
        """Return when a reply leaves that can be made now."""
        if not self._reply_ns:
            return now_ns
        now_ns = max(now_ns, self._free_ns)
        self._free_ns = now_ns + self._reply_ns
        return self._free_ns
