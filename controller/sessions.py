"""Who is connected: sessions of workers and gateways, their numbers, liveness and clocks. Pure.

A *session* begins with a hello and ends when the peer says goodbye, is silent for too long, says hello
again, is taken over or is dropped. What arrives under a routing id belongs to its session of that moment;
a result of an earlier session of the same worker is told apart by its action id (`WorkerSession.owns`).

A name belongs to the newest process that claims it: a worker restarted after a crash need not wait for
its former self to time out. The process that lost its name is remembered, so that its next hello does not
take the name back while the new owner lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from mainspring.controller.clock import ClockOffset
from mainspring.messages.peers import GatewayHello, Ping, Pong, WorkerHello

RETIRED_REMEMBERED = 1024
"""Processes remembered to have lost their name; beyond it the oldest is forgotten."""


class Session:
    """What a worker's and a gateway's session have in common."""

    kind = "peer"

    def __init__(self, routing_id: bytes, name: str, number: int, now_ns: int, clock_window: int) -> None:
        self.routing_id = routing_id
        self.name = name
        self.number = number
        """Counts the sessions of its kind from 1; never used again in this controller's life."""
        self.clock = ClockOffset(clock_window)
        self.heard_ns = now_ns
        """When the last message of this peer arrived."""
        self._pings = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (session {self.number})"

    def ping(self, now_ns: int) -> Ping:
        """Return the next ping to send."""
        self._pings += 1
        return Ping(self._pings, now_ns)

    def pong(self, now_ns: int, pong: Pong) -> None:
        """Take a pong in; raise ValueError if it answers no ping of ours or contradicts itself."""
        if not 0 < pong.sequence <= self._pings:
            raise ValueError(f"a pong of sequence {pong.sequence} answers none of {self._pings} pings")
        self.clock.add(pong.ping_sent_ns, pong.received_ns, pong.sent_ns, now_ns)


class WorkerSession(Session):
    """A connected worker."""

    kind = "worker"

    def __init__(
        self, routing_id: bytes, hello: WorkerHello, number: int, now_ns: int, clock_window: int
    ) -> None:
        super().__init__(routing_id, hello.worker, number, now_ns, clock_window)
        self.hello = hello
        self.joined = False
        """Whether the scheduler knows of it: only once its clock is known."""
        self.actions_after = 0
        """The last action id given out before this session joined."""
        self.infers_out: set[int] = set()
        """The ids of INFERs that were sent to it and have no result."""
        self.dropped: dict[str, int] = {}
        """What the worker could not use or deliver since it started, by why."""

    def owns(self, action_id: int) -> bool:
        """Say whether a result is of this session, not of an earlier one of the same worker."""
        return self.joined and action_id > self.actions_after


class GatewaySession(Session):
    """A connected gateway; its ``number`` is in its request ids, from bit 40 up."""

    kind = "gateway"

    def __init__(
        self, routing_id: bytes, hello: GatewayHello, number: int, now_ns: int, clock_window: int
    ) -> None:
        super().__init__(routing_id, hello.gateway, number, now_ns, clock_window)


AnySession = TypeVar("AnySession", WorkerSession, GatewaySession)


class _Kind(dict[str, AnySession]):
    """The sessions of one kind by name, and the number of the last."""

    last_number = 0


class SessionTable:
    """All sessions, by routing id, by name and, for gateways, by number."""

    def __init__(self, clock_window: int) -> None:
        self._clock_window = clock_window
        self._by_routing_id: dict[bytes, WorkerSession | GatewaySession] = {}
        self.workers: _Kind[WorkerSession] = _Kind()
        """Worker sessions by worker name, in the order of their beginning."""
        self.gateways: _Kind[GatewaySession] = _Kind()
        """Gateway sessions by gateway name, in the order of their beginning."""
        self._gateway_by_number: dict[int, GatewaySession] = {}
        self._retired: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Sessions of both kinds."""
        return len(self._by_routing_id)

    def all(self) -> Iterable[WorkerSession | GatewaySession]:
        """Every session, in the order of their beginning."""
        return self._by_routing_id.values()

    def find(self, routing_id: bytes) -> WorkerSession | GatewaySession | None:
        """The session of a routing id."""
        return self._by_routing_id.get(routing_id)

    def gateway(self, number: int) -> GatewaySession | None:
        """The gateway of a number."""
        return self._gateway_by_number.get(number)

    def replaced_by(
        self, routing_id: bytes, hello: WorkerHello | GatewayHello
    ) -> list[WorkerSession | GatewaySession]:
        """The sessions that a hello ends: the same process's earlier one, and the name's earlier owner."""
        owner = self._name_owner(hello)
        found = [self._by_routing_id.get(routing_id), owner]
        return [session for index, session in enumerate(found) if session and session not in found[:index]]

    def name_is_lost(self, routing_id: bytes, hello: WorkerHello | GatewayHello) -> bool:
        """Say whether this process lost its name to a newer one that still has it."""
        owner = self._name_owner(hello)
        return owner is not None and owner.routing_id != routing_id and routing_id in self._retired

    def open_worker(self, now_ns: int, routing_id: bytes, hello: WorkerHello) -> WorkerSession:
        """Begin a worker's session; those of `replaced_by` must have been closed."""
        self.workers.last_number += 1
        session = WorkerSession(routing_id, hello, self.workers.last_number, now_ns, self._clock_window)
        self._enter(session)
        self.workers[session.name] = session
        return session

    def open_gateway(self, now_ns: int, routing_id: bytes, hello: GatewayHello) -> GatewaySession:
        """Begin a gateway's session; those of `replaced_by` must have been closed."""
        self.gateways.last_number += 1
        session = GatewaySession(routing_id, hello, self.gateways.last_number, now_ns, self._clock_window)
        self._enter(session)
        self.gateways[session.name] = session
        self._gateway_by_number[session.number] = session
        return session

    def close(self, session: WorkerSession | GatewaySession, name_lost: bool = False) -> None:
        """End a session. ``name_lost``: its name went to a newer process."""
        del self._by_routing_id[session.routing_id]
        if isinstance(session, WorkerSession):
            del self.workers[session.name]
        else:
            del self.gateways[session.name]
            del self._gateway_by_number[session.number]
        if name_lost:
            self._retired[session.routing_id] = None
            if len(self._retired) > RETIRED_REMEMBERED:
                self._retired.popitem(last=False)

    def is_open(self, session: Session) -> bool:
        """Say whether this very session has not ended."""
        return self._by_routing_id.get(session.routing_id) is session

    def silent_since(self, instant_ns: int) -> list[WorkerSession | GatewaySession]:
        """The sessions that were last heard before an instant."""
        return [session for session in self._by_routing_id.values() if session.heard_ns < instant_ns]

    def _name_owner(self, hello: WorkerHello | GatewayHello) -> WorkerSession | GatewaySession | None:
        if isinstance(hello, WorkerHello):
            return self.workers.get(hello.worker)
        return self.gateways.get(hello.gateway)

    def _enter(self, session: WorkerSession | GatewaySession) -> None:
        if session.routing_id in self._by_routing_id:
            raise AssertionError(f"{session} begins while its process's former session is open")
        self._by_routing_id[session.routing_id] = session
        self._retired.pop(session.routing_id, None)
