"""Connections that fail as streams do: they delay, stall, break with the tail lost, one way or both.

Over a stream messages come whole, in order, and once, or not at all behind where it broke. A way that is
*stalled* keeps what is sent until it is not: the kernel sends it again. So a partition, or a direction that
is dead, is a stall of some length; what comes of it is either late, or lost with the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, Final, Protocol

from mainspring.simulator.environment import Agenda

Parts = list[bytes]
PROBE_NS: Final = 2_000_000_000
PROBES: Final = 5
"""Time between two probes of a connection over which nothing comes, and their number
(`transport.addresses`)."""


class End(Protocol):
    """One end of streams: a link or a listener of a process."""

    def came(self, stream: Stream, parts: Parts | None) -> None:
        """Take a message of a stream, or its end (None)."""


CONNECT_NS: Final = 3_000_000_000
"""Time after which an attempt to connect is given up."""


class Way:
    """One direction of a stream."""

    __slots__ = ("bytes", "last_ns", "sent")

    def __init__(self) -> None:
        self.sent: deque[Parts | None] = deque()
        """Messages on their way, the oldest first; None is the end."""
        self.last_ns = 0
        self.bytes = 0


class Stream:
    """One connection, from its connector to its listener."""

    __slots__ = ("ends", "hosts", "name", "number", "open", "reset", "ways")

    def __init__(self, number: int, ends: tuple[End, End], hosts: tuple[str, str], name: bytes) -> None:
        self.number = number
        self.ends = ends
        self.hosts = hosts
        self.name = name
        """The connector as the listener knows it: ``ROLE/NAME``."""
        self.ways = (Way(), Way())
        self.open = True
        """False once it has broken, whether or not the ends have noticed."""
        self.reset = False
        """True once an end that did not notice is about to be told."""


class Network:
    """All connections of a town."""

    def __init__(self, agenda: Agenda, draws: Random, delay_ns: int, jitter_ns: int) -> None:
        self.agenda, self._draws = agenda, draws
        self._delay_ns, self._jitter_ns = delay_ns, jitter_ns
        self.listening: dict[str, Any] = {}
        """The listener at each address."""
        self.streams: dict[int, Stream] = {}
        self.off: set[str] = set()
        """Hosts without power."""
        self._count = 0
        self._stalled_ns: dict[tuple[str, str], int] = {}
        """Instant before which nothing gets from one host to another."""

    def host_at(self, address: str) -> str:
        """Return the host in an address such as ``tcp://10.0.0.1:7401``."""
        return address.rpartition("/")[2].partition(":")[0]

    def is_off(self, host: str) -> bool:
        """Say whether a host is without power, so that nobody there answers, not even the kernel."""
        return host in self.off

    def stall(self, sender: str, receiver: str, until_ns: int) -> None:
        """Let nothing from one host to another until an instant."""
        pair = sender, receiver
        self._stalled_ns[pair] = max(until_ns, self._stalled_ns.get(pair, 0))

    def passes_ns(self, sender: str, receiver: str) -> int:
        """Return when what is sent now from one host gets to another."""
        now_ns = self.agenda.now_ns
        begin_ns = max(now_ns, self._stalled_ns.get((sender, receiver), 0))
        spread = self._draws.random()
        return begin_ns + self._delay_ns + int(self._jitter_ns * spread * spread * spread)

    def open(self, ends: tuple[End, End], hosts: tuple[str, str], name: bytes) -> Stream:
        """Return a new connection."""
        self._count += 1
        stream = self.streams[self._count] = Stream(self._count, ends, hosts, name)
        return stream

    def send(self, stream: Stream, side: int, parts: Sequence[Any]) -> None:
        """Send a message from a side: 0 is the connector's."""
        if not stream.open:
            self._reset(stream, side)
            return
        data = [bytes(part) for part in parts]
        stream.ways[side].bytes += sum(map(len, data))
        self._put(stream, side, data)

    def _reset(self, stream: Stream, side: int) -> None:
        """A kernel that does not know a connection any more says so to who sends by it."""
        here, there = stream.hosts[side], stream.hosts[1 - side]
        if not stream.reset and there not in self.off:
            stream.reset = True
            self.agenda.at(self.passes_ns(here, there) + self._delay_ns, self._notice, stream, side)

    def _put(self, stream: Stream, side: int, data: Parts | None) -> None:
        way = stream.ways[side]
        way.sent.append(data)
        way.last_ns = max(way.last_ns, self.passes_ns(stream.hosts[side], stream.hosts[1 - side]))
        self.agenda.at(way.last_ns, self._arrive, stream, side)

    def _arrive(self, stream: Stream, side: int) -> None:
        way = stream.ways[side]
        if not way.sent:
            return
        until_ns = self._stalled_ns.get((stream.hosts[side], stream.hosts[1 - side]), 0)
        if until_ns > self.agenda.now_ns:
            self.agenda.at(until_ns, self._arrive, stream, side)
            return
        data = way.sent.popleft()
        if data is not None:
            way.bytes -= sum(map(len, data))
        stream.ends[1 - side].came(stream, data)

    def end(self, stream: Stream, side: int) -> None:
        """One side ends a connection: what it has sent still comes, and then the end."""
        if stream.open:
            self._close(stream)
            stream.ways[1 - side].sent.clear()
            self._put(stream, side, None)

    def break_off(self, stream: Stream, notices_ns: Sequence[int | None]) -> None:
        """Break a connection: what is on its way is lost; each side notices after a time, None for never."""
        if not stream.open:
            return
        self._close(stream)
        for side, notice_ns in enumerate(notices_ns):
            stream.ways[side].sent.clear()
            if notice_ns is not None:
                self.agenda.at(self.agenda.now_ns + notice_ns, self._notice, stream, side)
            elif stream.hosts[1 - side] in self.off:
                self.agenda.at(self.agenda.now_ns + PROBE_NS, self._probe, stream, side, PROBES)

    def _probe(self, stream: Stream, side: int, left: int) -> None:
        """Ask for the other end, as TCP's keepalive does (`transport.addresses`), which its host denies."""
        if stream.reset:
            return
        self._reset(stream, side)
        if not stream.reset and left:
            self.agenda.at(self.agenda.now_ns + PROBE_NS, self._probe, stream, side, left - 1)
        elif not stream.reset:
            stream.reset = True
            self._notice(stream, side)

    def _notice(self, stream: Stream, side: int) -> None:
        stream.ends[side].came(stream, None)

    def _close(self, stream: Stream) -> None:
        stream.open = False
        self.streams.pop(stream.number, None)
