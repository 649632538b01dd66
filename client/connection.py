"""A connection to a gateway for one thread: messages in, messages out, nothing kept between them.

This is the layer below `Client`. A program that drives thousands of requests a second from a loop of its
own (the open-loop replayer) uses it directly::

    with Connection("tcp://127.0.0.1:7400") as connection:
        connection.open(timeout_s=5)
        connection.send(InferRequest(key=1, model="m", inputs=(header,), slo_ns=50_000_000), [array])
        while connection.poll(timeout_ms=10):
            while (received := connection.receive()) is not None:
                reply, frames = received     # InferReply or ErrorReply; match it by reply.key

* ``key`` is the caller's: unique among its requests in flight; each gets exactly one reply.
* ``slo_ns`` of a request is what is left of its SLO when it is sent; `send` stamps it with ``sent_ns``, so
  that the gateway can take off what it was held on its way. What ``send`` is given goes to the socket at
  once: to have requests wait where their time is counted is the caller's (`Client` does).
* ``send`` and ``receive`` never wait. ``send`` takes anything with the buffer protocol as a frame,
  C-contiguous and little-endian; buffers of 64 KB and more are not copied, so leave them alone until the
  reply is in. What the kernel does not take at once may leave only in ``poll`` and ``receive``.
* The gateway bounds what a connection may have in flight (``welcome.max_in_flight``) and refuses the rest
  with ``overloaded``; a connection that does not read its replies is cut off.
* It goes over ZeroMQ, or, to a gateway of this user on this host that allows it, past it,
  which saves some tenths of a millisecond a request (`client.transports`). There large inputs go through
  memory that the gateway reads (`client.memory`).
* A gateway past ZeroMQ that says nothing for 2 s is asked for a sign of life, as ZeroMQ does by itself; the
  connection is broken if none comes within 4 s more (`client.transports`).
* A gateway that is about to stop, or finds the connection too old, tells the client to go: `welcome` is None
  from then on, and once all that was sent has its replies, `receive` makes another connection.
* When the connection breaks, it is made again by itself and `receive` says hello again; requests that were in
  flight are lost. `link_lost` counts the breaks: compare it before and after.

Not thread-safe, and of one process: a child of a fork makes another. A caller with a poller of its own waits
for `descriptors` and checks whether it is `ready`; then, and when `hello_is_due`, `receive` is to be called
until it returns None.
"""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Sequence
from time import monotonic, monotonic_ns
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from mainspring.client.errors import (
    GatewayUnreachable,
    InvalidInput,
    MainspringError,
    OfOneProcess,
    Overloaded,
    Unauthenticated,
)
from mainspring.client.memory import ClientMemory, Lending
from mainspring.client.transports import (
    Event,
    Heartbeat,
    Transport,
    ZeroMqSettings,
    ZeroMqTransport,
    local_transport,
)
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.clients import (
    Alive,
    CancelRequest,
    ClientHello,
    ClientRefused,
    ClientWelcome,
    ErrorReply,
    FromClient,
    GoAway,
    InferReply,
    InferRequest,
    MemoryTaken,
    OfferMemory,
    Received,
    ToClient,
)
from mainspring.messages.codec import TO_CLIENT, BadMessage, encode
from mainspring.messages.codes import Reason
from mainspring.transport.addresses import PREFIX, parse_tcp
from mainspring.transport.curve import ClientKeys, read_client_keys
from mainspring.transport.slab import LEAST_SHARED_BYTES

TOKEN_VARIABLE = "MAINSPRING_TOKEN"
"""Environment variable with the token of a client that was given none."""
CURVE_VARIABLE = "MAINSPRING_CURVE_KEY"
"""The same for the file of its keys of CURVE."""
_KEY_REFUSED = "it serves only clients whose key of CURVE it knows: give the file of one (curve_key)"
_UNAUTHENTICATED = Reason.UNAUTHENTICATED.value
FIRST_HELLO_PAUSE_S = 0.2
"""Pause before the next hello to a gateway that turned this client away; it doubles each time."""
LONGEST_HELLO_PAUSE_S = 5.0


class Connection(OfOneProcess):
    """One connection to a gateway; see the module's docstring."""

    def __init__(
        self,
        address: str,
        name: str = "",
        *,
        token: str | None = None,
        curve_key: str | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        send_queue: int = 10_000,
        longest_retry_ms: int = 1_000,
        local: bool = True,
        wakes: int | None = None,
        memory: ClientMemory | None = None,
        vigilance: int = 1,
    ) -> None:
        """Begin to connect to ``address``; ``send_queue`` bounds the messages that wait to be sent.

        ``longest_retry_ms``: between attempts. ``token``: None for the environment's ``MAINSPRING_TOKEN``.
        ``curve_key``: the file of this client's keys of CURVE; None for the environment's
        ``MAINSPRING_CURVE_KEY``. Raises ValueError for an invalid file.
        ``local``: whether it may go past ZeroMQ. `poll` also ends when the descriptor ``wakes`` is readable.
        ``memory`` is what a gateway of this host may read large inputs in; None for memory of its own.
        ``vigilance``: as of `Heartbeat`.
        """
        self.address = address
        self._pid = os.getpid()
        self.name = name or f"{sockets.gethostname()}:{os.getpid()}"
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self.welcome: ClientWelcome | None = None
        """The gateway's welcome on the present link; None until it has come."""
        self.refusal: ClientRefused | None = None
        """Reason why the gateway rejects this client, until one accepts it: another protocol, no token."""
        self.turned_away: ClientRefused | None = None
        """Reason why the gateway has no room for this client at present, until it welcomes it."""
        self.hello_at: float | None = None
        """Time of the next hello, on `time.monotonic`, to a gateway that turned this client away."""
        self._hello_pause_s, self._unanswered = FIRST_HELLO_PAUSE_S, set[int]()
        self._goes_by_ns: int | None = None  # Once the gateway has told this client to go.
        self.link_lost = 0
        """Number of times that the link broke, or that the gateway forgot this client."""
        self.bad_messages = 0  # Replies that could not be read.
        self._memory = ClientMemory() if memory is None else memory
        self._lending = Lending(self._memory)
        self._heartbeat = Heartbeat(monotonic_ns(), vigilance)
        self._context = context
        curve = os.environ.get(CURVE_VARIABLE, "") if curve_key is None else curve_key
        self._zeromq = ZeroMqSettings(address, send_queue, longest_retry_ms, wakes, vigilance, _keys(curve))
        self._may_be_local = self._allows_local = local
        """True while one on this host is looked for by name; and if that is allowed."""
        self._way: Transport = self._local_way() or self._by_zeromq()

    def open(self, timeout_s: float) -> ClientWelcome:
        """Wait for the gateway's welcome and return it.

        Raise `GatewayUnreachable` if it does not come in time or the gateway refuses this client,
        `Unauthenticated` if that is for want of a token.
        """
        give_up = monotonic() + timeout_s
        while self.welcome is None:
            left_s = give_up - monotonic()
            if left_s <= 0:
                raise self.unreachable(timeout_s)
            self.poll(left_s * 1e3)
            self.receive()
            if self.refusal is not None:
                raise refused(self.address, self.refusal)
        return self.welcome

    def send(self, message: FromClient, frames: Sequence[Any] = ()) -> None:
        """Send a message and its tensors' frames, in the order of its headers.

        Raise `GatewayUnreachable` without a link, `Overloaded` if the send queue is full, `InvalidInput`
        if the message is larger than the gateway takes.
        """
        if self._pid != os.getpid():
            raise GatewayUnreachable(
                f"this connection to {self.address} is of process {self._pid}, which forked: make another"
            )
        if self.welcome is None:
            raise GatewayUnreachable(f"there is no connection to the gateway at {self.address}")
        limit = self.welcome.max_message_bytes
        if isinstance(message, InferRequest) and message.sent_ns is None:
            message = msgspec.structs.replace(message, sent_ns=monotonic_ns())
        views: Sequence[memoryview] = [memoryview(frame) for frame in frames]
        size = sum([view.nbytes for view in views])
        large = LEAST_SHARED_BYTES <= size <= limit
        if large and self._way.is_local and isinstance(message, InferRequest):
            room_bytes = self.welcome.memory_bytes
            message, views = self._lending.place(message, views, room_bytes, self._way.send_descriptor)
        try:
            encoded = encode(message)
        except (OverflowError, UnicodeError, TypeError) as error:
            self._lending.replied(getattr(message, "key", 0))
            raise InvalidInput(f"this can't be sent to a gateway: {error}") from None
        size += len(encoded)
        if size > limit:
            raise InvalidInput(f"the inputs have {size:,} bytes; the gateway takes at most {limit:,}")
        if not self._way.send(encoded, views):
            self._lending.replied(getattr(message, "key", 0))
            raise Overloaded(f"the send queue to {self.address} is full")
        self._note_sent(message)

    def hand_over(self, message: FromClient, frames: Sequence[Any]) -> bool:
        """Send a message as it is, with frames that never change; return False if it can't be taken now."""
        handed_over = self.welcome is not None and self._way.send(encode(message), frames)
        if handed_over:
            self._note_sent(message)
        return handed_over

    def _note_sent(self, message: FromClient) -> None:
        if not isinstance(message, CancelRequest | Alive | ClientHello | OfferMemory):
            self._unanswered.add(message.key)

    def unreachable(self, timeout_s: float) -> MainspringError:
        """Return the exception for a gateway that did not welcome this client within ``timeout_s``."""
        if self.turned_away is not None:
            return refused(self.address, self.turned_away)
        if self.unknown_host:
            return GatewayUnreachable(
                f"no gateway answers at {self.address}: {self.unknown_host}; is the address right?"
            )
        return GatewayUnreachable(
            f"no gateway answers at {self.address} within {timeout_s:g} s; "
            "is the address right, and is `mainspring up` or `mainspring gateway` running there?"
        )

    @property
    def unknown_host(self) -> str:
        """Return the error in the host's name, empty if it is known."""
        return self._way.unknown_host if isinstance(self._way, ZeroMqTransport) else ""

    def hello_is_due(self) -> bool:
        """Return whether `receive` would say hello now, though there may be nothing to receive."""
        return self.hello_at is not None and monotonic() >= self.hello_at

    def poll(self, timeout_ms: float) -> bool:
        """Wait until there is something to receive, or ``hello_at`` has come; return whether it is so."""
        if self._listens():
            now_ns = monotonic_ns()
            left_ms = (self._heartbeat.next_ns() - now_ns) / 1e6
            return self._way.poll(max(0.0, min(timeout_ms, left_ms))) or left_ms <= timeout_ms
        if self.hello_at is None:
            return self._way.poll(timeout_ms)
        hello_ms = max(0.0, (self.hello_at - monotonic()) * 1e3)
        return self._way.poll(min(timeout_ms, hello_ms)) or self.hello_is_due()

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that a caller's own poller is to wait for, after a call of `ready`; they
        change with `receive`."""
        return self._way.descriptors()

    def ready(self) -> bool:
        """Say whether there is something to receive."""
        return self._way.ready()

    @property
    def is_local(self) -> bool:
        """Return whether it bypasses ZeroMQ, to a gateway on this host."""
        return self._way.is_local

    @property
    def shares_memory(self) -> bool:
        """Return whether its gateway reads large inputs in this client's memory, after the first such one."""
        return self._way.is_local and self._lending.taken

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket of a connection over ZeroMQ."""
        assert isinstance(self._way, ZeroMqTransport), "this connection does not go over ZeroMQ"
        return self._way.socket

    def receive(self) -> tuple[ToClient, list[Any]] | None:
        """Return the next reply and its tensors' frames, or None if there is none; never waits.

        Hellos, welcomes and breaks of the link are dealt with here and are not returned.
        """
        if self.hello_is_due():
            self._hello()
        while True:
            parts = self._way.receive()
            if not parts:
                # After the replies, so that those which came before a break are still delivered.
                if not self._follow_link() and not self._follow_gateway() and not self._go():
                    return None
                continue
            try:
                message = TO_CLIENT.decode(parts[0])
            except BadMessage:
                self.bad_messages += 1
                continue
            match message:
                case ClientWelcome(protocol=protocol) if protocol != PROTOCOL_VERSION:
                    self._refused(ClientRefused("protocol_mismatch", other_protocol(message)))
                case ClientWelcome():
                    self.welcome = message
                    self.refusal = self.turned_away = self.hello_at = None
                    self._hello_pause_s = FIRST_HELLO_PAUSE_S
                case ClientRefused():
                    self._refused(message)
                case MemoryTaken():
                    self._lending.answered(message)
                case Alive():
                    pass
                case GoAway():
                    self.welcome = None
                    self._goes_by_ns = monotonic_ns() + message.grace_ns
                case Received():
                    return message, parts[1:]
                case _:
                    self._unanswered.discard(message.key)
                    if self._lending.copies and isinstance(message, InferReply | ErrorReply):
                        self._lending.replied(message.key)
                    return message, parts[1:]

    def close(self) -> None:
        """Close the connection; what waits to be sent is dropped."""
        self._way.close()

    def _local_way(self) -> Transport | None:
        """Return the way to a gateway of this user on this host; None if there is none to be tried."""
        return local_transport(self._zeromq) if self._may_be_local else None

    def _by_zeromq(self) -> Transport:
        try:
            if self.address.startswith(PREFIX):
                parse_tcp(self.address)
            return ZeroMqTransport(self._zeromq, self._context)
        except (zmq.ZMQError, ValueError):
            raise GatewayUnreachable(
                f"{self.address!r} is not an address; write it like tcp://127.0.0.1:7400"
            ) from None

    def _follow_link(self) -> bool:
        """Take one event of the link; return whether there was one."""
        event = self._way.follow()
        if event is None:
            return False
        if event is Event.OPENED:
            # A gateway that has just started listens by name, too.
            local = None if self._way.is_local else self._local_way()
            if local is None:
                self._hello()
            else:
                self._take(local)
            return True
        if event is Event.RETRIES:
            self._look_elsewhere()
            return True
        if event is Event.DENIED:
            self.refusal = ClientRefused(_UNAUTHENTICATED, _KEY_REFUSED)
            return True
        if event is Event.FAILED:
            self._may_be_local = False
        elif self.welcome is not None:
            self._may_be_local = self._allows_local
        self._end_link()
        return True

    def _look_elsewhere(self) -> None:
        """Take the way to a gateway on this host that has come up since, if there is one."""
        assert isinstance(self._way, ZeroMqTransport), "only ZeroMQ connects again by itself"
        if (local := self._local_way()) is not None:
            self._take(local)
        elif (self._zeromq.in_folder() or self.address) != self._way.address:
            self._take(self._by_zeromq())

    def _end_link(self) -> None:
        """Go on over ZeroMQ, which connects by itself."""
        self._lose_link()
        self.turned_away = self.hello_at = None
        if self._way.is_local:
            self._take(self._by_zeromq())

    def _go(self) -> bool:
        """Make another connection in the place of one that was told to go, once nothing is in flight; return
        whether it has come to that."""
        if self._goes_by_ns is None or (self._unanswered and monotonic_ns() < self._goes_by_ns):
            return False
        self.link_lost += bool(self._unanswered)
        self._begin_link()
        # One to a gateway of this host that has gone is looked for by name again.
        self._may_be_local = self._allows_local
        self._take(self._local_way() or self._by_zeromq())
        return True

    def _begin_link(self) -> None:
        """Nothing is in flight any more, and nobody is to go."""
        self._unanswered.clear()
        self._goes_by_ns = None

    def _listens(self) -> bool:
        """Return whether the gateway's signs of life are watched."""
        return self.welcome is not None and self._way.is_local

    def _follow_gateway(self) -> bool:
        """Ask a silent gateway for a sign of life, or give it up; return whether it is given up."""
        if not self._listens():
            return False
        now_ns = monotonic_ns()
        if self._way.grew():
            self._heartbeat.heard(now_ns)
        elif self._heartbeat.silent(now_ns):
            self._end_link()
            return True
        elif self._heartbeat.due(now_ns):
            self._heartbeat.asked(now_ns)
            self._way.send(encode(Alive()), ())
        return False

    def _take(self, way: Transport) -> None:
        self._way.close()
        self._way = way
        self._lending.begin()

    def _lose_link(self) -> None:
        if self.welcome is not None or self._goes_by_ns is not None:
            self.welcome = None
            self.link_lost += 1
        self._begin_link()

    def _refused(self, message: ClientRefused) -> None:
        was_welcome = self.welcome is not None
        self._lose_link()
        if message.code == "protocol_mismatch":
            self.refusal = message
        elif was_welcome:
            self._hello()
        else:
            if message.code == _UNAUTHENTICATED:
                self.refusal = message
            # The answer to a hello. The next one has the same answer until something changes at the gateway.
            self.turned_away = message
            self.hello_at = monotonic() + self._hello_pause_s
            self._hello_pause_s = min(2 * self._hello_pause_s, LONGEST_HELLO_PAUSE_S)

    def _hello(self) -> None:
        self.hello_at = None
        # If it can't be sent, the link broke again: its next handshake brings the next hello.
        self._way.send(
            encode(ClientHello(PROTOCOL_VERSION, self.name, self._token, monotonic_ns(), goes=True)), ()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _keys(file: str) -> ClientKeys | None:
    try:
        return read_client_keys(file) if file else None
    except OSError as error:
        raise ValueError(f"curve_key: {error.strerror or error}") from None


def other_protocol(welcome: ClientWelcome) -> str:
    """Return the words for a gateway that welcomes this client in another protocol version."""
    return (
        f"it speaks protocol {welcome.protocol} (release {welcome.server_version[:40]}), this client "
        f"protocol {PROTOCOL_VERSION}; install the same release of Mainspring on both"
    )


def refused(address: str, message: ClientRefused) -> MainspringError:
    """Return the exception for a gateway that will not have this client."""
    if message.code == _UNAUTHENTICATED:
        return Unauthenticated(f"the gateway at {address}: {message.detail}", Reason.UNAUTHENTICATED)
    return GatewayUnreachable(
        f"the gateway at {address} refused this client ({message.code}): {message.detail}"
    )
