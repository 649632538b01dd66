"""A connection's bytes over TLS 1.3, with the calls of a socket that `channel` and `greeting` make.

Nothing here waits. What comes is read by up to `READ_BYTES` at once and decrypted into the caller's memory;
what is sent is encrypted by up to `WRITE_BYTES`. What the kernel does not take of it is kept, encrypted, and
the caller is told that nothing of it has left: it is to call again with the same bytes, as `Backlog` does.
Large parts are read and encrypted in place; only the encrypted bytes are copied.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from mainspring.transport.bounds import Ended
from mainspring.transport.certificate import BadCertificate, Certificate, read_certificate
from mainspring.transport.handshake import MAGIC, TLS, Identity, Unproved, Violation
from mainspring.transport.keys import Keys

FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
"""Flags of every send and receive: it never waits, and raises no signal if the peer has gone."""


class Unsent:
    """The encrypted bytes that wait for one socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected socket that does not block."""
        self._socket = sock
        self._left = memoryview(b"")

    def __bool__(self) -> bool:
        return self._left.nbytes > 0

    def push(self, data: bytes = b"") -> bool:
        """Hand what waits to the kernel, and ``data`` behind it; return whether nothing is left.

        Raises OSError if the connection is broken.
        """
        if data:
            self._left = memoryview(bytes(self._left) + data if self._left else data)
        while self._left:
            try:
                sent = self._socket.send(self._left, FLAGS)
            except BlockingIOError:
                return False
            self._left = self._left[sent:]
        return True


RECORD_BYTES = 1 << 14
"""Plain bytes of one record of TLS, at most."""
READ_BYTES = 1 << 18
WRITE_BYTES = 1 << 18
TURN_BYTES = 1 << 20
"""Plain bytes that one call receives, so that other connections have their turn."""
HANDSHAKE_BYTES = 1 << 16
"""Most bytes that the other end may send until it is known."""
MOST_ANSWER_BYTES = 1 << 14
"""Most bytes that TLS itself may have to say to the other end without its being read."""
_REFUSALS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate of this process",
    "CERTIFICATE_EXPIRED": "this process's certificate has expired for it; look at both hosts' clocks",
    "CERTIFICATE_REVOKED": "this process's certificate has been revoked",
    "UNKNOWN_CA": "this process's certificate is of an authority that it does not trust",
    "BAD_CERTIFICATE": "this process's certificate is of no use to it",
    "PROTOCOL_VERSION": "it speaks no TLS 1.3",
}
"""The other end's reason for refusing this one, by the ends of OpenSSL's names of alerts."""
NO_TLS = "it ended the connection when TLS began: it may have been started without --keys"


class SecureSocket:
    """One end of a connection over TLS; `advance` until it is ready, then a socket's calls."""

    def __init__(self, sock: socket.socket, keys: Keys, server: bool) -> None:
        """Take a connected socket that does not block; raise `Ended` if it is already over."""
        self.family = sock.family
        self.drained = False
        """True if all that the kernel is known to have has been read."""
        self.certificate: Certificate | None = None
        """The other end's, once it is known."""
        self._socket, self._keys, self._server = sock, keys, server
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = keys.context(server).wrap_bio(self._in, self._out, server_side=server)
        self._came = 0
        self._begun = False
        """True if a record may have been read in part, or if the end has come, which another read tells."""
        self._ended = False
        self._emptied = False
        """True if this call has read less than a record, so that asking for more would be in vain."""
        self._unsent = Unsent(sock)
        self._encrypted = 0
        """The plain bytes in what is unsent, which the caller takes for not sent."""
        if not server:
            # Only the first word: what comes after it has to find an owner that waits for it.
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
            self._say()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    @property
    def plain(self) -> socket.socket:
        """The socket itself: its addresses, and what is to be said to an end that speaks no TLS."""
        return self._socket

    @property
    def fault(self) -> Callable[[Identity], str]:
        """Return a function: why the other end's certificate does not allow an identity; empty if it does."""
        assert self.certificate is not None, "the handshake is not complete"
        return partial(self.certificate.fault, self._keys.cluster)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # --- the handshake ---

    def advance(self) -> bool:
        """Continue TLS's handshake; return whether it is complete.

        Raises `Ended`, and `Violation` or `Unproved` if the other end is not what it should be.
        """
        while self.certificate is None:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._say()
                if not self._hear():
                    return False
                continue
            except ssl.SSLError as error:
                self._say()
                raise self._failure(error) from None
            self._say()
            try:
                self.certificate = read_certificate(self._tls.getpeercert() or {})
            except BadCertificate as error:
                raise Unproved(str(error)) from None
        return True

    def _hear(self) -> bool:
        """Read what the other end says of the handshake; return whether anything came."""
        try:
            data = self._socket.recv(HANDSHAKE_BYTES, FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._over(str(error.strerror)) from None
        if not data:
            raise self._over("it closed the connection before it was known")
        if not self._came and not data.startswith(TLS[: len(data)]):
            self._plain(data)
        self._came += len(data)
        if self._came > HANDSHAKE_BYTES:
            raise Violation(f"its handshake of TLS has more than {HANDSHAKE_BYTES} bytes")
        self._in.write(data)
        return True

    def _over(self, why: str) -> Exception:
        """Return the end of a connection; one that ends without a word at TLS has a likely reason."""
        return Ended(why) if self._server or self._came else Unproved(NO_TLS)

    def _plain(self, data: bytes) -> None:
        """Refuse what is not TLS."""
        if data.startswith(MAGIC[: len(data)]):
            raise NotEncrypted("it speaks no TLS, which this process asks for: start it with --keys")
        raise Violation(f"it begins with {data[:4]!r}, which is no TLS; this process has --keys")

    def _say(self) -> None:
        """Send what TLS has to say."""
        data = self._out.read()
        if not data:
            return
        try:
            sent = self._socket.send(data, FLAGS)
        except OSError as error:
            raise Ended(str(error.strerror)) from None
        if sent < len(data):
            raise Ended("it does not read")

    def _failure(self, error: ssl.SSLError) -> Violation:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unproved(f"its certificate is refused: {error.verify_message}")
        reason = error.reason or str(error)
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return Unproved("it shows no certificate; start it with --keys")
        told = next((text for end, text in _REFUSALS.items() if reason.endswith(end)), "")
        if told:
            return Unproved(f"it refuses this process: {told}")
        return Violation(f"TLS with it failed: {reason.lower().replace('_', ' ')}")

    # --- receiving ---

    def recv(self, most: int, _flags: int = 0) -> bytes:
        """Return at most that number of bytes, none at the end; raise as `recvmsg_into`."""
        data = bytearray(most)
        return bytes(data[: self.recv_into(memoryview(data))])

    def recv_into(self, into: memoryview) -> int:
        """Receive into memory, as `recvmsg_into`; return the number of bytes."""
        return self.recvmsg_into([into])[0]

    def recvmsg_into(self, into: Sequence[memoryview]) -> tuple[int]:
        """Fill memory with what has come, piece after piece; return the number of bytes, 0 at the end.

        `drained` says whether more is there. Raises BlockingIOError if nothing has come, OSError on a broken
        connection, `Unproved` if the other end refuses this one.
        """
        self.drained = self._emptied = False
        count = 0
        for view in into:
            place, size = 0, view.nbytes
            while place < size:
                if count >= TURN_BYTES:
                    return (count,)
                got = self._decrypt(view[place:] if place else view)
                place += got
                count += got
                if self._ended:
                    return (count,)
                if place < size and not self._fetch():
                    return self._dry(count)
        return (count,)

    def _dry(self, count: int) -> tuple[int]:
        self.drained = True
        if self._out.pending:
            self._answer()
        if not count:
            raise BlockingIOError
        return (count,)

    def _decrypt(self, into: memoryview) -> int:
        """Decrypt what has been read, as far as it fits; return the number of plain bytes."""
        read, encrypted = self._tls.read, self._in
        place, size = 0, into.nbytes
        try:
            while place < size and (self._begun or encrypted.pending):
                # The length is positional, and what the call returns with memory given is a number.
                got = int(read(size - place, into[place:]))
                if not got:
                    self._ended = True
                    break
                place += got
                self._begun = place == size
        except ssl.SSLWantReadError:
            self._begun = False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            failure = self._failure(error)
            if isinstance(failure, Unproved):
                raise failure from None
            raise OSError(errno.EPROTO, str(failure)) from None
        return place

    def _fetch(self) -> bool:
        """Read what the kernel has; return whether there was anything. Raises OSError."""
        if self._emptied:
            return False
        memory = _memory()
        try:
            count = self._socket.recv_into(memory)
        except BlockingIOError:
            return False
        if count:
            self._in.write(memory[:count])
            self._emptied = count < RECORD_BYTES
        else:
            self._in.write_eof()
            self._begun = True
        return True

    def _answer(self) -> None:
        """Send what TLS itself has to say, unless encrypted bytes wait before it."""
        if self._out.pending > MOST_ANSWER_BYTES:
            raise OSError(errno.EPROTO, "it makes TLS answer and does not read the answers")
        if not self._unsent:
            self._unsent.push(self._out.read())

    def find_refusal(self) -> None:
        """Raise `Unproved` if the other end has refused this one, before the connection broke."""
        with contextlib.suppress(OSError):
            self.recv(1)

    # --- sending ---

    def send(self, data: bytes, _flags: int = 0) -> int:
        """Send bytes, as `sendmsg` does."""
        return self.sendmsg((data,))

    def sendmsg(self, parts: Sequence[Any], _ancillary: Sequence[Any] = (), _flags: int = 0) -> int:
        """Send what the kernel takes of these parts; return how many of their bytes have left.

        What has not left must be given again, as it is, by the next call. Raises BlockingIOError if nothing
        has left, OSError if the connection is broken.
        """
        if not self._unsent.push():
            raise BlockingIOError
        gone, self._encrypted = self._encrypted, 0
        write = self._tls.write
        for piece in _pieces(parts, gone):
            place, size = 0, len(piece)
            while place < size:
                end = min(size, place + WRITE_BYTES)
                first = place
                while place < end:
                    # It takes a record's bytes at a time, however many there are.
                    place += write(piece[place:end])
                if not self._unsent.push(self._out.read()):
                    self._encrypted = place - first
                    if not gone:
                        raise BlockingIOError
                    return gone
                gone += place - first
        return gone


_LOCAL = threading.local()


def _memory() -> memoryview:
    """Return this thread's memory for what the kernel has."""
    memory: memoryview | None = getattr(_LOCAL, "memory", None)
    if memory is None:
        memory = _LOCAL.memory = memoryview(bytearray(READ_BYTES))
    return memory


class NotEncrypted(Violation):
    """The other end is a process of Mainspring that speaks no TLS."""


def _pieces(parts: Sequence[Any], skip: int) -> Iterator[memoryview]:
    """Yield the bytes of parts without their first ``skip`` ones, small parts together in one piece."""
    small: list[memoryview] = []
    room = RECORD_BYTES
    for part in parts:
        view = memoryview(part).cast("B")
        if skip >= view.nbytes:
            skip -= view.nbytes
            continue
        view, skip = view[skip:], 0
        if view.nbytes > room and small:
            yield memoryview(b"".join(small))
            small, room = [], RECORD_BYTES
        if view.nbytes > room:
            yield view
        else:
            small.append(view)
            room -= view.nbytes
    if small:
        yield memoryview(b"".join(small))
