"""The front end for Mainspring's own clients: `messages.clients` over ZeroMQ (`zeromq_listener`).

A session begins with a connection's hello and ends with the connection: what it may do is its own, whatever
identity the client's socket has. Bytes that are not a message are answered and counted, never more. A client
that does not read its replies is cut off once as many wait as `GatewayConfig` allows, in messages or in
bytes: its requests are given up, and its connection ends (over ZeroMQ) or it finds a `ClientRefused` behind
what had been sent.

A gateway that has just started welcomes nobody before it knows the controller's models, for up to
``controller_timeout_ms``: until then it could only refuse what it will serve in a moment.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from mainspring.gateway.client_memory import BadPlace, ClientMemories
from mainspring.gateway.config import AGES, GatewayConfig, installed_version, milliseconds
from mainspring.gateway.core.admin import Reply
from mainspring.gateway.core.effects import Answer, Connection, Refuse
from mainspring.gateway.descriptors import share
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.zeromq_listener import ZeroMqListener
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.clients import ClientRefused, ClientWelcome, ErrorReply, InferReply
from mainspring.messages.codec import FROM_CLIENT, BadMessage, encode
from mainspring.messages.codes import Reason
from mainspring.messages.delays import Ways
from mainspring.messages.learning import Observe
from mainspring.messages.operating import AssignWorkers
from mainspring.transport.bounds import Delivery
from mainspring.transport.hub import Hub
from mainspring.transport.tokens import EVERYTHING, NOTHING, Credential, Refusal, credential

NAME = "zeromq"
_SPARE_CONNECTIONS = 256
"""Connections beyond those that may have a session: they are told why they have none."""
_SLOW_READER = encode(
    ClientRefused(
        "slow_reader",
        "too many replies waited unread and the rest was dropped; read faster or ask for less",
    )
)
_LOOK_NS = 250_000_000
"""Nanoseconds between two looks at which clients are to go."""
_LEAVES_AGAIN_NS = 1_000_000_000
"""Nanoseconds until a client that comes to a gateway which is about to stop is told to go."""
_NEVER_NS = 1 << 61
_IDLE_SEARCH = 64
"""Number of the longest silent connections that are looked at for one that can be forgotten."""


class Clients(Protocol):
    """The connections of clients, whatever they come over; see `ZeroMqListener`."""

    address: str

    def pending(self) -> bool:
        """Return whether a message may have come."""

    def receive(self) -> tuple[bytes, list[Any], str] | None:
        """Return the next message's sender and parts, and what is wrong with it."""

    def send(self, name: bytes, parts: Sequence[Any]) -> Delivery:
        """Send a message."""

    def descriptor(self, name: bytes) -> int | None:
        """Return the oldest descriptor that came along with a client's messages, for the caller to close."""

    def welcome(self, name: bytes, known: bool) -> None:
        """Say whether a client has a session."""

    def dismiss(self, name: bytes, parts: Sequence[Any]) -> None:
        """Send a last message to a client that reads too slowly, or end its connection."""


class ZeroMqFrontEnd:
    """Clients and their sessions; see the module's docstring."""

    def __init__(
        self,
        config: GatewayConfig,
        driver: GatewayDriver,
        hub: Hub,
        *,
        name: str = NAME,
        listen: Callable[[ZeroMqFrontEnd], Clients] | None = None,
    ) -> None:
        """Listen; raise OSError if the address can't be had.

        ``listen`` returns who is listened to instead of ZeroMQ's clients, and ``name`` is what the front end
        is called then.
        """
        self._config = config
        self._driver = driver
        self._memories = ClientMemories(config, driver.memory.lendings, local=listen is not None)
        self._ways = Ways()
        self._connections: dict[bytes, Connection] = {}
        """Clients that said hello, the longest silent first."""
        self._shown: dict[bytes, Credential] = {}
        """The token that each of `_connections` showed, while tokens are needed."""
        self._goes_ns: dict[bytes, int] = {}
        """Instant at which each client that knows how to go is told to go."""
        self._look_ns = 0
        self._leaving = False
        self._early: dict[bytes, clients.ClientHello] = {}
        """Hellos that came before the controller's models."""
        self._open_ns = self._driver.clock() + milliseconds(config.controller_timeout_ms)
        """Instant from which clients are welcomed even without a controller."""
        self._name = name
        self._listener = _listener(self, config, driver, hub) if listen is None else listen(self)
        self.address = self._listener.address
        driver.front_ends[name] = self

    def readable(self) -> bool:
        """Return whether a message may have come."""
        return self._listener.pending()

    def serve(self, limit: int) -> None:
        """Take a bounded number of messages."""
        for _ in range(limit):
            received = self._listener.receive()
            if received is None:
                return
            self._take(*received)

    def busy(self, name: bytes) -> bool:
        """Return whether a client waits for answers."""
        connection = self._connections.get(name)
        return connection is not None and self._driver.core.connection_in_flight(connection) > 0

    def gone(self, name: bytes) -> None:
        """A connection is over, and its session with it: its requests are given up."""
        self._early.pop(name, None)
        self._memories.end(name)
        self._forget(name)

    def violated(self, why: str) -> Sequence[bytes]:
        """Return what a client is told whose connection ends because of what it sent."""
        self._driver.counts["bad_messages_from_clients"] += 1
        return (encode(ClientRefused("bad_message", f"this connection ends: {why[:300]}")),)

    def flooded(self) -> None:
        """Count a connection that was closed because its host begins too many handshakes."""
        self._driver.counts["handshakes_refused"] += 1

    def _take(self, peer: bytes, frames: list[Any], wrong: str) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            # To the end: what stays at the front has been silent for longest.
            self._connections[peer] = connection
        elif wrong:
            self._not_known(peer)
            return
        try:
            if wrong or not frames:
                raise BadMessage(wrong or "it is empty")
            message = FROM_CLIENT.decode(frames[0])
        except BadMessage as error:
            self._bad_message(peer, connection, frames, str(error))
            return
        if isinstance(message, clients.ClientHello):
            if self._open(self._driver.clock()) or len(self._early) >= self._config.max_connections:
                self._hello(peer, message)
            else:
                self._early[peer] = message
        elif connection is None:
            self._not_known(peer)
        else:
            self._from_client(connection, message, frames[1:])

    def _not_known(self, peer: bytes) -> None:
        self._driver.counts["unknown_clients"] += 1
        self._send(peer, encode(ClientRefused("unknown_session", "say hello first")))

    def _from_client(self, connection: Connection, message: object, frames: list[Any]) -> None:
        if self._driver.gate.closed and (refusal := self._refusal(connection, message)) is not None:
            if isinstance(message, clients.InferRequest):
                self._driver.core.observers.turned_away(message, refusal[0])
            self._send(connection.peer, encode(ErrorReply(getattr(message, "key", 0), *refusal)))
            return
        match message:
            case clients.InferRequest():
                self._infer(connection, message, frames)
            case clients.Alive():
                self._send(connection.peer, encode(message))
            case clients.CancelRequest():
                self._driver.cancel(connection, message.key)
            case clients.OfferMemory(size=size):
                descriptor = self._listener.descriptor(connection.peer)
                said = self._memories.offer(connection.peer, size, descriptor)
                self._send(connection.peer, encode(clients.MemoryTaken(said)))
            case clients.EndSequence():
                self._driver.end_sequence(message)
                self._send(connection.peer, encode(clients.Done(message.key)))
            case Observe():
                self._driver.learning.observe(self._driver.clock(), message, self._then(connection))
            case clients.TopK():
                self._driver.catalog.top_k(self._driver.clock(), message, self._then(connection))
            case clients.ForgetContext():
                self._send(connection.peer, encode(self._driver.catalog.forget(message)))
            case clients.ListModels():
                self._list_models(connection, message.key)
            case clients.ListGraphs():
                self._list_graphs(connection, message.key)
            case clients.ListApplications():
                found = tuple(self._driver.catalog.graphs.reports(self._sees(connection)))
                self._send(connection.peer, encode(clients.ApplicationList(message.key, found)))
            case (
                clients.AddModel()
                | clients.RemoveModel()
                | clients.Scale()
                | clients.BoundQueue()
                | clients.WeighModel()
                | AssignWorkers()
                | clients.AddGraph()
                | clients.RemoveGraph()
                | clients.GetStatus()
            ):
                self._driver.ask(connection, message)

    def _then(self, connection: Connection) -> Callable[[msgspec.Struct], None]:
        """Return what sends a client the reply that it is given."""
        return lambda told: self._send(connection.peer, encode(told))

    def _infer(self, connection: Connection, message: clients.InferRequest, frames: list[Any]) -> None:
        request = self._ways.arrived(self._driver.clock(), connection.peer, message)
        if request.acknowledge:
            self._send(connection.peer, encode(clients.Received(request.key)))
        if request.places:
            try:
                frames = self._memories.frames(connection.peer, request, frames)
            except BadPlace as error:
                self._driver.core.observers.turned_away(request, Reason.BAD_INPUT)
                self._send(connection.peer, encode(ErrorReply(request.key, Reason.BAD_INPUT, str(error))))
                return
        lent = bool(request.places)
        capped, shown = self._capped(connection, request), self._shown.get(connection.peer, NOTHING)
        self._driver.submit(connection, capped, frames, lent=lent, shown=shown)

    def _capped(self, connection: Connection, message: clients.InferRequest) -> clients.InferRequest:
        """Return a request with no better priority than its client's token allows."""
        if message.priority <= 0 or not self._driver.gate.closed:
            return message
        priority = self._driver.gate.priority(self._shown.get(connection.peer, NOTHING), message.priority)
        return msgspec.structs.replace(message, priority=priority)

    def _refusal(self, connection: Connection, message: object) -> Refusal | None:
        """Return why the client may not send a message, if it may not."""
        now_ns = self._driver.clock()
        check, shown = self._driver.gate.check, self._shown.get(connection.peer, NOTHING)
        match message:
            case (
                clients.InferRequest(model=model)
                | clients.EndSequence(model=model)
                | Observe(application=model)
                | clients.TopK(application=model)
            ):
                return check(shown, model, now_ns)
            case clients.AddModel(model=spec):
                return check(shown, spec.public_name, now_ns, administers=True)
            case clients.RemoveModel(name=name):
                return check(shown, self._public(name), now_ns, administers=True)
            case clients.BoundQueue(name=name) | clients.WeighModel(name=name):
                return check(shown, name, now_ns, administers=True)
            case clients.AddGraph(graph=graph):
                return check(shown, graph.name, now_ns, administers=True)
            case clients.RemoveGraph(name=name) | clients.ForgetContext(application=name):
                return check(shown, name, now_ns, administers=True)
            case clients.Scale() | AssignWorkers():
                return check(shown, EVERYTHING, now_ns, administers=True)
            case (
                clients.ListModels() | clients.ListGraphs() | clients.ListApplications() | clients.GetStatus()
            ):
                return check(shown, None, now_ns)
            case _:
                return None

    def _public(self, name: str) -> str:
        """Return what clients call the model that the scheduler knows by this name."""
        signature = self._driver.catalog.signatures.get(name)
        return name if signature is None else signature.spec.public_name

    def _list_models(self, connection: Connection, key: int) -> None:
        alone, gate = self._driver.alone, self._driver.gate
        served = self._driver.catalog.models()
        if gate.closed:
            shown = self._shown.get(connection.peer, NOTHING)
            served = tuple([each for each in served if gate.may_see(shown, each.name)])
        models = clients.ModelList(key, served)
        reply = models if alone is None else ErrorReply(key, Reason.CONTROLLER_UNREACHABLE, alone)
        self._send(connection.peer, encode(reply))

    def _sees(self, connection: Connection) -> Callable[[str], bool]:
        """Return whether a model of a name may be listed for a client."""
        gate, shown = self._driver.gate, self._shown.get(connection.peer, NOTHING)
        return lambda name: not gate.closed or gate.may_see(shown, name)

    def _list_graphs(self, connection: Connection, key: int) -> None:
        sees, graphs = self._sees(connection), self._driver.catalog.graphs
        found = [
            clients.ServedGraph(spec, graphs.fault(name))
            for name, spec in sorted(graphs.specs.items())
            if sees(name)
        ]
        self._send(connection.peer, encode(clients.GraphList(key, tuple(found))))

    def _hello(self, peer: bytes, message: clients.ClientHello) -> None:
        shown = credential(message.token)
        refused = self._unwelcome(peer, message, shown)
        if refused is not None:
            # A client that says hello again no longer speaks by the former one.
            self._forget(peer)
            self._send(peer, encode(refused))
            return
        self._connections[peer] = Connection(self._name, peer)
        self._ways.hello(self._driver.clock(), peer, message)
        self._listener.welcome(peer, True)
        if message.goes:
            self._note_age(peer)
        if self._driver.gate.closed:
            self._shown[peer] = shown
        welcome = ClientWelcome(
            protocol=PROTOCOL_VERSION,
            server_version=installed_version(),
            max_message_bytes=self._config.max_message_bytes,
            max_in_flight=self._config.max_in_flight_per_connection,
            acknowledges=True,
            memory_bytes=self._memories.room_bytes,
        )
        self._send(peer, encode(welcome))

    def _unwelcome(self, peer: bytes, hello: clients.ClientHello, shown: Credential) -> ClientRefused | None:
        """Return why a client may not have a session, if it may not."""
        if hello.protocol != PROTOCOL_VERSION:
            detail = f"the gateway speaks version {PROTOCOL_VERSION}, the client {hello.protocol}"
            return ClientRefused("protocol_mismatch", detail)
        if (unknown := self._driver.gate.known(shown)) is not None:
            return ClientRefused(*unknown[:2])
        if peer not in self._connections and not self._make_room():
            detail = f"{len(self._connections)} clients are busy here, the most the gateway serves; try later"
            return ClientRefused("too_many_clients", detail)
        return None

    def leave(self) -> None:
        """Tell clients to go, those that are connected and those that come yet; they are served as before."""
        self._leaving = True
        for peer in list(self._goes_ns):
            self._tell_to_go(peer)

    def _note_age(self, peer: bytes) -> None:
        age_ns = milliseconds(self._config.max_connection_age_ms)
        if self._leaving:
            age_ns = _LEAVES_AGAIN_NS
        elif not age_ns:
            age_ns = _NEVER_NS
        self._goes_ns[peer] = self._driver.clock() + round(age_ns * random.uniform(*AGES))

    def _tell_to_go(self, peer: bytes) -> None:
        del self._goes_ns[peer]
        self._send(peer, encode(clients.GoAway(milliseconds(self._config.max_connection_age_grace_ms))))

    def _make_room(self) -> bool:
        """Return whether there is room, if need be by forgetting a silent client with nothing in flight."""
        if len(self._connections) < self._config.max_connections:
            return True
        oldest = itertools.islice(self._connections.items(), _IDLE_SEARCH)
        idle = next((peer for peer, each in oldest if not self._driver.core.connection_in_flight(each)), None)
        if idle is None:
            return False
        self._forget(idle)
        return True

    def _bad_message(
        self, peer: bytes, connection: Connection | None, frames: Sequence[Any], why: str
    ) -> None:
        self._driver.counts["bad_messages_from_clients"] += 1
        key = _key_of(frames[0]) if frames else None
        detail = f"the message can't be read: {why[:300]}"
        if connection is None or key is None:
            self._send(peer, encode(ClientRefused("bad_message", detail)))
        else:
            self._send(peer, encode(ErrorReply(key, Reason.BAD_MESSAGE, detail)))

    # --- replies ---

    def answer(self, answer: Answer) -> None:
        """Send a request's outputs."""
        message = encode(InferReply(answer.key, answer.outputs, answer.timing, self._driver.clock()))
        self._send(answer.connection.peer, message, answer.frames)

    def refuse(self, refusal: Refuse) -> None:
        """Send a request's refusal."""
        what = (refusal.reason, refusal.detail, refusal.earliest_finish_left_ns)
        self._send(refusal.connection.peer, encode(ErrorReply(refusal.key, *what, self._driver.clock())))

    def reply(self, connection: Connection, message: Reply) -> None:
        """Send the reply to a command; of a status, what the client may see."""
        gate = self._driver.gate
        if gate.closed and isinstance(message, clients.StatusReply):
            shown = self._shown.get(connection.peer, NOTHING)
            seen = [each for each in message.status.models if gate.may_see(shown, self._public(each.name))]
            unready = {name: why for name, why in message.status.unready.items() if gate.may_see(shown, name)}
            status = msgspec.structs.replace(message.status, models=tuple(seen), unready=unready)
            message = msgspec.structs.replace(message, status=status)
        self._send(connection.peer, encode(message))

    def _send(self, peer: bytes, message: bytes, frames: Sequence[Any] = ()) -> None:
        match self._listener.send(peer, (message, *frames)):
            case Delivery.FULL:
                self._driver.counts["replies_to_slow_readers"] += 1
                self._forget(peer)
                self._listener.dismiss(peer, (_SLOW_READER,))
            case Delivery.GONE:
                self._driver.counts["replies_to_clients_that_left"] += 1
                self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        """End a session; its connection may say hello again."""
        self._shown.pop(peer, None)
        self._goes_ns.pop(peer, None)
        self._ways.forget(peer)
        connection = self._connections.pop(peer, None)
        if connection is not None:
            self._listener.welcome(peer, False)
            self._driver.forget(connection)

    # --- time ---

    def _open(self, now_ns: int) -> bool:
        """Say whether clients are welcome."""
        return self._driver.told.ready or now_ns >= self._open_ns

    def tick(self, now_ns: int) -> None:
        """Welcome clients that came early; tell those to go that have been here for long."""
        if (self._leaving or self._config.max_connection_age_ms) and now_ns >= self._look_ns:
            self._look_ns = now_ns + _LOOK_NS
            for peer in [peer for peer, at_ns in self._goes_ns.items() if at_ns <= now_ns]:
                self._tell_to_go(peer)
        if self._early and self._open(now_ns):
            early, self._early = self._early, {}
            for peer, hello in early.items():
                self._hello(peer, hello)


def _key_of(frame: Any) -> int | None:
    """Return the key of a message that is not in the vocabulary, if it has one."""
    try:
        fields = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError):
        return None
    key = fields.get("key") if isinstance(fields, dict) else None
    return key if type(key) is int and -(1 << 63) <= key < 1 << 63 else None


def _listener(
    front_end: ZeroMqFrontEnd, config: GatewayConfig, driver: GatewayDriver, hub: Hub
) -> ZeroMqListener:
    most = share(config, config.max_connections + _SPARE_CONNECTIONS)
    try:
        return ZeroMqListener(hub, config, front_end, most=most, memory=driver.memory)
    except ValueError as wrong:
        raise OSError(f"the gateway can't listen at {config.address}: {wrong}") from None
    except OSError as error:
        taken = (
            "; is another gateway running there? Choose another address, or port * for a free one"
            if error.errno in {errno.EADDRINUSE, errno.EADDRNOTAVAIL}
            else ""
        )
        raise OSError(
            f"the gateway can't listen at {config.address}: {error.strerror or error}{taken}"
        ) from None
