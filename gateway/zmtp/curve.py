"""CURVE, ZeroMQ's encryption (RFC 26), as a socket that says to its caller what a client says in clear.

A client's transient key, the server's and both their long-term ones make a key of the connection's own, which
each frame is boxed with. Who the client is does not count here: its token says that. The caller
(`ZmtpConnection`) speaks ZMTP's mechanism NULL with this; greeting, handshake and boxes are the wire's alone.
Needs PyNaCl, of the extra ``secure``.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from nacl import bindings
from nacl.exceptions import CryptoError

from mainspring.gateway.bounds import Budget
from mainspring.gateway.zmtp import wire
from mainspring.transport.unsent import Unsent

KEY_BYTES: Final = 32
OVERHEAD_BYTES: Final = 64
"""What a frame has on the wire beside what it boxes, at most."""
STRANGER_BYTES: Final = 17 << 10
"""Bytes of a frame of a client that has not said hello."""
READ_BYTES: Final = 1 << 16
TURN_BYTES: Final = 1 << 20
_MECHANISM: Final = b"CURVE".ljust(20, b"\0")
_GREETING: Final = wire.SIGNATURE + bytes((3, 1)) + _MECHANISM + b"\1" + bytes(31)
_HELLO, _INITIATE, _MESSAGE = b"\x05HELLO", b"\x08INITIATE", b"\x07MESSAGE"
_HELLO_BYTES: Final = 200
_LEAST_INITIATE_BYTES: Final = 257
_MOST_HANDSHAKE_BYTES: Final = 4 << 10
_BOX_BYTES: Final = 16
_MORE, _INNER_COMMAND = 1, 2
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class CurveKeys(NamedTuple):
    """A server's long-term keys."""

    public: bytes
    secret: bytes


def read_curve_keys(path: str) -> CurveKeys:
    """Return the keys of the file of a secret key, as `mainspring keys curve` writes it.

    Raises OSError that says what is wrong.
    """
    try:
        status = os.stat(path)
        text = Path(path).read_text("ascii", "replace").strip()
    except OSError as error:
        raise OSError(error.errno, f"the key of CURVE {path} can't be read: {error.strerror}") from None
    if status.st_mode & 0o077:
        raise OSError(f"the key of CURVE {path} is open to others: chmod it to 0600")
    secret = _from_z85(text)
    if secret is None:
        raise OSError(f"{path} holds no secret key of CURVE, 40 characters of Z85: `mainspring keys curve`")
    return CurveKeys(bindings.crypto_scalarmult_base(secret), secret)


def _from_z85(text: str) -> bytes | None:
    if len(text) != 40 or any(each not in _Z85 for each in text):
        return None
    found = b""
    for place in range(0, 40, 5):
        number = 0
        for each in text[place : place + 5]:
            number = number * 85 + _Z85.index(each)
        if number >= 1 << 32:
            return None
        found += number.to_bytes(4)
    return found


class CurveSocket:
    """One client's socket; see the module's docstring."""

    def __init__(self, sock: socket.socket, keys: CurveKeys, message_bytes: int, budget: Budget) -> None:
        """``message_bytes`` bounds a frame, ``budget`` what is kept of frames that have not wholly come."""
        self.stranger = True
        """Whether the client has yet to say hello."""
        self.grew_ns = self.began_ns = monotonic_ns()
        """When something last came of the frame under way, and when it began."""
        self._socket, self._keys, self._budget = sock, keys, budget
        self._limit = message_bytes + OVERHEAD_BYTES
        # --- what comes ---
        self._ready: deque[memoryview] = deque([memoryview(wire.GREETING)])
        self._came = bytearray()
        """Small things that have not wholly come."""
        self._frame: memoryview | None = None
        """A large frame that has not wholly come."""
        self._filled = self._held = 0
        self._step = self._greeting
        self._wants = len(_GREETING)
        self._last_nonce = 0
        self._first = True
        # --- what is sent ---
        self._unsent = Unsent(sock)
        self._taken = 0
        """Plain bytes that are boxed in these, which the caller takes for not sent."""
        self._nonce = 0
        self._box_key = b""
        self._transient = bindings.crypto_box_keypair()
        self._client = b""
        self._cookie = b""
        self._greeted = False

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """Say the end."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket; nothing is kept any more."""
        self._budget.give(self._held)
        self._held = 0
        self._socket.close()

    @property
    def under_way(self) -> bool:
        """Whether a frame has begun to come."""
        return self._frame is not None or bool(self._came)

    # --- receiving ---

    def recv_into(self, into: memoryview) -> int:
        """Receive into memory, as `recvmsg_into`."""
        return self.recvmsg_into([into])[0]

    def recvmsg_into(self, into: Sequence[memoryview]) -> tuple[int]:
        """Fill memory with what the client says; return the number of bytes, 0 at the end.

        Raises BlockingIOError if there is nothing so far, OSError if the connection is broken, and
        `wire.Violation` of one that is no client of CURVE, or whose boxes were not made with these keys.
        """
        count, read = 0, 0
        for view in into:
            place, size = 0, view.nbytes
            while place < size:
                if not self._ready:
                    got = self._read() if read < TURN_BYTES else -1
                    read += max(0, got)
                    if got == 0:
                        return (count,)
                    if got < 0:
                        if not count:
                            raise BlockingIOError
                        return (count,)
                    continue
                have = self._ready[0]
                part = min(have.nbytes, size - place)
                view[place : place + part] = have[:part]
                if part == have.nbytes:
                    self._ready.popleft()
                else:
                    self._ready[0] = have[part:]
                place += part
                count += part
        return (count,)

    def _read(self) -> int:
        """Read once; return the number of bytes, 0 at the end, -1 if there is nothing so far."""
        try:
            if self._frame is not None:
                count = self._socket.recv_into(self._frame[self._filled :])
                self._filled += count
            else:
                data = self._socket.recv(READ_BYTES)
                count = len(data)
                if not self._came:
                    self.began_ns = monotonic_ns()
                self._came += data
        except BlockingIOError:
            return -1
        if count:
            self.grew_ns = monotonic_ns()
            self._take()
        return count

    def _take(self) -> None:
        """Make what can be made of what has come."""
        if self._frame is not None:
            if self._filled < self._frame.nbytes:
                return
            frame, self._frame = self._frame, None
            self._budget.give(self._held)
            self._held = 0
            self._open(frame)
        while len(self._came) >= self._wants and self._frame is None:
            before = len(self._came)
            self._step()
            if len(self._came) == before:
                return

    def _greeting(self) -> None:
        data = bytes(self._came[: len(_GREETING)])
        if data[:1] != b"\xff" or data[9:10] != b"\x7f" or data[10] < 3:
            raise wire.Violation("it is no client of ZeroMQ 4")
        if data[12:32] != _MECHANISM:
            spoken = data[12:32].rstrip(bytes(1))
            raise wire.Violation(f"it speaks {spoken!r} and not CURVE; give the client a curve_key")
        del self._came[: len(_GREETING)]
        self._step, self._wants = self._header, 2

    def _header(self) -> None:
        """Read a frame's header, and the frame if all of it is there."""
        flags = self._came[0]
        size_bytes = 8 if flags & wire.LONG else 1
        if flags > 7 or len(self._came) < 1 + size_bytes:
            if flags > 7:
                raise wire.Violation(f"a frame of it has the flags {flags:#04x}, which mean nothing")
            return
        size = int.from_bytes(self._came[1 : 1 + size_bytes])
        limit = self._limit if self._box_key else _MOST_HANDSHAKE_BYTES
        if self.stranger:
            limit = min(limit, STRANGER_BYTES)
        if size > limit:
            raise wire.Violation(f"a frame of {size:,} bytes came; {limit:,} are allowed")
        end = 1 + size_bytes + size
        if len(self._came) >= end:
            frame = memoryview(bytes(self._came[1 + size_bytes : end]))
            del self._came[:end]
            self._open(frame)
            return
        if not self._budget.take(size):
            raise wire.Violation("messages that are on their way hold as many bytes as they may")
        self._held = size
        self._frame = memoryview(bytearray(size))
        self._filled = len(self._came) - 1 - size_bytes
        self._frame[: self._filled] = self._came[1 + size_bytes :]
        self._came.clear()

    def _open(self, frame: memoryview) -> None:
        """Take a whole frame."""
        try:
            if self._box_key:
                self._message(frame)
            elif not self._client:
                self._hello(bytes(frame))
            else:
                self._initiate(bytes(frame))
        except (CryptoError, ValueError, IndexError):
            raise wire.Violation("a box of it can't be opened with the keys of this gateway") from None

    def _hello(self, body: bytes) -> None:
        if len(body) != _HELLO_BYTES or not body.startswith(_HELLO) or body[6] != 1:
            raise wire.Violation("it does not begin with CURVE's HELLO")
        client, nonce, box = body[80:112], body[112:120], body[120:]
        signed = bindings.crypto_box_open(box, b"CurveZMQHELLO---" + nonce, client, self._keys.secret)
        if signed != bytes(64):
            raise wire.Violation("its HELLO is signed wrongly")
        self._last_nonce = int.from_bytes(nonce)
        self._client = client
        cookie_nonce, welcome_nonce = os.urandom(16), os.urandom(16)
        # The connection is kept, so that what the cookie holds need not be read again: it is compared.
        self._cookie = cookie_nonce + os.urandom(80)
        box = bindings.crypto_box(
            self._transient[0] + self._cookie, b"WELCOME-" + welcome_nonce, client, self._keys.secret
        )
        self._say(wire.command(b"WELCOME", welcome_nonce + box))

    def _initiate(self, body: bytes) -> None:
        if len(body) < _LEAST_INITIATE_BYTES or not body.startswith(_INITIATE):
            raise wire.Violation("its HELLO is not followed by CURVE's INITIATE")
        cookie, nonce, box = body[9:105], body[105:113], body[113:]
        if not hmac.compare_digest(cookie, self._cookie):
            raise wire.Violation("its INITIATE brings another cookie back")
        self._check_nonce(nonce)
        shared = bindings.crypto_box_beforenm(self._client, self._transient[1])
        plain = bindings.crypto_box_open_afternm(box, b"CurveZMQINITIATE" + nonce, shared)
        client, vouch_nonce, vouch, metadata = plain[:32], plain[32:48], plain[48:128], plain[128:]
        vouched = bindings.crypto_box_open(vouch, b"VOUCH---" + vouch_nonce, client, self._transient[1])
        if vouched != self._client + self._keys.public:
            raise wire.Violation("its INITIATE vouches for other keys")
        self._box_key = shared
        self._ready.append(memoryview(wire.command(b"READY", metadata)))

    def _message(self, frame: memoryview) -> None:
        head = len(_MESSAGE) + 8
        if frame.nbytes < head + _BOX_BYTES + 1 or bytes(frame[: len(_MESSAGE)]) != _MESSAGE:
            raise wire.Violation("a frame of it is no MESSAGE of CURVE")
        nonce = bytes(frame[len(_MESSAGE) : head])
        self._check_nonce(nonce)
        box = bytes(frame[head:])
        plain = memoryview(bindings.crypto_box_open_afternm(box, b"CurveZMQMESSAGEC" + nonce, self._box_key))
        flags = plain[0]
        kind = wire.COMMAND if flags & _INNER_COMMAND else flags & _MORE
        self._ready.append(memoryview(wire.header(kind, plain.nbytes - 1)))
        if plain.nbytes > 1:
            self._ready.append(plain[1:])

    def _check_nonce(self, nonce: bytes) -> None:
        """Note a nonce, which has to be above all before it: else somebody says again what was said."""
        number = int.from_bytes(nonce)
        if number <= self._last_nonce:
            raise wire.Violation("a nonce of it came before")
        self._last_nonce = number

    # --- sending ---

    def _say(self, data: bytes) -> None:
        """Send a part of the handshake."""
        self._unsent.push(data)

    def sendmsg(self, parts: Sequence[Any], _ancillary: Sequence[Any] = (), _flags: int = 0) -> int:
        """Box the whole frames among these parts and send them; return how many plain bytes have left.

        What has not left must be given again, as it is. Raises BlockingIOError if nothing has left.
        """
        if not self._unsent.push():
            raise BlockingIOError
        gone, self._taken = self._taken, 0
        for boxed, plain in self._boxes(parts, gone):
            if not self._unsent.push(boxed):
                self._taken = plain
                break
            gone += plain
        if not gone:
            raise BlockingIOError
        return gone

    def _boxes(self, parts: Sequence[Any], skip: int) -> Iterator[tuple[bytes, int]]:
        """Yield what goes over the wire for each frame, and the bytes that the frame has in clear."""
        stream = _Stream(parts, skip)
        if not self._greeted:
            if stream.take(len(wire.GREETING)) is None:
                return
            self._greeted = True
            yield _GREETING, len(wire.GREETING)
        while (head := stream.take(2)) is not None:
            flags, size, plain = head[0], head[1], 2
            if flags & wire.LONG:
                rest = stream.take(7)
                if rest is None:
                    return
                size, plain = int.from_bytes(bytes(head[1:]) + bytes(rest)), 9
            body = stream.take(size)
            if body is None:
                return
            yield self._boxed(flags, body), plain + size

    def _boxed(self, flags: int, body: memoryview) -> bytes:
        self._nonce += 1
        nonce = self._nonce.to_bytes(8)
        if self._nonce == 1:
            # The first thing said behind the handshake is READY, whose properties are boxed alone.
            metadata = bytes(body[1 + body[0] :])
            box = bindings.crypto_box_afternm(metadata, b"CurveZMQREADY---" + nonce, self._box_key)
            return wire.command(b"READY", nonce + box)
        inner = (_INNER_COMMAND if flags & wire.COMMAND else 0) | (flags & _MORE)
        plain = b"".join((bytes((inner,)), body))
        box = bindings.crypto_box_afternm(plain, b"CurveZMQMESSAGES" + nonce, self._box_key)
        return b"".join((wire.header(0, len(_MESSAGE) + 8 + len(box)), _MESSAGE, nonce, box))


class _Stream:
    """The bytes of parts, one after the other."""

    def __init__(self, parts: Sequence[Any], skip: int) -> None:
        self._parts: deque[memoryview] = deque()
        for part in parts:
            view = memoryview(part).cast("B")
            if skip >= view.nbytes:
                skip -= view.nbytes
                continue
            self._parts.append(view[skip:])
            skip = 0
        self._left = sum(part.nbytes for part in self._parts)

    def take(self, count: int) -> memoryview | None:
        """Return the next bytes, uncopied if one part has them all; None if there are not as many."""
        if count > self._left:
            return None
        self._left -= count
        taken: list[memoryview] = []
        while count:
            part = self._parts[0]
            taken.append(part[:count])
            count -= taken[-1].nbytes
            if taken[-1].nbytes == part.nbytes:
                self._parts.popleft()
            else:
                self._parts[0] = part[taken[-1].nbytes :]
        return taken[0] if len(taken) == 1 else memoryview(b"".join(taken))
