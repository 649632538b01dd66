"""The store of applications in Redis, for gateways of several hosts: a hash for each application.

It needs four commands and a parser of five kinds of replies (RESP 2), which are here: no package has to be
installed. A job is sent as one pipeline; "compare and set" is a script, which Redis runs as a whole. Its
socket blocks in the store's thread, never in the gateway's loop.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

from mainspring.selection.stores.records import NOTHING, Job, Outcome, StoreAway, Stored, Write

TIMEOUT_S: Final = 0.25
"""How long Redis may take to connect, and to answer."""
_PREFIX: Final = b"mainspring:application:"
_EPOCH: Final = b"mainspring:epoch"
_WRITE: Final = b"""
local was = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if string.sub(was, 1, 8) ~= ARGV[2] then return was end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return false
"""
_ERASE: Final = b"""
local was = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
return was
"""


class RedisStore:
    """A store at ``redis://:PASSWORD@HOST:PORT/DB`` or, over TLS, ``rediss://``."""

    def __init__(self, url: str) -> None:
        """Nothing is connected before the first job."""
        self._url = urlsplit(url)
        self._shown = f"Redis at {self._url.hostname}:{self._url.port or 6379}"
        self._socket: socket.socket | None = None
        self._replies: BinaryIO | None = None

    def perform(self, job: Job) -> Outcome:
        """Do a job; raise `StoreAway` if Redis can't be reached or does not answer in time."""
        try:
            if self._socket is None:
                self._connect()
        except (OSError, ValueError) as error:
            self.close()
            raise StoreAway(f"{self._shown}: {error}", doubtful=False) from None
        try:
            return self._perform(job)
        except (OSError, ValueError) as error:
            self.close()
            raise StoreAway(f"{self._shown}: {error}", doubtful=True) from None

    def _perform(self, job: Job) -> Outcome:
        begins = (b"SET", _EPOCH, b"%d" % secrets.randbits(62), b"NX"), (b"GET", _EPOCH)
        erasures = [
            (b"EVAL", _ERASE, b"1", _hash(each.application), each.key.encode()) for each in job.erasures
        ]
        reads = [(b"HGET", _hash(each.application), each.key.encode()) for each in job.reads]
        _, epoch, *found = self._ask([*begins, *erasures, *reads, *map(_command, job.writes)])
        stored = [_stored(each) for each in found]
        erased, read_to = len(job.erasures), len(job.erasures) + len(job.reads)
        conflicts = [
            None if each is None else there
            for each, there in zip(found[read_to:], stored[read_to:], strict=True)
        ]
        return Outcome(int(epoch), tuple(stored[:erased]), tuple(stored[erased:read_to]), tuple(conflicts))

    def _connect(self) -> None:
        url = self._url
        link = socket.create_connection((url.hostname or "127.0.0.1", url.port or 6379), TIMEOUT_S)
        if url.scheme == "rediss":
            link = ssl.create_default_context().wrap_socket(link, server_hostname=url.hostname)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._replies = link, link.makefile("rb")
        commands: list[tuple[bytes, ...]] = []
        if url.password:
            names = [unquote(url.username).encode()] if url.username else []
            commands.append((b"AUTH", *names, unquote(url.password).encode()))
        if url.path.strip("/"):
            commands.append((b"SELECT", url.path.strip("/").encode()))
        # One that does not answer this gets no write of which it is not known what became of it.
        self._ask([*commands, (b"PING",)])

    def _ask(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        """Return the replies to commands; raise OSError or, for an error of Redis, ValueError."""
        assert self._socket is not None
        assert self._replies is not None
        self._socket.sendall(b"".join(map(_encoded, commands)))
        return [_reply(self._replies) for _ in commands]

    def close(self) -> None:
        """Close the connection; the next job makes another one."""
        for each in (self._replies, self._socket):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()
        self._socket = self._replies = None


def _hash(application: str) -> bytes:
    return _PREFIX + application.encode()


def _command(write: Write) -> tuple[bytes, ...]:
    expected = write.expected.to_bytes(8) if write.expected else b""
    value = write.token.to_bytes(8) + write.record
    return b"EVAL", _WRITE, b"1", _hash(write.application), write.key.encode(), expected, value


def _stored(value: bytes | None) -> Stored:
    return Stored(int.from_bytes(value[:8]), value[8:]) if value else NOTHING


def _encoded(command: tuple[bytes, ...]) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(each), each) for each in command]
    return b"*%d\r\n%b" % (len(command), b"".join(parts))


def _reply(replies: BinaryIO) -> bytes | int | None:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise OSError("the connection was closed")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise ValueError(rest.decode(errors="replace"))
    if kind == b"+":
        return rest
    if kind == b":":
        return int(rest)
    if kind != b"$":
        raise ValueError(f"a reply begins with {kind!r}")
    if rest == b"-1":
        return None
    data = replies.read(int(rest) + 2)
    if len(data) < int(rest) + 2:
        raise OSError("the connection was closed")
    return data[:-2]
