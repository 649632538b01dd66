"""One connected stream after its `handshake`: whole messages in, whole messages out; no call waits.

A message is a *head* with the size of the message proper and the number of tensors behind it, each tensor's
size, the message proper, and the tensors. All numbers are little-endian.

Small parts of a message are copied out of the connection's buffer. Large parts are received straight into
memory of their own, which is allocated once their size has been checked. What is sent goes from the caller's
memory to the kernel; what the kernel does not take at once is kept, within bounds, and leaves when there is
room again.

A message to a process of this host may bring a descriptor along. The receiver takes as many over a connection
as its `Limits` say, and they come in the order of their messages; the kernel closes any other.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mainspring.transport import addresses
from mainspring.transport.bounds import MAX_TENSORS, PROGRESS_BYTES, Delivery, Ended, Limits
from mainspring.transport.certificate import Certificate
from mainspring.transport.handshake import Violation
from mainspring.transport.secure import FLAGS, SecureSocket

HEAD = struct.Struct("<II")
"""The bytes of the message proper, and the number of tensors."""
BUFFER_BYTES = 1 << 14
"""The most that one read takes beside the rest of a large part: about a hundred small messages."""
READS = 8
"""Reads of one connection before the others have their turns."""
FLUSH_PARTS = 64
"""Parts handed to the kernel in one call when there is room again."""
_DESCRIPTOR = struct.Struct("i")
READABLE = select.EPOLLIN | select.EPOLLRDHUP
WRITABLE = select.EPOLLOUT
BOTH = READABLE | WRITABLE

Message = list[Any]
"""The message proper as bytes, then each tensor as bytes or as a memoryview of bytes."""


@functools.cache
def sizes_of(tensors: int) -> struct.Struct:
    """Return the layout of the sizes of this number of tensors."""
    return struct.Struct(f"<{tensors}Q")


def size_of(part: Any) -> int:
    """Return the number of bytes of a part, also of an array of several dimensions."""
    return part.nbytes if type(part) is memoryview else len(part)


def head(sizes: Sequence[int]) -> bytes:
    """Return the head of a message whose parts, the message proper and its tensors, have these sizes.

    Raises ValueError if there are more than `MAX_TENSORS`.
    """
    tensors = len(sizes) - 1
    if not tensors:
        return HEAD.pack(sizes[0], 0)
    if tensors > MAX_TENSORS:
        raise ValueError(f"a message carries at most {MAX_TENSORS} tensors, not {tensors}")
    return HEAD.pack(sizes[0], tensors) + sizes_of(tensors).pack(*sizes[1:])


class Backlog:
    """The messages that wait to be sent, in order, within bounds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._messages: deque[list[memoryview]] = deque()
        self.bytes = 0
        """The number of bytes that wait."""
        self.taken_bytes = 0
        """The number of bytes that waited and were taken by the peer since."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def full(self) -> bool:
        """Say whether no further message may be added."""
        return self.bytes > self._limits.backlog_bytes or len(self._messages) >= self._limits.backlog_messages

    def add(self, parts: Sequence[Any], skip: int, volatile: bool) -> None:
        """Keep parts without their first ``skip`` bytes, as copies if their memory is ``volatile``."""
        kept = []
        for part in parts:
            view = memoryview(part)
            if skip < view.nbytes:
                rest = view.cast("B")[skip:]
                kept.append(memoryview(bytes(rest)) if volatile else rest)
                self.bytes += rest.nbytes
            skip = max(0, skip - view.nbytes)
        self._messages.append(kept)

    def send(self, sock: Any, parts: Sequence[Any], size: int, volatile: bool) -> None:
        """Send parts of ``size`` bytes behind what waits, and keep what the socket does not take.

        ``sock``: the kernel's, or one over TLS, which makes the same calls.

        Raises OSError if the connection is broken.
        """
        sent = 0
        if not self._messages:
            try:
                sent = sock.sendmsg(parts, (), FLAGS)
            except BlockingIOError:
                sent = 0
        if sent < size:
            self.add(parts, sent, volatile)

    def flush(self, sock: Any) -> None:
        """Send what the kernel takes; raise OSError if the connection is broken."""
        while self._messages:
            parts = [part for message in list(self._messages)[:FLUSH_PARTS] for part in message][:FLUSH_PARTS]
            try:
                sent = sock.sendmsg(parts, (), FLAGS) if parts else 0
            except BlockingIOError:
                return
            self.bytes -= sent
            self.taken_bytes += sent
            self._take_off(sent)

    def _take_off(self, sent: int) -> None:
        while self._messages:
            message = self._messages[0]
            while message and message[0].nbytes <= sent:
                sent -= message.pop(0).nbytes
            if message:
                message[0] = message[0][sent:]
                return
            self._messages.popleft()


class Channel:
    """One connection after its handshake. ``peer`` is the owner's name for the other end."""

    def __init__(
        self, sock: socket.socket | SecureSocket, epoll: select.epoll, limits: Limits, peer: bytes
    ) -> None:
        self.fd = sock.fileno()
        self.peer = peer
        self.queued = False
        """True if its owner has queued it as one that may have a message."""
        self._socket: Any = sock
        self._secure = sock if isinstance(sock, SecureSocket) else None
        self._epoll = epoll
        self._limits = limits
        self._tensors, self._part_bytes, self._whole_bytes = (
            limits.tensors,
            limits.part_bytes,
            limits.whole_bytes,
        )
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._drained = True
        self._partial = False
        """True if the buffer holds no whole message."""
        self._sizes: list[int] = []
        """The sizes of the parts that the message under way still lacks, the next one last."""
        self._parts: Message = []
        self._part: memoryview | None = None
        self._filled = 0
        self._grown = 0
        """The number of bytes received so far."""
        self._grown_before = 0
        self._backlog = Backlog(limits)
        self._broken = False
        self._held_bytes = 0
        """Bytes of `Limits.room` that the message under way holds."""
        self.local = sock.family == socket.AF_UNIX
        """True if the peer is a process of this host, which descriptors may be sent to."""
        self._awaited = limits.descriptors if self.local else 0
        """Descriptors that may yet come."""
        self._descriptors: deque[int] = deque()

    @property
    def certificate(self) -> Certificate | None:
        """The other end's certificate, of a connection over TLS."""
        return None if self._secure is None else self._secure.certificate

    # --- receiving ---

    def readable(self) -> None:
        """Note that the kernel has received something."""
        self._drained = False

    @property
    def more(self) -> bool:
        """Say whether `next` may find another message."""
        return not self._drained or (self._end > self._start and not self._partial)

    @property
    def drained(self) -> bool:
        """Say whether all that the kernel is known to have has been read."""
        return self._drained

    @property
    def unfinished(self) -> bool:
        """Say, once `next` has returned None, whether a part of a message has arrived."""
        return bool(self._sizes) or self._end > self._start

    @property
    def received(self) -> int:
        """Return the number of bytes received so far."""
        return self._grown

    def grows(self) -> bool:
        """Say whether enough has arrived since the last call for a message to count as growing."""
        grown, self._grown_before = self._grown - self._grown_before, self._grown
        return grown >= PROGRESS_BYTES

    def next(self) -> Message | None:
        """Return the next message; None if it is not complete yet.

        Raises `Ended` after the last message of a connection, and `Violation`.
        """
        for _ in range(READS):
            message = self._assemble()
            self._partial = message is None
            if message is not None or self._drained:
                return message
            self._read()
        message = self._assemble()
        self._partial = message is None
        return message

    def _assemble(self) -> Message | None:
        """Return a message if all of it has been read."""
        if not self._sizes and not self._begin():
            return None
        while self._sizes:
            size = self._sizes[-1]
            if self._part is not None:
                if self._filled < size:
                    return None
                self._parts.append(self._part)
                self._part = None
            elif self._end - self._start >= size:
                self._parts.append(bytes(self._view[self._start : self._start + size]))
                self._start += size
            else:
                self._begin_part(size)
                return None
            self._sizes.pop()
        parts, self._parts = self._parts, []
        if self._held_bytes:
            self._let_go()
        return parts

    def _begin(self) -> bool:
        """Read the next message's head from the buffer; return whether the buffer holds it."""
        have = self._end - self._start
        if have < HEAD.size:
            return False
        size, tensors = HEAD.unpack_from(self._buffer, self._start)
        self._check(tensors, size, size)
        if not tensors:
            self._start += HEAD.size
            self._sizes = [size]
            return True
        layout = sizes_of(tensors)
        if have < HEAD.size + layout.size:
            return False
        sizes = layout.unpack_from(self._buffer, self._start + HEAD.size)
        self._check(tensors, max(size, *sizes), size + sum(sizes))
        self._start += HEAD.size + layout.size
        self._sizes = [*sizes[::-1], size]
        return True

    def _check(self, tensors: int, longest: int, whole: int) -> None:
        if tensors > self._tensors or longest > self._part_bytes or whole > self._whole_bytes:
            self._limits.refuse(tensors, longest, whole)

    def _begin_part(self, size: int) -> None:
        """Allocate memory for a part that the buffer does not hold, and move its beginning there."""
        have = self._end - self._start
        if (room := self._limits.room) is not None:
            if not room.take(size):
                raise Violation("messages that are on their way hold as many bytes as they may")
            self._held_bytes += size
        memory = self._limits.memory
        # A bytearray would be filled with zeros first.
        self._part = np.empty(size, np.uint8).data if memory is None else memory.take(size)
        self._part[:have] = self._view[self._start : self._end]
        self._filled = have
        self._start = self._end = 0

    def _let_go(self) -> None:
        assert self._limits.room is not None, "what is held is of a room"
        self._limits.room.give(self._held_bytes)
        self._held_bytes = 0

    def _read(self) -> None:
        """Read once: the rest of the part under way, and what follows it."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        room = self._view[self._end :] if self._end else self._view
        try:
            if self._awaited:
                wanted, count = self._read_with_descriptors(room)
            elif self._part is None:
                wanted, count = room.nbytes, self._socket.recv_into(room)
            else:
                rest_of_part = self._part[self._filled :]
                wanted = rest_of_part.nbytes + room.nbytes
                count = self._socket.recvmsg_into([rest_of_part, room])[0]
        except BlockingIOError:
            self._drained = True
            return
        except OSError as error:
            raise Ended(str(error.strerror)) from None
        if not count:
            raise Ended("it closed the connection")
        self._drained = count < wanted if self._secure is None else self._secure.drained
        self._grown += count
        if self._part is not None:
            self._filled += (of_part := min(count, self._part.nbytes - self._filled))
            count -= of_part
        self._end += count

    def _read_with_descriptors(self, room: memoryview) -> tuple[int, int]:
        """Read once while descriptors may come; return how many bytes were wanted, and how many came."""
        into = [room] if self._part is None else [self._part[self._filled :], room]
        space = socket.CMSG_SPACE(_DESCRIPTOR.size)
        count, found, _, _ = self._socket.recvmsg_into(into, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in found:
            if level != socket.SOL_SOCKET or kind != socket.SCM_RIGHTS:
                continue
            for (descriptor,) in _DESCRIPTOR.iter_unpack(
                data[: len(data) // _DESCRIPTOR.size * _DESCRIPTOR.size]
            ):
                if self._awaited:
                    self._awaited -= 1
                    self._descriptors.append(descriptor)
                else:
                    os.close(descriptor)
        # A read ends where the bytes of a message with a descriptor begin or end, whatever more there is.
        return sum([each.nbytes for each in into]) if not found else count, count

    def descriptor(self) -> int | None:
        """Return the oldest descriptor that came and was not asked for, which the caller is to close."""
        if not self._descriptors:
            return None
        if self._limits.more_descriptors:
            self._awaited += 1
        return self._descriptors.popleft()

    # --- sending ---

    @property
    def waits(self) -> bool:
        """Say whether something waits to be sent."""
        return bool(self._backlog)

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        return self._backlog.bytes

    @property
    def taken_bytes(self) -> int:
        """The number of bytes that had to wait and that the peer has taken since."""
        return self._backlog.taken_bytes

    def send(self, parts: Sequence[Any], volatile: bool = False, *, beyond: bool = False) -> Delivery:
        """Send a message; ``volatile`` parts may change once this returns. Raises ValueError like `head`.

        ``beyond``: even if more than is allowed waits already.
        """
        sizes = [size_of(part) for part in parts]
        first = head(sizes)
        return self._send((first, *parts), len(first) + sum(sizes), volatile, beyond=beyond)

    def send_all(self, messages: Sequence[bytes]) -> Delivery:
        """Send small messages without tensors by one system call; all of them share one fate."""
        whole = b"".join([part for message in messages for part in (HEAD.pack(len(message), 0), message)])
        return self._send((whole,), len(whole), False)

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Send a message with a copy of a descriptor to a process of this host.

        Returns `Delivery.FULL`, having sent nothing, while anything waits to be sent, and `Delivery.GONE` to
        a peer of another host.
        """
        if self._broken or not self.local:
            return Delivery.GONE
        if self._backlog:
            return Delivery.FULL
        sizes = [size_of(part) for part in parts]
        whole = (head(sizes), *parts)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))
        try:
            sent = self._socket.sendmsg(whole, (rights,), FLAGS)
        except BlockingIOError:
            return Delivery.FULL
        except OSError:
            self._broken = True
            return Delivery.GONE
        if sent < len(whole[0]) + sum(sizes):
            self._backlog.add(whole, sent, volatile=True)
            self._epoll.modify(self.fd, BOTH)
        return Delivery.SENT

    def _send(self, parts: Sequence[Any], size: int, volatile: bool, *, beyond: bool = False) -> Delivery:
        if self._broken:
            return Delivery.GONE
        backlog = self._backlog
        waited = bool(backlog)
        if waited and backlog.full and not beyond:
            return Delivery.FULL
        try:
            backlog.send(self._socket, parts, size, volatile)
        except OSError:
            # What arrived before the break is still to be read; the end shows after that.
            self._broken = True
            return Delivery.GONE
        if backlog and not waited:
            self._epoll.modify(self.fd, BOTH)
        return Delivery.SENT

    def flush(self) -> bool:
        """Send what waits, when there is room again; return whether nothing is left."""
        try:
            self._backlog.flush(self._socket)
        except OSError:
            self._broken = True
            self._backlog = Backlog(self._limits)
        if self._backlog:
            return False
        self._epoll.modify(self.fd, READABLE)
        return True

    @property
    def host(self) -> str:
        """The numeric address of the other end's host; empty if it is this one."""
        return addresses.host_of(self._socket if self._secure is None else self._secure.plain)

    def close(self) -> None:
        """End the connection; the kernel still sends what it has taken."""
        self._epoll.unregister(self.fd)
        self._socket.close()
        if self._held_bytes:
            self._let_go()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class Sender(Protocol):
    """A connection that may have something to send."""

    fd: int

    @property
    def waits(self) -> bool:
        """Say whether something waits to be sent."""

    def flush(self) -> bool:
        """Send what the kernel takes; return whether nothing is left."""


def flush_all(channels: Sequence[Sender], until_ns: int) -> None:
    """Send, until an instant, what waits on the connections of a process that stops."""
    waiting = {channel.fd: channel for channel in channels if channel.waits}
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLOUT)
    while waiting and (left_ns := until_ns - time.monotonic_ns()) > 0:
        for fd, _ in poller.poll(left_ns / 1e6):
            if waiting[fd].flush():
                del waiting[fd]
                poller.unregister(fd)
