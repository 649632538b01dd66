"""The controller's one socket: a ZeroMQ ROUTER that never blocks and never raises because of a peer."""

from __future__ import annotations

import errno
import select
import time
from enum import Enum

import zmq

# Plain integers, and frames one by one instead of pyzmq's multipart helpers, cost a third as much.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)


class Delivery(Enum):
    """What became of a message that was handed to the socket."""

    SENT = "sent"
    GONE = "peer_gone"
    """No peer of that routing id is connected."""
    FULL = "peer_too_slow"
    """As many messages as are allowed wait for that peer already."""


class Router:
    """Bound ROUTER with a precise timed wait."""

    def __init__(self, address: str, backlog_messages: int, message_max_bytes: int, linger_ms: float) -> None:
        """Bind. Raises OSError that names the address if that is not possible."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._linger_ms = round(linger_ms)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.SNDHWM, backlog_messages)
        self._socket.set(zmq.RCVHWM, backlog_messages)
        self._socket.set(zmq.MAXMSGSIZE, message_max_bytes)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        # A peer that reconnects before TCP has noticed the end of its old connection keeps its routing id.
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            number = error.errno if error.errno is not None else errno.EINVAL
            raise OSError(
                number,
                f"the controller can't listen on {address}: {error.strerror}; choose another --address",
            ) from error
        self._descriptor = int(self._socket.get(zmq.FD))
        self._items = [(self._socket, _POLLIN)]
        self._found = False
        """Whether `wait` has seen a message that `receive` has not taken yet."""

    @property
    def address(self) -> str:
        """Where peers connect, the real port included."""
        address = self._socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        return address.decode()

    def receive(self) -> list[bytes] | None:
        """Return the next message's frames, the routing id first; None if none is waiting.

        Asking first costs a third of a failed attempt; after `wait` has found a message it is not needed.
        """
        if self._found:
            self._found = False
        elif not zmq.zmq_poll(self._items, 0):
            return None
        try:
            frames = [self._socket.recv(_NOBLOCK)]
        except zmq.Again:
            return None
        more = True
        while more:
            frame = self._socket.recv(_NOBLOCK, copy=False)
            frames.append(frame.bytes)
            more = frame.more
        return frames

    def send(self, routing_id: bytes, payload: bytes) -> Delivery:
        """Send one message of one frame."""
        try:
            self._socket.send(routing_id, _NOBLOCK_MORE)
            self._socket.send(payload, _NOBLOCK)
        except zmq.Again:
            return Delivery.FULL
        except zmq.ZMQError:
            return Delivery.GONE
        return Delivery.SENT

    def wait(self, until_ns: int) -> bool:
        """Wait for a message, but not beyond an instant of the monotonic clock; say whether there is one.

        ZeroMQ's own poll, the cheapest way to wait, counts whole milliseconds; what is left after them is
        waited for by ``select`` on its descriptor, which counts microseconds but only tells that something
        changed.
        """
        left_ns = until_ns - time.monotonic_ns()
        while not zmq.zmq_poll(self._items, max(0, left_ns // 1_000_000)):
            left_ns = until_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            if left_ns < 1_000_000:
                select.select((self._descriptor,), (), (), left_ns / 1e9)
                left_ns = 0
        self._found = True
        return True

    def close(self) -> None:
        """Close; what is still unsent has ``linger_ms`` to leave."""
        self._context.destroy(linger=self._linger_ms)
