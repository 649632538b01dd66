"""The bounds of a connection's cost, the outcomes of sending a message, and the end of a connection."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from mainspring.messages import MOST_TENSORS
from mainspring.transport.handshake import Violation

MAX_TENSORS = MOST_TENSORS
"""Tensors that one message may have: all parts go to the kernel in one call, which takes 1,024."""
PARTS_BYTES = 4
"""Most bytes of a whole message as a multiple of the longest part's, unless it has a bound of its own."""
PROGRESS_NS = 10_000_000_000
"""The time in which an unfinished message has to grow by `PROGRESS_BYTES`, or its connection is ended."""
PROGRESS_BYTES = 1 << 16
AGAIN_NS = 100_000_000
"""The time until connections are accepted again after the process has run out of descriptors."""
_SAID_NS = 10_000_000_000
"""Time between two warnings of that."""


class Ended(Exception):
    """The connection is over; the text says why."""


class Delivery(Enum):
    """The outcome of sending a message."""

    SENT = "sent"
    """The message is on its way, or kept until there is room."""
    GONE = "peer_gone"
    """There is no connection to the peer."""
    FULL = "peer_too_slow"
    """The bytes or messages that are allowed to wait for the peer already do."""


class Port(Protocol):
    """One end of a connection that this process begins, as code sees it that a test drives without sockets.

    `transport.link.Link` provides it and documents its methods.
    """

    opened: int
    ended: int

    @property
    def connected(self) -> bool:
        """Say whether there is a connection."""

    @property
    def local(self) -> bool:
        """Say whether it is to a process of this host."""

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        """Send a message."""

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Send a message with a descriptor."""

    def descriptor(self) -> int | None:
        """Return the descriptor that came last, and forget it."""


class Connection(Port, Protocol):
    """The same for code that receives by it and ends it, too."""

    def receive(self) -> list[Any] | None:
        """Return the next message."""

    def close(self, until_ns: int) -> None:
        """End the connection for good; what waits to be sent may leave until then."""


class Controllers(Protocol):
    """The connection to the controller, or to several of which one leads; `transport.link.Link` and
    `transport.controllers.ControllerLinks` provide it."""

    @property
    def opened(self) -> int:
        """Return the number of connections so far."""

    @property
    def connected(self) -> bool:
        """Say whether there is a connection to any of them."""

    @property
    def obeyed(self) -> bool:
        """Say whether there is one to the controller that is obeyed."""

    @property
    def epoch(self) -> int:
        """Return the highest epoch that has welcomed this process."""

    @property
    def refusal(self) -> str:
        """Return why one end refused the other in the last attempt; empty if neither did."""

    def send(self, parts: Sequence[Any]) -> Delivery:
        """Send the controller a message."""

    def greet(self, parts: Sequence[Any]) -> Delivery:
        """Send a hello."""

    def receive(self) -> list[Any] | None:
        """Return the controller's next message."""

    def close(self, until_ns: int) -> None:
        """End all for good."""


class Peers(Protocol):
    """The connections of peers to this process, likewise; `transport.listener.Listener` provides it."""

    on_end: Callable[[bytes], object]

    def send(self, peer: bytes, parts: Sequence[Any], volatile: bool = False) -> Delivery:
        """Send a peer a message."""

    def send_descriptor(self, peer: bytes, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Send a peer a message with a descriptor."""

    def descriptor(self, peer: bytes) -> int | None:
        """Return the descriptor that came last from a peer, and forget it."""


class Listening(Peers, Protocol):
    """The same for code that receives by it, too."""

    ended: int

    def receive(self) -> tuple[bytes, list[Any]] | None:
        """Return the next message and its sender."""


class Waits(Protocol):
    """Waits for all connections of one thread, likewise; `transport.hub.Hub` provides it."""

    def wait(self, timeout_ns: int) -> list[object]:
        """Wait at most this long; return the connections and tokens that may have something."""


class Shortage:
    """Says that a process has too few descriptors, or too little memory, to accept a connection."""

    def __init__(self, where: str) -> None:
        """``where``: the address that listens."""
        self._where = where
        self._said_ns = -_SAID_NS

    def caused(self, error: OSError) -> bool:
        """Return whether a connection could not be accepted for that reason."""
        return error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

    def say(self, log: logging.Logger, error: OSError, now_ns: int) -> None:
        """Warn of it, once in ten seconds however often it is found."""
        if now_ns - self._said_ns >= _SAID_NS:
            self._said_ns = now_ns
            log.warning("%s can't take another connection: %s", self._where, error.strerror)


class Room(Protocol):
    """Bytes that may be held at one time."""

    def take(self, count: int) -> bool:
        """Hold ``count`` more bytes; return False if that is too many, holding none of them."""

    def give(self, count: int) -> None:
        """Hold ``count`` bytes less."""


class Memory(Protocol):
    """Gives memory to receive into."""

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes."""


class Limits(msgspec.Struct, frozen=True):
    """The bounds of what one connection may cost."""

    part_bytes: int
    """Bytes of the longest message proper, or tensor, that is received; a longer one ends the connection."""
    backlog_bytes: int
    """Bytes that may wait to be sent; further messages are refused."""
    backlog_messages: int
    """Messages that may wait to be sent; further ones are refused."""
    message_bytes: int = 0
    """Bytes of all parts of one message together; 0 for `PARTS_BYTES` times ``part_bytes``."""
    tensors: int = MAX_TENSORS
    """Tensors of one message."""
    descriptors: int = 0
    """Descriptors that are taken from a peer of this host, over all of the connection's time."""
    more_descriptors: bool = False
    """True if one more may come for each that its owner has taken: ``descriptors`` may wait at one time."""
    room: Room | None = None
    """Bytes that the unfinished messages of several connections may hold together; None for any number."""
    memory: Memory | None = None
    """Memory that large parts are received into; None for memory of their own."""

    @property
    def whole_bytes(self) -> int:
        """Bytes of all parts of one message together; a longer message ends the connection."""
        return self.message_bytes or PARTS_BYTES * self.part_bytes

    def refuse(self, tensors: int, longest: int, whole: int) -> None:
        """Raise `Violation` if a message has too many tensors, or too many bytes in a part or altogether."""
        if tensors > self.tensors:
            raise Violation(f"a message of it has {tensors} tensors; {self.tensors} are allowed")
        if longest > self.part_bytes:
            raise Violation(f"a part of {longest} bytes came; at most {self.part_bytes} are allowed")
        if whole > self.whole_bytes:
            raise Violation(f"a message of {whole} bytes came; at most {self.whole_bytes} are allowed")
