"""The gateway's unchanged core in virtual time, in the place of its quick stand-in (`simulator.gateway`).

The core keeps the requests and decides what each is answered with. This driver gives it events and performs
its effects: a gateway that is busy takes its next message later, and its clients are
`Faults.client_delay_ns` away.
"""

from __future__ import annotations

from typing import Final

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.accounts import Account
from mainspring.gateway.core.effects import (
    Accepted,
    Answer,
    Arrive,
    Connection,
    Frame,
    Push,
    Refuse,
    Withdraw,
)
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import Signature
from mainspring.messages.actions import Infer, Reject
from mainspring.messages.events import RequestArrived, RequestCancelled
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Dispatch, Output, Rejected
from mainspring.simulator.costs import ProcessCosts
from mainspring.simulator.environment import NEVER_NS, Agenda, Link
from mainspring.simulator.gateway import BEST_EFFORT_NS, Flight, Replies, SimulatedGateway, piece_id
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival

_NO_LIMIT: Final = 1 << 60
_NUMBER: Final = 0
"""The gateway's number, with which its controller welcomes it."""
_CLIENT: Final = Connection("simulated", b"")
_AGAIN: Final = 1 << 62
"""Bit in the ids of requests that the core submits a second time."""
_UNKNOWN: Final = -1
"""Stands for a request that has its reply: an id that the core never gives."""
_NO_SIGNATURE: Final = Signature(ModelSpec("", "", "", (1,), 0, (), (), (), {}))
"""Signature of a model that the gateway does not know, which the controller rejects."""


class CoreGateway(SimulatedGateway):
    """The live gateway's core, its clock and its links."""

    def __init__(
        self, faults: Faults, costs: ProcessCosts, agenda: Agenda, to_controller: Link, replies: Replies
    ) -> None:
        super().__init__(faults, costs, agenda, to_controller, replies)
        # One simulated client stands for any number of real ones.
        config = GatewayConfig(
            best_effort_timeout_ms=BEST_EFFORT_NS / 1e6 if self._loses else 0,
            max_in_flight=_NO_LIMIT,
            max_in_flight_per_connection=_NO_LIMIT,
            max_in_flight_bytes=_NO_LIMIT,
        )
        self._signatures: dict[str, Signature] = {}
        """Signatures of every model that was ever served: what is under way outlives its model."""
        self._served: dict[str, Signature] = {}
        self.core = GatewayCore(config, self._served)
        self.core.controller_welcomed(0, _NUMBER)
        self._core_ids: dict[int, int] = {}
        """The core's first id of each request without an answer, by the simulation's id."""
        self._outside: dict[int, int] = {}
        """The simulation's id of each request without an answer, by the core's first id."""

    def model_up(self, spec: ModelSpec) -> None:
        """Serve a model."""
        self._signatures[spec.name] = self._served[spec.name] = Signature(spec)

    def model_down(self, name: str) -> None:
        """Serve a model no longer."""
        self._served.pop(name, None)

    def submit(self, now_ns: int, request_id: int, arrival: Arrival, key: int = -1) -> Flight:
        """Take in a request that comes from its client now."""
        model, rows, sizes = arrival.model, arrival.rows, arrival.sizes
        now_ns = max(now_ns, self._free_ns)
        self._free_ns = now_ns + self._arrival_ns
        signature = self._signatures.get(model, _NO_SIGNATURE)
        every_input = tuple(range(len(signature.inputs)))
        every_output = signature.every_output
        accepted = Accepted(
            *(model, rows, arrival.slo_ns, every_input, every_output, signature),
            priority=arrival.priority,
            sizes=sizes,
            account=Account(arrival.tenant) if arrival.tenant else None,
        )
        self.core.submit(
            now_ns, _CLIENT, request_id, accepted, _frames(signature.at(sizes).input_row_bytes, rows)
        )
        (arrive,) = self.core.drain()
        assert isinstance(arrive, Arrive), f"request {request_id} led to {arrive}"
        request = RequestArrived(
            *(request_id, model, rows, arrive.deadline_ns, arrive.priority, arrive.sizes),
            tenant=arrive.tenant,
        )
        flight = Flight(request, now_ns, NEVER_NS, key, arrival.client)
        self.flights[request_id] = flight
        self._core_ids[request_id] = arrive.request_id
        self._outside[arrive.request_id] = request_id
        for index, piece in enumerate(arrive.pieces):
            outside = piece_id(request_id, index)
            flight.pieces[outside] = -1
            self._core_ids[outside], self._outside[piece.request_id] = piece.request_id, outside
        if arrive.pieces:
            self._ask(self._free_ns, request, list(flight.pieces), signature.max_rows)
        else:
            self._tell(self._free_ns, request)
        self._wait()
        return flight

    def dispatched(self, now_ns: int, action: Infer) -> int:
        """Give the core a dispatch; return when all inputs are pushed."""
        if self._dispatch_ns:
            now_ns = max(now_ns, self._free_ns) + self._dispatch_ns * len(action.request_ids)
            self._free_ns = now_ns
        ids = tuple([self._core_id(each) for each in action.request_ids])
        message = Dispatch(action.action_id, action.worker, ids, action.cold, action.batch_size)
        self.core.dispatched(now_ns, message)
        self._perform(now_ns)
        return now_ns

    def outputs(self, now_ns: int, action: Infer, execute_ns: int) -> None:
        """Give the core a batch's outputs, one request after the other."""
        signature = self._signatures.get(action.model, _NO_SIGNATURE)
        for index, (request_id, rows) in enumerate(zip(action.request_ids, action.rows, strict=True)):
            row_bytes = signature.at(action.sizes_of(index)).output_row_bytes
            leaves_ns = max(now_ns, self._free_ns) + self._reply_ns if self._reply_ns else now_ns
            message = Output(action.action_id, self._core_id(request_id), execute_ns)
            self.core.outputs(leaves_ns, message, tuple(_frames(row_bytes, rows)))
            self._perform(leaves_ns)

    def rejected(self, now_ns: int, command: Reject) -> None:
        """Give the core the controller's rejection."""
        self.core.rejected(
            now_ns, Rejected(self._core_id(command.request_id), command.reason, command.detail)
        )
        self._perform(now_ns)

    def cancel(self, now_ns: int, request_id: int) -> None:
        """Give a request up for its client."""
        self.core.cancel(_CLIENT, request_id)
        self._perform(now_ns)

    def worker_lost(self, now_ns: int, worker: str) -> None:
        """Give the core the controller's message that a worker is gone."""
        self.core.worker_lost(now_ns, worker)
        self._perform(now_ns)

    def sweep(self, now_ns: int) -> None:
        """Let the core answer what has run out of time."""
        self.core.tick(now_ns)
        self._perform(now_ns)
        self._wait()

    def validate(self) -> None:
        """Check the core's invariants, and that a client waits for each request in its table."""
        self.core.validate()
        assert self.core.in_flight == len(self.flights), f"{self.core.in_flight}, {len(self.flights)} wait"

    # --- the steps ---

    def _perform(self, now_ns: int) -> None:
        """Do what the core asks for; inputs are pushed by the caller, for a whole batch."""
        for effect in self.core.drain():
            if isinstance(effect, Answer):
                if self._reply_ns:
                    self._free_ns = now_ns
                flight = self._ended(effect.key)
                self._replies.outputs(now_ns + self._client_delay_ns, flight, effect.timing)
            elif isinstance(effect, Refuse):
                self._error(now_ns, self._ended(effect.key), effect.reason)
            elif isinstance(effect, Withdraw):
                self._tell(now_ns, RequestCancelled(self._outside_id(effect.request_id)))
            elif isinstance(effect, Arrive):
                again = self._outside_id(effect.request_id)
                event = RequestArrived(
                    *(again, effect.model, effect.rows, effect.deadline_ns),
                    sizes=effect.sizes,
                    query=self._outside_id(effect.query) if effect.query else 0,
                    tenant=effect.tenant,
                )
                self._tell(now_ns, event)
            else:
                assert isinstance(effect, Push), f"{effect} is not an effect of a gateway's core"

    def _tell(self, now_ns: int, event: RequestArrived | RequestCancelled) -> None:
        sent_ns = self._free_ns if self._free_ns > now_ns else now_ns
        self.arriving.append((self._to_controller.arrival_ns(sent_ns), event))

    def _ended(self, request_id: int) -> Flight:
        flight = self.flights.pop(request_id)
        for each in (request_id, *flight.pieces):
            del self._outside[self._core_ids.pop(each)]
        return flight

    def _core_id(self, request_id: int) -> int:
        """Return what the core calls a request of the controller's; `_UNKNOWN` once it has its reply."""
        if request_id & _AGAIN:
            return request_id ^ _AGAIN
        return self._core_ids.get(request_id, _UNKNOWN)

    def _outside_id(self, core_id: int) -> int:
        """Return what the controller calls a request of the core's."""
        return self._outside.get(core_id, core_id | _AGAIN)

    def _wait(self) -> None:
        """Note when `sweep` is due."""
        wakeup_ns = self.core.next_wakeup_ns()
        self.sweep_ns = NEVER_NS if wakeup_ns is None else wakeup_ns


def _frames(row_bytes: tuple[int, ...], rows: int) -> list[Frame]:
    """Return tensors of the right sizes, whose content is never read."""
    return [range(rows * size) for size in row_bytes]
