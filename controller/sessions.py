"""The sessions of workers and gateways, their numbers, liveness and clocks.

A *session* begins with a hello and ends when the peer says goodbye, is silent for too long, says hello
again, is replaced or is dropped. A message belongs to the session that its peer (``ROLE/NAME`` of its
connection) has when the message arrives; the action id distinguishes a result of an earlier session of the
same worker (`WorkerSession.owns`).

A name belongs to the newest process that claims it: a worker restarted after a crash need not wait until the
former process has timed out. A process that lost its name is remembered, so that its next hello does not take
the name back while the new owner lives.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from mainspring.controller.clock import PeerClock
from mainspring.messages.ids import MAX_SESSIONS, gateway_number
from mainspring.messages.learning import GatewayLearning
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.observing import WorkerClock
from mainspring.messages.peers import GatewayHello, Ping, Pong, WorkerHello
from mainspring.transport import addresses
from mainspring.transport.addresses import Address
from mainspring.transport.local import Local

RETIRED_REMEMBERED = 1024
"""Processes that lost their name and are remembered; beyond this number the oldest is forgotten."""


class PeerSession:
    """The base of all sessions."""

    kind = "peer"

    def __init__(self, peer: bytes, name: str, number: int, now_ns: int) -> None:
        self.peer = peer
        """The connection's ``ROLE/NAME``."""
        self.name = name
        self.number = number
        """Counts the sessions of its kind from 1. A gateway's has the shard in the bits above, and is
        used again after `MAX_SESSIONS` at the earliest; others never are in this controller's life."""
        self.heard_ns = now_ns
        """Instant at which the last message from this peer arrived."""
        self._pings = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (session {self.number})"

    def ping(self, now_ns: int) -> Ping:
        """Return the next ping to send."""
        self._pings += 1
        return Ping(self._pings, now_ns)


class Session(PeerSession):
    """The base of the sessions of workers and gateways."""

    def __init__(self, peer: bytes, name: str, number: int, now_ns: int, clock_window: int) -> None:
        super().__init__(peer, name, number, now_ns)
        self.host = ""
        """The numeric address of its host; empty if it is the controller's own."""
        self.clock = PeerClock(clock_window)

    def pong(self, now_ns: int, pong: Pong) -> int:
        """Take a pong in; return by how much the peer's clock has stepped, in nanoseconds, 0 if it has not.

        Raises ValueError if it answers no ping of this session or contradicts itself.
        """
        if not 0 < pong.sequence <= self._pings:
            raise ValueError(f"a pong of sequence {pong.sequence} answers none of {self._pings} pings")
        return self.clock.add(pong.ping_sent_ns, pong.received_ns, pong.sent_ns, now_ns)


class WorkerSession(Session):
    """A connected worker."""

    kind = "worker"

    def __init__(self, peer: bytes, hello: WorkerHello, number: int, now_ns: int, clock_window: int) -> None:
        super().__init__(peer, hello.worker, number, now_ns, clock_window)
        self.hello = hello
        self.joined = False
        """True if the scheduler knows the worker, which follows once its clock is known."""
        self.actions_after = 0
        """The last action id issued before this session joined."""
        self.infers_out: set[int] = set()
        """The ids of INFERs that were sent to the worker and have no result yet."""
        self.dropped: dict[str, int] = {}
        """Messages that the worker could not use or deliver since it started, by reason."""
        self.health = DeviceHealth()
        """Report on its GPU, as its last pong had it."""

    def owns(self, action_id: int) -> bool:
        """Say whether a result belongs to this session, not to an earlier one of the same worker."""
        return self.joined and action_id > self.actions_after


class GatewaySession(Session):
    """A connected gateway; its ``number`` is in its request ids, from bit 40 up."""

    kind = "gateway"

    def __init__(self, peer: bytes, hello: GatewayHello, number: int, now_ns: int, clock_window: int) -> None:
        super().__init__(peer, hello.gateway, number, now_ns, clock_window)
        self.refused: dict[str, int] | None = None
        """Requests that it has refused itself since it started, by reason; None before its first pong."""
        self.refused_noted: dict[str, int] = {}
        """Number of them that the event log has, or that were refused before this session, by reason."""
        self.seed = hello.seed
        """Same as `GatewayHello.seed`."""
        self.learning = GatewayLearning()
        """Its newest report on its applications."""


class SessionTable:
    """All sessions, by peer, by name and, for gateways, by number."""

    def __init__(
        self, clock_window: int, shard: int = 0, clocks: dict[bytes, PeerClock] | None = None
    ) -> None:
        """``shard``: the controller's own, of several; ``clocks``: what is known of peers' clocks."""
        self._clocks = clocks or {}
        self._clock_window = clock_window
        self._shard = shard
        self._by_peer: dict[bytes, WorkerSession | GatewaySession] = {}
        self.workers: dict[str, WorkerSession] = {}
        """Worker sessions by worker name, in the order of their beginning."""
        self.gateways: dict[str, GatewaySession] = {}
        """Gateway sessions by gateway name, in the order of their beginning."""
        self._gateway_by_number: dict[int, GatewaySession] = {}
        self._workers_begun = self._gateways_begun = 0
        self._retired: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """The number of sessions of both kinds."""
        return len(self._by_peer)

    def all(self) -> Iterable[WorkerSession | GatewaySession]:
        """Every session, in the order of their beginning."""
        return self._by_peer.values()

    def find(self, peer: bytes) -> WorkerSession | GatewaySession | None:
        """Return the session of a peer."""
        return self._by_peer.get(peer)

    def devices(self) -> dict[str, DeviceHealth]:
        """Return what workers' GPUs said last, by worker, of those that said something."""
        silent = DeviceHealth()
        return {each.name: each.health for each in self.workers.values() if each.health != silent}

    def clocks(self, now_ns: int) -> dict[str, WorkerClock]:
        """Return what is known of workers' clocks, by worker, of those that have joined."""
        return {
            each.name: WorkerClock(
                each.clock.offset_ns(now_ns), each.clock.error_ns(now_ns), round(each.clock.rate * 1e6, 3)
            )
            for each in self.workers.values()
            if each.joined
        }

    def gateway(self, number: int) -> GatewaySession | None:
        """Return the gateway with this number."""
        return self._gateway_by_number.get(number)

    def replaced_by(
        self, peer: bytes, hello: WorkerHello | GatewayHello
    ) -> list[WorkerSession | GatewaySession]:
        """Return the sessions that a hello ends: the process's earlier one, and the name's earlier owner."""
        owner = self._name_owner(hello)
        found = [self._by_peer.get(peer), owner]
        return [session for index, session in enumerate(found) if session and session not in found[:index]]

    def name_is_lost(self, peer: bytes, hello: WorkerHello | GatewayHello) -> bool:
        """Say whether this process lost its name to a newer process that still has it."""
        owner = self._name_owner(hello)
        return owner is not None and owner.peer != peer and peer in self._retired

    def open_worker(self, now_ns: int, peer: bytes, hello: WorkerHello) -> WorkerSession:
        """Begin a worker's session; the sessions of `replaced_by` must be closed."""
        self._workers_begun += 1
        session = WorkerSession(peer, hello, self._workers_begun, now_ns, self._clock_window)
        session.clock = self._clocks.pop(peer, session.clock)
        self._enter(session)
        self.workers[session.name] = session
        return session

    def open_gateway(self, now_ns: int, peer: bytes, hello: GatewayHello) -> GatewaySession:
        """Begin a gateway's session; the sessions of `replaced_by` must be closed."""
        session = GatewaySession(peer, hello, self._next_number(), now_ns, self._clock_window)
        session.clock = self._clocks.pop(peer, session.clock)
        self._enter(session)
        self.gateways[session.name] = session
        self._gateway_by_number[session.number] = session
        return session

    def _next_number(self) -> int:
        """Return a number that no gateway has."""
        while True:
            self._gateways_begun += 1
            number = gateway_number(self._shard, self._gateways_begun % MAX_SESSIONS)
            if number not in self._gateway_by_number:
                return number

    def close(self, session: WorkerSession | GatewaySession, name_lost: bool = False) -> None:
        """End a session. ``name_lost``: its name went to a newer process."""
        del self._by_peer[session.peer]
        if isinstance(session, WorkerSession):
            del self.workers[session.name]
        else:
            del self.gateways[session.name]
            del self._gateway_by_number[session.number]
        if name_lost:
            self._retired[session.peer] = None
            if len(self._retired) > RETIRED_REMEMBERED:
                self._retired.popitem(last=False)

    def is_open(self, session: Session) -> bool:
        """Say whether this session, not only another one of its peer, is open."""
        return self._by_peer.get(session.peer) is session

    def silent_since(self, instant_ns: int) -> list[WorkerSession | GatewaySession]:
        """Return the sessions from which nothing has arrived since an instant."""
        return [session for session in self._by_peer.values() if session.heard_ns < instant_ns]

    def infers_out(self) -> int:
        """Return how many INFERs are out on connected workers."""
        return sum(len(worker.infers_out) for worker in self.workers.values())

    def _name_owner(self, hello: WorkerHello | GatewayHello) -> WorkerSession | GatewaySession | None:
        if isinstance(hello, WorkerHello):
            return self.workers.get(hello.worker)
        return self.gateways.get(hello.gateway)

    def _enter(self, session: WorkerSession | GatewaySession) -> None:
        if session.peer in self._by_peer:
            raise AssertionError(f"{session} begins while its process's former session is open")
        self._by_peer[session.peer] = session
        self._retired.pop(session.peer, None)


_LOGGER = logging.getLogger(__name__)
MOST_REMEMBERED: Final = 4096
"""Peers that are gone; of those beyond, the first are forgotten."""


class Absences:
    """Tells of each peer that is lost, and of its return, once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """``tell`` is given a line for a person."""
        self._tell = tell
        self._since_ns: dict[tuple[str, str], int] = {}

    def lost(self, now_ns: int, session: Session, why: str) -> None:
        """A session has ended, and nobody wanted that."""
        name = (session.kind, session.name)
        if name not in self._since_ns and len(self._since_ns) >= MOST_REMEMBERED:
            del self._since_ns[next(iter(self._since_ns))]
        self._since_ns.setdefault(name, now_ns)
        self._say(f"{session.kind} {session.name} is lost: {why}")

    def here(self, now_ns: int, session: Session) -> None:
        """A peer has joined; nothing is said unless it was lost."""
        since_ns = self._since_ns.pop((session.kind, session.name), None)
        if since_ns is not None:
            self._say(f"{session.kind} {session.name} is back after {(now_ns - since_ns) / 1e9:.2g} s")

    def _say(self, text: str) -> None:
        _LOGGER.warning("%s", text)
        self._tell(text)


REMEDY = (
    "start the worker with --data-address tcp://HOST:*, an address of its host that gateways reach, or with "
    "--data-host HOST beside it if they know that host by another name"
)


def address_fault(address: str) -> str | None:
    """Return what is wrong with an address that a worker tells others, wherever they are, or None."""
    try:
        found = addresses.parse(address)
    except ValueError as error:
        return f"its data address can't be used: {error}"
    if isinstance(found, Address) and addresses.is_unspecified(found.host):
        return f"its data address {address} names no host, so that nobody can connect there; {REMEDY}"
    if isinstance(found, Address | Local):
        return None
    return f"its data address {address} is none of a worker; {REMEDY}"


def unreachable(address: str, worker_host: str, gateway_host: str) -> bool:
    """Say whether a worker's address is of use on the worker's host only, and the gateway is on another.

    Hosts are numeric addresses as the controller sees them, empty for its own.
    """
    if worker_host == gateway_host:
        return False
    found = addresses.parse(address)
    return isinstance(found, Local) or addresses.is_loopback(found.host)


def cut_off(worker: str, address: str, gateway: str) -> str:
    """Return the refusal for a worker and a gateway of which `unreachable` is true."""
    return f"gateway {gateway!r} is on another host and can't reach worker {worker!r} at {address}: {REMEDY}"
