"""The front end for Mainspring's own clients: one ROUTER that speaks `messages.clients`.

Bytes that are no message are answered and counted, never more. A client that does not read its replies is
cut off once as many wait as `GatewayConfig` allows, in messages or in bytes: its requests are given up, and
as soon as it reads again it finds a `ClientRefused` behind what had been sent.

A gateway that has just started welcomes nobody before it knows the controller's models, for up to
``controller_timeout_ms``: until then it could only refuse what it will serve in a moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import msgspec
import zmq

from mainspring.gateway.admin import Reply
from mainspring.gateway.backlog import Backlog, Parts
from mainspring.gateway.bounds import Refusal
from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.multipart import MAX_FRAMES, receive, send
from mainspring.gateway.plane import Plane
from mainspring.gateway.release import installed_version
from mainspring.gateway.sends import Answer, Connection, Refuse
from mainspring.gateway.tokens import NOTHING, Credential, credential
from mainspring.gateway.ways import Ways
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.clients import ClientRefused, ClientWelcome, ErrorReply, InferReply
from mainspring.messages.codec import FROM_CLIENT, BadMessage, encode
from mainspring.messages.codes import Reason
from mainspring.transport.hub import Hub

Context = zmq.Context[zmq.Socket[bytes]]

NAME = "zeromq"
# Plain integers: combining pyzmq's enumerations costs some microseconds.
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_HEARTBEAT_MS = 2_000
_RETRY_NS = milliseconds(100)
_SLOW_READER = encode(
    ClientRefused(
        "slow_reader",
        "too many replies waited unread and the rest was dropped; read faster or ask for less",
    )
)
_IDLE_SEARCH = 64
"""How many of the longest silent connections are looked at for one that can be forgotten."""


class ZeroMqFrontEnd:
    """The client ROUTER; see the module's docstring."""

    def __init__(self, context: Context, config: GatewayConfig, plane: Plane, hub: Hub) -> None:
        """Bind the socket; raise OSError if the address can't be had."""
        self._config = config
        self._plane = plane
        self._welcome = encode(
            ClientWelcome(
                protocol=PROTOCOL_VERSION,
                server_version=installed_version(),
                max_message_bytes=config.max_message_bytes,
                max_in_flight=config.max_in_flight_per_connection,
                acknowledges=True,
            )
        )
        self._ways = Ways()
        self._connections: dict[bytes, Connection] = {}
        """Clients that said hello, the longest silent first."""
        self._shown: dict[bytes, Credential] = {}
        """What each of `_connections` showed of a token, while tokens are needed."""
        self._cut_off: dict[bytes, bytes] = {}
        """Clients that did not read, with what they have yet to be told."""
        self._backlogs: dict[bytes, Backlog] = {}
        """Of `_connections`."""
        self._unread: dict[bytes, Backlog] = {}
        """Of clients that were cut off, until they have read what had been sent."""
        self._retry_ns: int | None = None
        self._early: dict[bytes, clients.ClientHello] = {}
        """Hellos that came before the controller's models."""
        self._open_ns = monotonic_ns() + milliseconds(config.controller_timeout_ms)
        """When clients are welcomed even without a controller."""
        self.socket = _bind(context, config)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        hub.watch(int(self.socket.getsockopt(zmq.FD)), self)
        plane.front_ends[NAME] = self

    def readable(self) -> bool:
        """Whether a message has come.

        To be asked before each wait: ZeroMQ's descriptor only tells that something has changed since what
        it counts was last asked for, by whatever call (zmq_getsockopt(3), ZMQ_FD).
        """
        return bool(int(self.socket.get(_EVENTS)) & _POLLIN)

    def serve(self, limit: int) -> None:
        """Take at most so many messages."""
        for _ in range(limit):
            frames = receive(self.socket)
            if frames is None:
                return
            self._take(frames[0].bytes, frames[1:])

    def _take(self, peer: bytes, frames: list[zmq.Frame]) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            # To the end: what stays at the front has been silent for longest.
            self._connections[peer] = connection
        try:
            if not 1 <= len(frames) < MAX_FRAMES:
                raise BadMessage(f"a message has 1 to {MAX_FRAMES - 1} frames")
            message = FROM_CLIENT.decode(frames[0].buffer)
        except BadMessage as error:
            self._bad_message(peer, connection, frames, str(error))
            return
        if isinstance(message, clients.ClientHello):
            if self._open(monotonic_ns()) or len(self._early) >= self._config.max_connections:
                self._hello(peer, message)
            else:
                self._early[peer] = message
        elif connection is None:
            self._plane.counts["unknown_clients"] += 1
            self._send(peer, encode(ClientRefused("unknown_session", "say hello first")))
        else:
            self._from_client(connection, message, frames[1:])

    def _from_client(self, connection: Connection, message: object, frames: list[zmq.Frame]) -> None:
        if self._plane.gate.closed and (refusal := self._refusal(connection, message)) is not None:
            if isinstance(message, clients.InferRequest):
                self._plane.core.observers.turned_away(message, refusal[0])
            self._send(connection.peer, encode(ErrorReply(getattr(message, "key", 0), *refusal)))
            return
        match message:
            case clients.InferRequest():
                request = self._ways.arrived(monotonic_ns(), connection.peer, message)
                if request.acknowledge:
                    self._send(connection.peer, encode(clients.Received(request.key)))
                self._plane.submit(connection, self._capped(connection, request), frames)
            case clients.CancelRequest():
                self._plane.cancel(connection, message.key)
            case clients.ListModels():
                self._list_models(connection, message.key)
            case clients.AddModel() | clients.RemoveModel() | clients.GetStatus():
                self._plane.ask(connection, message)

    def _capped(self, connection: Connection, message: clients.InferRequest) -> clients.InferRequest:
        """Return a request with no better priority than its client's token allows."""
        if message.priority <= 0 or not self._plane.gate.closed:
            return message
        priority = self._plane.gate.priority(self._shown.get(connection.peer, NOTHING), message.priority)
        return msgspec.structs.replace(message, priority=priority)

    def _refusal(self, connection: Connection, message: object) -> Refusal | None:
        """Return why the client may not send a message, if it may not."""
        now_ns = monotonic_ns()
        check, shown = self._plane.gate.check, self._shown.get(connection.peer, NOTHING)
        match message:
            case clients.InferRequest(model=model):
                return check(shown, model, now_ns)
            case clients.AddModel(model=spec):
                return check(shown, spec.public_name, now_ns, administers=True)
            case clients.RemoveModel(name=name):
                return check(shown, self._public(name), now_ns, administers=True)
            case clients.ListModels() | clients.GetStatus():
                return check(shown, None, now_ns)
            case _:
                return None

    def _public(self, name: str) -> str:
        """Return what clients call the model that the scheduler knows by this name."""
        signature = self._plane.catalog.signatures.get(name)
        return name if signature is None else signature.spec.public_name

    def _list_models(self, connection: Connection, key: int) -> None:
        alone, gate = self._plane.alone, self._plane.gate
        served = self._plane.catalog.models()
        if gate.closed:
            shown = self._shown.get(connection.peer, NOTHING)
            served = tuple([each for each in served if gate.may_see(shown, each.name)])
        models = clients.ModelList(key, served)
        reply = models if alone is None else ErrorReply(key, Reason.CONTROLLER_UNREACHABLE, alone)
        self._send(connection.peer, encode(reply))

    def _hello(self, peer: bytes, message: clients.ClientHello) -> None:
        if message.protocol != PROTOCOL_VERSION:
            detail = f"the gateway speaks version {PROTOCOL_VERSION}, the client {message.protocol}"
            self._send(peer, encode(ClientRefused("protocol_mismatch", detail)))
            return
        shown = credential(message.token)
        if (unknown := self._plane.gate.known(shown)) is not None:
            self._send(peer, encode(ClientRefused(*unknown)))
            return
        if peer not in self._connections and not self._make_room():
            detail = f"{len(self._connections)} clients are busy here, the most the gateway serves; try later"
            self._send(peer, encode(ClientRefused("too_many_clients", detail)))
            return
        unread = self._unread.get(peer)
        if unread is not None and unread.waiting_bytes() > self._config.reply_backlog_bytes:
            self._send(peer, _SLOW_READER)
            return
        self._cut_off.pop(peer, None)
        self._connections[peer] = Connection(NAME, peer)
        self._ways.hello(monotonic_ns(), peer, message)
        if self._plane.gate.closed:
            self._shown[peer] = shown
        self._unread.pop(peer, None)
        self._backlogs.setdefault(peer, unread or Backlog())
        self._send(peer, self._welcome)

    def _make_room(self) -> bool:
        """Return whether there is room, if need be by forgetting a silent client with nothing in flight."""
        if len(self._connections) < self._config.max_connections:
            return True
        oldest = itertools.islice(self._connections.items(), _IDLE_SEARCH)
        idle = next((peer for peer, each in oldest if not self._plane.core.connection_in_flight(each)), None)
        if idle is None:
            return False
        self._forget(idle)
        return True

    def _bad_message(
        self, peer: bytes, connection: Connection | None, frames: Sequence[zmq.Frame], why: str
    ) -> None:
        self._plane.counts["bad_messages_from_clients"] += 1
        key = _key_of(frames[0]) if frames else None
        detail = f"the message can't be read: {why[:300]}"
        if connection is None or key is None:
            self._send(peer, encode(ClientRefused("bad_message", detail)))
        else:
            self._send(peer, encode(ErrorReply(key, Reason.BAD_MESSAGE, detail)))

    # --- replies ---

    def answer(self, answer: Answer) -> None:
        """Send a request's outputs."""
        message = encode(InferReply(answer.key, answer.outputs, answer.timing, monotonic_ns()))
        self._send(answer.connection.peer, message, answer.frames)

    def refuse(self, refusal: Refuse) -> None:
        """Send a request's refusal."""
        what = (refusal.reason, refusal.detail, refusal.earliest_finish_left_ns)
        self._send(refusal.connection.peer, encode(ErrorReply(refusal.key, *what, monotonic_ns())))

    def reply(self, connection: Connection, message: Reply) -> None:
        """Send the reply to a wish; of a status, what the client may see."""
        gate = self._plane.gate
        if gate.closed and isinstance(message, clients.StatusReply):
            shown = self._shown.get(connection.peer, NOTHING)
            seen = [each for each in message.status.models if gate.may_see(shown, self._public(each.name))]
            status = msgspec.structs.replace(message.status, models=tuple(seen))
            message = msgspec.structs.replace(message, status=status)
        self._send(connection.peer, encode(message))

    def _send(self, peer: bytes, message: bytes, frames: Sequence[Any] = ()) -> None:
        backlog = self._backlogs.get(peer)
        parts: Parts | None = ((message,), frames)
        if backlog is not None:
            parts = backlog.admit(message, frames, self._config.reply_backlog_bytes)
        if parts is None:
            self._cut(peer)
            return
        try:
            send(self.socket, (peer, *parts[0]), parts[1])
        except zmq.Again:
            self._cut(peer)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._plane.counts["replies_to_clients_that_left"] += 1
            self._forget(peer)

    def _cut(self, peer: bytes) -> None:
        """Break with a client whose backlog is full."""
        self._plane.counts["replies_to_slow_readers"] += 1
        backlog = self._backlogs.get(peer)
        self._forget(peer)
        if len(self._cut_off) < self._config.max_connections:
            self._cut_off[peer] = _SLOW_READER
            if backlog is not None:
                self._unread[peer] = backlog

    def _forget(self, peer: bytes) -> None:
        self._backlogs.pop(peer, None)
        self._shown.pop(peer, None)
        self._ways.forget(peer)
        connection = self._connections.pop(peer, None)
        if connection is not None:
            self._plane.forget(connection)

    # --- time ---

    def _open(self, now_ns: int) -> bool:
        """Say whether clients are welcome."""
        return self._plane.ready or now_ns >= self._open_ns

    def tick(self, now_ns: int) -> None:
        """Welcome clients that came early; try again to tell those that were cut off."""
        if self._early and self._open(now_ns):
            early, self._early = self._early, {}
            for peer, hello in early.items():
                self._hello(peer, hello)
        if not self._cut_off and not self._unread:
            self._retry_ns = None
            return
        if self._retry_ns is not None and now_ns < self._retry_ns:
            return
        self._retry_ns = now_ns + _RETRY_NS
        self._unread = {peer: each for peer, each in self._unread.items() if each.waiting_bytes()}
        for peer, message in list(self._cut_off.items()):
            try:
                self.socket.send_multipart([peer, message], zmq.NOBLOCK)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            del self._cut_off[peer]


def _key_of(frame: zmq.Frame) -> int | None:
    """Return the key of a message that is none of the vocabulary, if it has one."""
    try:
        fields = msgspec.msgpack.decode(frame.buffer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError):
        return None
    key = fields.get("key") if isinstance(fields, dict) else None
    return key if type(key) is int and -(1 << 63) <= key < 1 << 63 else None


def _bind(context: Context, config: GatewayConfig) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, config.reply_backlog_messages)
    socket.setsockopt(zmq.RCVHWM, config.max_in_flight_per_connection)
    socket.setsockopt(zmq.MAXMSGSIZE, config.max_message_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.BACKLOG, 1_024)
    try:
        socket.bind(config.address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise OSError(
            f"the gateway can't listen at {config.address}: {error.strerror}; "
            "is another gateway running there? Choose another address, or port * for a free one"
        ) from None
    return socket
