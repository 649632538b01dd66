"""The ends of connections, with the methods of `transport.link.Link` and `transport.listener.Listener`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from mainspring.simulator.town.streams import CONNECT_NS, Network, Parts, Stream
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.link import FIRST_RETRY_NS, LONGEST_RETRY_NS

ANY: Final = Limits(1 << 30, 256 << 20, 100_000)
"""Bounds of a listener that was given none."""


class TownHub:
    """All ports of one process: which of them have something."""

    def __init__(self, network: Network, host: str, poke: Callable[[], None]) -> None:
        """``poke`` has the process take its turn."""
        self.network, self.host, self.poke = network, host, poke
        self.closed = False
        """True once the process has died: its ports are nobody's any more."""
        self.ports: dict[TownLink | TownListener, None] = {}
        self.epoll = None

    def wait(self, timeout_ns: int) -> list[object]:  # noqa: ARG002
        """Return the ports that have something, at once: a town waits between turns."""
        return list(dict.fromkeys([port.group or port for port in self.ports if port.pending()]))

    def link(
        self,
        hub: Any,
        address: str,
        limits: Limits,
        *,
        name: bytes = b"",
        keeps: bool = False,
        shows: Any = None,
        expects: Any = None,  # noqa: ARG002
    ) -> Any:
        """Begin to connect, in the place of `transport.link.Link`."""
        found = TownLink(self, address, limits, str(shows.role).encode(), name, keeps=keeps)
        found.group = getattr(hub, "_group", None)
        return found

    def close(self, notices_ns: tuple[int | None, int | None]) -> None:
        """The process dies: its connections break, and the others notice after the second time."""
        self.closed = True
        for port in self.ports:
            port.break_off(notices_ns)
        self.ports.clear()


class TownLink:
    """The connecting end of a connection; see `transport.link.Link`, whose methods these are."""

    def __init__(
        self, hub: TownHub, address: str, limits: Limits, role: bytes, name: bytes, *, keeps: bool
    ) -> None:
        self._hub, self._network = hub, hub.network
        self.address = address
        self._limits, self._keeps = limits, keeps
        self._role, self._name = role, name
        self.opened = self.ended = 0
        self.refusal = self.failure = ""
        self.on_violation: Callable[[str], object] = lambda _: None
        self.local = False
        self.group: Any = None
        """The links that this one is of (`transport.controllers`); None if it is alone."""
        self._fresh = False
        """True once it has opened, until its group has looked."""
        self._stream: Stream | None = None
        self._attempt = 0
        """Number of the attempt under way."""
        self._over = False
        self._retry_ns = FIRST_RETRY_NS
        self._came: deque[Parts | None] = deque()
        self._kept: deque[Sequence[Any]] = deque()
        self._kept_bytes = 0
        hub.ports[self] = None
        self._connect()

    @property
    def connected(self) -> bool:
        """Say whether there is a connection."""
        return self._stream is not None

    @property
    def obeyed(self) -> bool:
        """Say the same of a controller; there is but one."""
        return self._stream is not None

    @property
    def epoch(self) -> int:
        """Return 0: the one controller is obeyed whatever its epoch is."""
        return 0

    def greet(self, parts: Sequence[Any]) -> Delivery:
        """Send a hello."""
        return self.send(parts)

    def pending(self) -> bool:
        """Say whether a message may have come."""
        return bool(self._came) or (self._fresh and self.group is not None)

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        """Send a message, or keep it."""
        stream = self._stream
        if stream is not None:
            way = stream.ways[0]
            if len(way.sent) >= self._limits.backlog_messages or way.bytes > self._limits.backlog_bytes:
                return Delivery.FULL
            self._network.send(stream, 0, parts)
            return Delivery.SENT
        if not self._keeps or not keeps:
            return Delivery.GONE
        if self._kept_bytes > self._limits.backlog_bytes or len(self._kept) >= self._limits.backlog_messages:
            return Delivery.FULL
        self._kept.append([bytes(part) for part in parts])
        self._kept_bytes += sum(map(len, parts))
        return Delivery.SENT

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:  # noqa: ARG002
        """Send nothing: no two processes of a town share a host's memory."""
        return Delivery.GONE

    def descriptor(self) -> int | None:
        """Return None, likewise."""
        return None

    def receive(self) -> Parts | None:
        """Return the next message; None if there is none, or the connection has ended."""
        self._fresh = False
        if not self._came:
            return None
        parts = self._came.popleft()
        if parts is None:
            self._end()
        return parts

    def close(self, until_ns: int) -> None:  # noqa: ARG002
        """End the connection for good."""
        self._over = True
        self._hub.ports.pop(self, None)
        if self._stream is not None:
            self._network.end(self._stream, 0)
            self._stream = None
        self._came.clear()
        self._kept.clear()

    # --- the network's side ---

    def came(self, stream: Stream, parts: Parts | None) -> None:
        """Take a message of a stream, or its end."""
        if stream is self._stream and not self._hub.closed:
            self._came.append(parts)
            self._hub.poke()

    def break_off(self, notices_ns: tuple[int | None, int | None]) -> None:
        """The process has died."""
        self._over = True
        if self._stream is not None:
            self._network.break_off(self._stream, (None, notices_ns[1]))

    def _end(self) -> None:
        self._stream = None
        self._came.clear()
        self.ended += 1
        self.failure = "the connection has ended"
        self._again()

    def _again(self) -> None:
        agenda = self._network.agenda
        agenda.at(agenda.now_ns + self._retry_ns, self._connect)
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)

    def _connect(self) -> None:
        if self._over or self._hub.closed or self._stream is not None:
            return
        self._attempt += 1
        network, agenda = self._network, self._network.agenda
        agenda.at(agenda.now_ns + CONNECT_NS, self._give_up, self._attempt)
        there = network.host_at(self.address)
        agenda.at(network.passes_ns(self._hub.host, there), self._knock, self._attempt, there)

    def _give_up(self, attempt: int) -> None:
        if attempt == self._attempt and self._stream is None and not self._over:
            self._connect()

    def _knock(self, attempt: int, there: str) -> None:
        """The attempt is at the other host."""
        if attempt != self._attempt or self._over or self._hub.closed or self._network.is_off(there):
            return
        listener = self._network.listening.get(self.address)
        agenda, back_ns = self._network.agenda, self._network.passes_ns(there, self._hub.host)
        if listener is None:
            agenda.at(back_ns, self._refused, attempt)
            return
        stream = listener.accept(self, self._hub.host, self._role, self._name)
        agenda.at(back_ns, self._opened, attempt, stream)

    def _refused(self, attempt: int) -> None:
        if attempt == self._attempt and not self._over and not self._hub.closed and self._stream is None:
            self._attempt += 1
            self.failure = "connection refused"
            self._again()

    def _opened(self, attempt: int, stream: Stream) -> None:
        if attempt != self._attempt or self._over or self._hub.closed or not stream.open:
            self._network.break_off(stream, (None, 0))
            if attempt == self._attempt and not self._over and not self._hub.closed:
                self._attempt += 1
                self._again()
            return
        self._attempt += 1
        self._stream = stream
        self._fresh = True
        self.opened += 1
        self.refusal = ""
        self._retry_ns = FIRST_RETRY_NS
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for parts in kept:
            self._network.send(stream, 0, parts)
        self._hub.poke()


class TownListener:
    """All connections to one address; see `transport.listener.Listener`, whose methods these are."""

    def __init__(self, hub: TownHub, address: str, limits: Limits = ANY) -> None:
        self._hub, self._network = hub, hub.network
        self.address, self._limits = address, limits
        self.group = None
        self.ended = 0
        self.on_violation: Callable[[str], object] = lambda _: None
        self.on_end: Callable[[bytes], object] = lambda _: None
        self._streams: dict[bytes, Stream] = {}
        self._came: deque[tuple[Stream, Parts | None]] = deque()
        self._unnamed = 0
        hub.ports[self] = None
        hub.network.listening[address] = self

    def pending(self) -> bool:
        """Say whether a message may have come."""
        return bool(self._came)

    def receive(self) -> tuple[bytes, Parts] | None:
        """Return the next message and its sender; None if there is none."""
        while self._came:
            stream, parts = self._came.popleft()
            if parts is not None:
                return stream.name, parts
            self._end(stream)
        return None

    def send(
        self, peer: bytes, parts: Sequence[Any], volatile: bool = False, *, beyond: bool = False
    ) -> Delivery:  # fmt: skip
        """Send a message to a peer."""
        del volatile
        stream = self._streams.get(peer)
        if stream is None:
            return Delivery.GONE
        way = stream.ways[1]
        full = len(way.sent) >= self._limits.backlog_messages or way.bytes > self._limits.backlog_bytes
        if full and not beyond:
            return Delivery.FULL
        self._network.send(stream, 1, parts)
        return Delivery.SENT

    def send_all(self, peer: bytes, messages: Sequence[bytes]) -> Delivery:
        """Send messages of one part each."""
        delivery = Delivery.SENT
        for message in messages:
            delivery = self.send(peer, (message,))
        return delivery

    def send_descriptor(self, peer: bytes, parts: Sequence[Any], descriptor: int) -> Delivery:  # noqa: ARG002
        """Send nothing: no two processes of a town share a host's memory."""
        return Delivery.GONE

    def descriptor(self, peer: bytes) -> int | None:  # noqa: ARG002
        """Return None, likewise."""
        return None

    def backlog_bytes(self, peer: bytes) -> int:
        """Return the bytes that are on their way to a peer."""
        stream = self._streams.get(peer)
        return 0 if stream is None else stream.ways[1].bytes

    def host_of(self, peer: bytes) -> str:
        """Return the numeric address of a peer's host."""
        stream = self._streams.get(peer)
        return "" if stream is None else stream.hosts[0]

    def certificate(self, peer: bytes) -> None:
        """Return None: nobody shows one."""

    def disconnect(self, peer: bytes, why: str) -> None:  # noqa: ARG002
        """End the connection to a peer."""
        stream = self._streams.get(peer)
        if stream is not None:
            self._network.end(stream, 1)
            self._end(stream)

    # --- what `gateway.zeromq.Clients` has beside ---

    def welcome(self, name: bytes, known: bool) -> None:
        """Do nothing: all clients are of the cluster's user."""

    def dismiss(self, name: bytes, parts: Sequence[Any]) -> None:
        """Send a last message."""
        self.send(name, parts, beyond=True)

    # --- the network's side ---

    def accept(self, link: TownLink, host: str, role: bytes, name: bytes) -> Stream:
        """Return a new connection of a link."""
        if not name:
            self._unnamed += 1
            name = b"\0" + self._unnamed.to_bytes(8, "big")
        peer = role + b"/" + name
        stream = self._network.open((link, self), (host, self._hub.host), peer)
        former = self._streams.get(peer)
        if former is not None:
            self._network.end(former, 1)
            self._end(former)
        self._streams[peer] = stream
        return stream

    def came(self, stream: Stream, parts: Parts | None) -> None:
        """Take a message of a stream, or its end."""
        if self._streams.get(stream.name) is stream and not self._hub.closed:
            self._came.append((stream, parts))
            self._hub.poke()

    def break_off(self, notices_ns: tuple[int | None, int | None]) -> None:
        """The process has died."""
        if self._network.listening.get(self.address) is self:
            del self._network.listening[self.address]
        for stream in self._streams.values():
            self._network.break_off(stream, (notices_ns[1], None))

    def _end(self, stream: Stream) -> None:
        if self._streams.get(stream.name) is not stream:
            return
        del self._streams[stream.name]
        self._came = deque([each for each in self._came if each[0] is not stream])
        self.ended += 1
        self.on_end(stream.name)


class TownClients(TownListener):
    """The same for a gateway's front end, whose messages come with what is wrong with them."""

    def receive(self) -> tuple[bytes, list[Any], str] | None:  # type: ignore[override]
        """Return the next message's sender and parts, with which nothing is wrong."""
        received = super().receive()
        return None if received is None else (*received, "")
