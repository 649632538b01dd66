"""The controllers that stand by, as the leader sees them: each is told the memory, and each line after it.

A follower that reads too slowly is dropped; it says hello again, and is told all again.
"""

from __future__ import annotations

import logging

from mainspring.controller.memory import Memory
from mainspring.controller.outbox import Outbox
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.following import FollowerHello, Remember
from mainspring.messages.peers import Goodbye, Ping, Pong, Welcome
from mainspring.transport.bounds import Delivery

_LOGGER = logging.getLogger(__name__)
CHUNK_BYTES = 1 << 20
"""Bytes of lines in one message, or one line."""
MOST = 16
"""Followers at the same time."""
SILENCE_NS = 3_000_000_000
"""Time after which one that is silent is forgotten."""


class Followers:
    """See the module's docstring."""

    def __init__(self, outbox: Outbox, memory: Memory) -> None:
        self._outbox = outbox
        self._memory = memory
        self._heard_ns: dict[bytes, int] = {}
        """Instant at which each follower was heard last."""
        memory.on_kept = self._kept

    def __len__(self) -> int:
        return len(self._heard_ns)

    def receive(self, now_ns: int, peer: bytes, message: object) -> None:
        """Take in what a controller says that does not lead."""
        match message:
            case FollowerHello(protocol=protocol, controller=name):
                if protocol != PROTOCOL_VERSION:
                    self._outbox.refuse(now_ns, peer, "protocol_mismatch", f"this is {PROTOCOL_VERSION}")
                elif peer not in self._heard_ns and len(self._heard_ns) >= MOST:
                    self._outbox.refuse(now_ns, peer, "too_many_peers", f"{MOST} controllers stand by")
                else:
                    self._begin(now_ns, peer, name)
            case Pong() if peer in self._heard_ns:
                self._heard_ns[peer] = now_ns
            case Goodbye():
                self._heard_ns.pop(peer, None)
            case _:
                self._outbox.refuse(now_ns, peer, "unknown_session", "say hello first")

    def beat(self, now_ns: int) -> None:
        """Ping; forget who is silent."""
        for peer, heard_ns in list(self._heard_ns.items()):
            if now_ns - heard_ns > SILENCE_NS or self._outbox.tell(peer, Ping(1, now_ns)) is Delivery.GONE:
                _LOGGER.warning("the controller %a does not stand by any more", peer)
                del self._heard_ns[peer]

    def goodbye(self, detail: str) -> None:
        """Tell them that the leader stops."""
        for peer in self._heard_ns:
            self._outbox.tell(peer, Goodbye(detail))

    def _begin(self, now_ns: int, peer: bytes, name: str) -> None:
        _LOGGER.info("the controller at %.200a stands by", name)
        self._heard_ns[peer] = now_ns
        self._outbox.tell(peer, Welcome(PROTOCOL_VERSION, 0, self._memory.epoch))
        chunk: list[bytes] = []
        size, begins = 0, True
        for line in self._memory.lines():
            if chunk and size + len(line) > CHUNK_BYTES:
                self._outbox.tell(peer, Remember(tuple(chunk), begins))
                chunk, size, begins = [], 0, False
            chunk.append(line)
            size += len(line)
        if self._outbox.tell(peer, Remember(tuple(chunk), begins, ends=True)) is not Delivery.SENT:
            self._drop(peer)

    def _drop(self, peer: bytes) -> None:
        self._heard_ns.pop(peer, None)
        self._outbox.disconnect(peer, "it reads too slowly")

    def _kept(self, line: bytes) -> None:
        """Tell each follower a line before whoever asked for the change is answered."""
        for peer in list(self._heard_ns):
            if self._outbox.tell(peer, Remember((line,))) is not Delivery.SENT:
                self._drop(peer)
