"""One peer's bytes as what they say: a state machine without a socket or a clock.

::

    GREETING --64 bytes--> HANDSHAKE --READY--> TRAFFIC --messages, PING--> TRAFFIC

Its owner asks `next` for events until `starved`, then reads: the rest of a frame straight into `target`, all
else into a buffer of its own that it gives to `feed` and may use again after `keep`.

A message that is too much is dealt with in one of two ways. What a client may send without knowing better (a
request on a connection that has not said hello, more frames than are taken, bytes for which there is no room
at present) is *cut*: its frames are skipped, without memory, and its event says why. Beyond what is skipped,
and for anything that is not ZMTP, `Violation` ends the connection.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from mainspring.gateway.bounds import Budget
from mainspring.gateway.memory import Memory
from mainspring.gateway.zmtp import wire
from mainspring.gateway.zmtp.wire import Violation

FRAMES_AT_ONCE: Final = 64
"""What one call of `Receiver.next` looks at, so that frames without end cost others little."""
MOST_PARTS: Final = 255
"""Frames of a message that are kept."""
_SKIPPED_PARTS: Final = 1 << 13
"""Frames of a message that are taken at all."""
STRANGER_BYTES: Final = 16 << 10
"""Bytes of a message that are kept of a peer that has not said hello."""
COMMAND_BYTES: Final = 4 << 10
_TTL_NS: Final = 100_000_000
"""PING's unit."""


class Cut(Enum):
    """Why a message was not kept."""

    PARTS = "parts"
    STRANGER = "stranger"
    NO_ROOM = "no_room"


class Opened(NamedTuple):
    """The handshake is over: this peer may be answered."""

    enveloped: bool
    """Whether its messages begin with an empty frame, which is taken off, and its replies have to."""


class Message(NamedTuple):
    """A whole message; of one that was cut, its first frame at most."""

    parts: list[Any]
    """Each `bytes`, or a `memoryview` of bytes with memory of its own."""
    cut: Cut | None = None


class Ping(NamedTuple):
    """The peer wants a PONG with this context."""

    context: bytes
    ttl_ns: int
    """How long the peer may send nothing before it counts as gone; 0: it does not say."""


Event = Opened | Message | Ping


class _Phase(Enum):
    GREETING = 0
    HANDSHAKE = 1
    TRAFFIC = 2


class Receiver:
    """See the module's docstring."""

    def __init__(self, message_bytes: int, budget: Budget, memory: Memory | None = None) -> None:
        """``message_bytes`` bounds a message; ``budget`` counts what is kept of unfinished ones.

        ``memory`` is where large frames are received.
        """
        self._memory = Memory(0) if memory is None else memory
        self.stranger = True
        """Whether the peer has yet to say hello."""
        self.starved = False
        """Whether there is nothing more to be found before something is read."""
        self._limit_bytes = message_bytes
        self._budget = budget
        self._phase = _Phase.GREETING
        self._enveloped = False
        self._data = memoryview(b"")
        self._at = 0
        self._in_frame = False
        self._flags = 0
        self._left = 0
        """Of the body of the frame under way, unless it has memory of its own."""
        self._frame: memoryview | None = None
        """Its memory, if it did not come at once."""
        self._filled = 0
        self._keeps = True
        """Whether its body is kept."""
        self._parts: list[Any] = []
        self._count = 0
        self._bytes = 0
        """Of the message under way, all that was announced."""
        self._held_bytes = 0
        self._cut: Cut | None = None

    @property
    def opened(self) -> bool:
        """Whether the handshake is over."""
        return self._phase is _Phase.TRAFFIC

    @property
    def under_way(self) -> bool:
        """Whether the end of something is yet to come."""
        return self._in_frame or self._count > 0 or self._at < len(self._data)

    @property
    def missing(self) -> int:
        """Bytes that are yet to come of the frame under way."""
        return self._left if self._frame is None else len(self._frame) - self._filled

    def target(self) -> memoryview | None:
        """Return where the rest of the frame under way is to be read to, if it has memory of its own."""
        return None if self._frame is None else self._frame[self._filled :]

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes were read to `target`."""
        self._filled += count
        self.starved = False

    def rest(self) -> memoryview:
        """Return what was fed and could not be used yet: to be fed again, with more behind it."""
        return self._data[self._at :]

    def feed(self, data: memoryview) -> None:
        """Take what was read, behind what `rest` returned; valid until `keep`."""
        self._data, self._at = data, 0
        self.starved = False

    def keep(self) -> None:
        """Copy what is left of what was fed."""
        self._data = memoryview(bytes(self._data[self._at :]))
        self._at = 0

    def close(self) -> None:
        """Forget what was kept."""
        self._budget.give(self._held_bytes)
        self._held_bytes = 0
        self._parts, self._frame = [], None

    def next(self) -> Event | None:
        """Return the next event, None if there is none yet or `FRAMES_AT_ONCE` frames make none.

        Raises `Violation`.
        """
        for _ in range(FRAMES_AT_ONCE):
            if self._phase is _Phase.GREETING and not self._greet():
                break
            if not self._in_frame and not self._begin():
                break
            body = self._fill()
            if body is None:
                break
            self._in_frame = False
            event = self._command(bytes(body)) if self._flags & wire.COMMAND else self._add(body)
            if event is not None:
                self.starved = self._at == len(self._data)
                return event
        else:
            return None
        self.starved = True
        return None

    def _greet(self) -> bool:
        if not wire.check_greeting(self._data[self._at :]):
            return False
        self._at += len(wire.GREETING)
        self._phase = _Phase.HANDSHAKE
        return True

    def _begin(self) -> bool:
        """Read a frame's header; return whether it is there."""
        data, at = self._data, self._at
        have = len(data) - at
        if have < 2:
            return False
        flags = data[at]
        if flags > 7 or flags & 5 == 5:
            raise Violation(f"a frame of it has the flags {flags:#04x}, which mean nothing")
        if flags & wire.LONG:
            if have < 9:
                return False
            size, header = int.from_bytes(data[at + 1 : at + 9]), 9
        else:
            size, header = data[at + 1], 2
        if flags & wire.COMMAND:
            if size > COMMAND_BYTES:
                raise Violation(f"a command of it has {size:,} bytes; {COMMAND_BYTES:,} are allowed")
            self._keeps = True
        elif self._phase is not _Phase.TRAFFIC:
            raise Violation("it sent a message before the handshake was over")
        else:
            self._keeps = self._admit(size)
        self._at = at + header
        self._flags, self._left, self._in_frame = flags, size, True
        return True

    def _admit(self, size: int) -> bool:
        """Count a frame of a message; return whether it is to be kept."""
        self._count += 1
        self._bytes += size
        if self._bytes > self._limit_bytes:
            raise Violation(
                f"a message of it has {self._bytes:,} bytes or more; {self._limit_bytes:,} are allowed"
            )
        if self._count > _SKIPPED_PARTS:
            raise Violation(
                f"a message of it has more than {_SKIPPED_PARTS:,} frames; {MOST_PARTS} are allowed"
            )
        if self._cut is not None:
            return False
        if self._count > MOST_PARTS:
            self._cut = Cut.PARTS
        elif self.stranger and self._bytes > STRANGER_BYTES:
            self._cut = Cut.STRANGER
        elif not self._budget.take(size):
            self._cut = Cut.NO_ROOM
        else:
            self._held_bytes += size
            return True
        self._drop()
        return False

    def _drop(self) -> None:
        """Forget all but the first frame of a message that is cut: it may say what the message was."""
        del self._parts[1:]
        kept = sum(map(len, self._parts))
        if kept > STRANGER_BYTES:
            self._parts, kept = [], 0
        self._budget.give(self._held_bytes - kept)
        self._held_bytes = kept

    def _fill(self) -> Any | None:
        """Return the body of the frame under way, None while some of it is missing."""
        data, at = self._data, self._at
        have = len(data) - at
        if self._frame is not None:
            count = min(have, len(self._frame) - self._filled)
            if count:
                self._frame[self._filled : self._filled + count] = data[at : at + count]
                self._filled += count
                self._at = at + count
            if self._filled < len(self._frame):
                return None
            body, self._frame, self._left = self._frame, None, 0
            return body
        left = self._left
        if have >= left:
            self._at, self._left = at + left, 0
            return bytes(data[at : at + left]) if self._keeps else b""
        self._at = len(data)
        if not self._keeps:
            self._left = left - have
            return None
        self._frame = self._memory.take(left)
        self._frame[:have] = data[at:]
        self._filled = have
        return None

    def _add(self, body: Any) -> Message | None:
        """Add a frame to the message under way; return it if that was its last."""
        if self._cut is None:
            self._parts.append(body)
        if self._flags & wire.MORE:
            return None
        message = Message(self._parts, self._cut)
        self._budget.give(self._held_bytes)
        self._parts, self._count, self._bytes, self._held_bytes, self._cut = [], 0, 0, 0, None
        if self._enveloped and message.parts:
            if len(message.parts[0]):
                raise Violation("a message of its REQ socket does not begin with an empty frame")
            del message.parts[0]
        return message

    def _command(self, body: bytes) -> Event | None:
        name, data = wire.split_command(body)
        if self._phase is _Phase.HANDSHAKE:
            if name != b"READY":
                raise Violation(f"its handshake has the command {name[:20]!r} in place of READY")
            socket_type = wire.properties(data).get(b"socket-type", b"")
            if socket_type not in wire.SOCKET_TYPES:
                raise Violation(
                    f"a {socket_type[:20].decode('latin-1')} socket can't talk here; use a DEALER"
                )
            self._phase = _Phase.TRAFFIC
            self._enveloped = socket_type == b"REQ"
            return Opened(self._enveloped)
        if name == b"ERROR":
            raise Violation(f"it said {data[1:100]!r}")
        if name == b"PING" and len(data) >= 2:
            return Ping(data[2:18], int.from_bytes(data[:2]) * _TTL_NS)
        return None
