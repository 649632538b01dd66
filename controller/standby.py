"""A controller that does not lead: what it answers, and how it keeps warm.

It pings every worker and gateway that has said hello, so that their clocks are known when it leads, and has
the leader's memory told (`Following`). Whoever wants a controller that leads is refused, and tries another.
No socket and no clock: ``now_ns`` is an argument.
"""

from __future__ import annotations

import logging

from mainspring.controller.clock import PeerClock
from mainspring.controller.config import ControllerConfig
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import AnswerLimit, Wire
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_CONTROLLER, TO_FOLLOWER, BadMessage, encode
from mainspring.messages.following import FollowerHello, Remember
from mainspring.messages.peers import (
    Deposed,
    GatewayHello,
    Goodbye,
    Leads,
    Ping,
    Pong,
    Refused,
    Welcome,
    WorkerHello,
)
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Controllers, Delivery
from mainspring.transport.channel import Message
from mainspring.transport.controllers import STANDBY
from mainspring.transport.link import UNKNOWN_SESSION

_LOGGER = logging.getLogger(__name__)
_FOLLOW_AGAIN_NS = 100_000_000
"""Time between two hellos to the leader."""
_KEPT_ROLES = tuple(f"{role}/".encode() for role in (Role.WORKER, Role.GATEWAY))
"""Beginnings of the names of peers that are connected to all controllers at a time."""


class _Peer:
    """A worker or gateway that knows this controller."""

    def __init__(self, window: int) -> None:
        self.clock = PeerClock(window)
        self.pings = 0


class Standby:
    """Answers peers; see the module's docstring."""

    def __init__(self, config: ControllerConfig, wire: Wire) -> None:
        self.told_epoch = 0
        """The highest epoch that a peer has named."""
        self.leader = ""
        """The address of the one that leads, as far as it is known."""
        self._config = config
        self._wire = wire
        self._peers: dict[bytes, _Peer] = {}
        self._limit = AnswerLimit()
        self._beat_ns = 0

    @property
    def next_beat_ns(self) -> int:
        """The instant of the next `beat`."""
        return self._beat_ns

    def clocks(self) -> dict[bytes, PeerClock]:
        """Return the clocks of peers that are known."""
        return {name: peer.clock for name, peer in self._peers.items() if peer.clock.samples}

    def receive(self, now_ns: int, peer: bytes, parts: Message) -> None:
        """Take one message in: its sender as ``ROLE/NAME``, and its parts."""
        try:
            message = TO_CONTROLLER.decode(parts[0])
        except BadMessage:
            message = None
        if not peer.startswith(_KEPT_ROLES):
            # It is connected to one controller at a time, and is to try the next.
            self._refuse(now_ns, peer, UNKNOWN_SESSION)
            self._wire.disconnect(peer, "this controller does not lead")
            return
        match message:
            case WorkerHello(epoch=epoch) | GatewayHello(epoch=epoch):
                self.told_epoch = max(self.told_epoch, epoch)
                self._greeted(now_ns, peer)
            case Pong():
                self._pong(now_ns, peer, message)
            case Deposed(epoch=epoch):
                self.told_epoch = max(self.told_epoch, epoch)
            case Goodbye():
                self._peers.pop(peer, None)
            case _:
                self._refuse(now_ns, peer, STANDBY)

    def beat(self, now_ns: int) -> None:
        """Ping all; forget those whose connection has ended."""
        self._beat_ns = now_ns + round(self._config.heartbeat_interval_ms * 1e6)
        for name, peer in list(self._peers.items()):
            if self._ping(now_ns, name, peer) is Delivery.GONE:
                del self._peers[name]

    def lead(self, epoch: int) -> None:
        """Tell all peers that this controller leads from now on."""
        for name in self._peers:
            self._wire.send(name, (encode(Leads(epoch)),))

    def _greeted(self, now_ns: int, name: bytes) -> None:
        self._refuse(now_ns, name, STANDBY)
        if name in self._peers or len(self._peers) < self._config.max_peers:
            peer = self._peers.setdefault(name, _Peer(self._config.clock_window_samples))
            self._ping(now_ns, name, peer)

    def _pong(self, now_ns: int, name: bytes, pong: Pong) -> None:
        peer = self._peers.get(name)
        if peer is None or not 0 < pong.sequence <= peer.pings:
            return
        try:
            stepped_ns = peer.clock.add(pong.ping_sent_ns, pong.received_ns, pong.sent_ns, now_ns)
        except ValueError:
            return
        if stepped_ns:
            self._peers[name] = _Peer(self._config.clock_window_samples)
        elif peer.clock.samples < self._config.join_pongs:
            self._ping(now_ns, name, peer)

    def _ping(self, now_ns: int, name: bytes, peer: _Peer) -> Delivery:
        peer.pings += 1
        return self._wire.send(name, (encode(Ping(peer.pings, now_ns)),))

    def _refuse(self, now_ns: int, peer: bytes, code: str) -> None:
        if self._limit.allows(now_ns, peer, code):
            detail = f"this controller stands by; {self.leader or 'another one'} leads"
            self._wire.send(peer, (encode(Refused(code, detail)),))


class Following:
    """Has the memory told by the controller that leads."""

    def __init__(self, link: Controllers, name: str, memory: Memory) -> None:
        """``name``: the own address."""
        self.warm = False
        """True if all of the leader's memory has been told."""
        self._link = link
        self._name = name
        self._memory = memory
        self._opened = 0
        self._hello_ns = 0
        self._welcomed = False
        self._told: list[bytes] | None = None
        """Lines of the whole memory that have come; None once there is no more to come of it."""

    def turn(self, now_ns: int) -> None:
        """Say hello while the leader does not know this controller; take in what has come."""
        link = self._link
        while (parts := link.receive()) is not None:
            try:
                self._take(now_ns, TO_FOLLOWER.decode(parts[0]))
            except (BadMessage, ValueError) as error:
                _LOGGER.warning("the controller that leads said what can't be used: %s", error)
        if link.opened != self._opened:
            self._opened, self._welcomed, self._hello_ns = link.opened, False, 0
        if link.connected and not self._welcomed and now_ns >= self._hello_ns:
            self._hello_ns = now_ns + _FOLLOW_AGAIN_NS
            link.send((encode(FollowerHello(PROTOCOL_VERSION, self._name)),))

    def close(self) -> None:
        """End the connection."""
        self._link.close(0)

    def _take(self, now_ns: int, message: object) -> None:
        match message:
            case Ping(sequence=sequence, sent_ns=sent_ns):
                self._link.send((encode(Pong(sequence, sent_ns, now_ns, now_ns)),))
            case Welcome():
                self._welcomed = True
            case Refused() | Goodbye():
                self._welcomed = False
            case Remember(lines=lines, begins=begins, ends=ends):
                if begins:
                    self._told = []
                if self._told is None:
                    for line in lines:
                        self._memory.told(line)
                    return
                self._told.extend(lines)
                if ends:
                    self._memory.clear()
                    for line in self._told:
                        self._memory.told(line)
                    self._told, self.warm = None, True
