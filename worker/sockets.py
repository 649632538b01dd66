"""The worker's two sockets: a DEALER to the controller, and a ROUTER for the gateways' tensors."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Iterator, Sequence

import zmq

from mainspring.worker.backlogs import Backlogs

# Plain integers: combining pyzmq's enumerations costs some microseconds for each message.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)

LINGER_MS = 500
SEND_LIMIT = 10_000
"""Messages that may wait for one peer that reads slowly; beyond, they are dropped and counted."""
GONE = "gateway: gone before its output"
SLOW = "gateway: reads too slowly"


class Sockets:
    """Both sockets, and the poller that waits for them and for the executors' bell."""

    def __init__(
        self,
        name: str,
        controller: str,
        data_address: str,
        *,
        data_host: str,
        max_bytes: int,
        backlog_bytes: int,
        bell: int,
    ) -> None:
        """Raise `OSError` that names the address if one can't be used."""
        self._context = zmq.Context()
        if os.sched_getscheduler(0) == os.SCHED_FIFO:
            # ZeroMQ's own thread must not keep this one, which holds the interpreter's lock, off their core.
            self._context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_FIFO)
            self._context.set(zmq.THREAD_PRIORITY, os.sched_getparam(0).sched_priority - 1)
        self._bell = bell
        self._backlogs = Backlogs(backlog_bytes)
        try:
            self._controller = self._context.socket(zmq.DEALER)
            self._controller.set(zmq.IDENTITY, f"worker:{name}:{secrets.token_hex(4)}".encode())
            # Nothing is queued for a controller that isn't there: it would be of a session that is over.
            self._controller.set(zmq.IMMEDIATE, 1)
            self._controller.set(zmq.RECONNECT_IVL, 50)
            self._controller.set(zmq.RECONNECT_IVL_MAX, 500)
            self._data = self._context.socket(zmq.ROUTER)
            self._data.set(zmq.ROUTER_MANDATORY, 1)
            self._data.set(zmq.MAXMSGSIZE, max_bytes)
            self._breaks = self._data.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            for each in (self._controller, self._data):
                each.set(zmq.LINGER, LINGER_MS)
                each.set(zmq.SNDHWM, SEND_LIMIT)
            _use(self._data.bind, data_address, "data_address")
            _use(self._controller.connect, controller, "controller")
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.data_address = _reachable(self._data.get_string(zmq.LAST_ENDPOINT), data_host)
        self._poller = zmq.Poller()
        for source in (bell, self._controller, self._data):
            self._poller.register(source, zmq.POLLIN)

    def poll(self, timeout_ms: int) -> tuple[bool, bool, bool]:
        """Wait; return whether the bell rang, the controller wrote, a gateway wrote."""
        bell = controller = data = False
        for source, _ in self._poller.poll(timeout_ms):
            if source is self._controller:
                controller = True
            elif source is self._data:
                data = True
            else:
                bell = True
        return bell, controller, data

    def from_controller(self, limit: int) -> Iterator[list[bytes]]:
        """Yield at most ``limit`` messages that are there; `poll` has said that there is one."""
        for count in range(limit):
            if count and not _readable(self._controller):
                return
            yield self._controller.recv_multipart(_NOBLOCK)

    def from_data(self, limit: int) -> Iterator[list[zmq.Frame]]:
        """Yield at most ``limit`` messages that are there: sender, message, tensors; nothing is copied.

        `poll` has said that there is one.
        """
        for count in range(limit):
            if count and not _readable(self._data):
                return
            yield self._data.recv_multipart(_NOBLOCK, copy=False)

    def to_controller(self, data: bytes) -> bool:
        """Send without waiting; return whether it was possible."""
        try:
            self._controller.send(data, _NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def to_gateway(self, receiver: bytes, header: bytes, frames: Sequence[memoryview]) -> str:
        """Send without waiting; return why that was not possible, or "".

        What waits for one gateway is bounded in messages and in bytes. For the frames see
        `zmq.COPY_THRESHOLD`.
        """
        if self._backlogs.full(receiver):
            return SLOW
        try:
            tensors = self._backlogs.add(receiver, frames)
            self._data.send(receiver, _NOBLOCK_MORE)
            self._data.send(header, _NOBLOCK_MORE if tensors else _NOBLOCK)
            for index, tensor in enumerate(tensors, 1):
                more = index < len(tensors)
                self._data.send(tensor, _NOBLOCK_MORE if more else _NOBLOCK, copy=False)
        except zmq.Again:
            return SLOW
        except zmq.ZMQError:
            self._backlogs.forget(receiver)
            return GONE
        return ""

    def broken_gateways(self) -> int:
        """Return how many connections of gateways have ended since the last call, whoever ended them."""
        count = 0
        while _readable(self._breaks):
            self._breaks.recv_multipart(zmq.NOBLOCK)
            count += 1
        return count

    def close(self) -> None:
        """Close both; what was sent still gets `LINGER_MS` to leave."""
        self._controller.close()
        self._data.disable_monitor()
        self._breaks.close(0)
        self._data.close()
        self._context.term()


def _readable(source: zmq.Socket[bytes]) -> bool:
    """Whether a whole message is there; asking costs a fifth of a failed attempt."""
    return bool(int(source.get(_EVENTS)) & _POLLIN)


def _use(action: object, address: str, field: str) -> None:
    assert callable(action)
    try:
        action(address)
    except zmq.ZMQError as error:
        code = error.errno or errno.EINVAL
        what = "is taken by another process" if code == errno.EADDRINUSE else os.strerror(code)
        raise OSError(code, f"{field} {address}: {what}") from error


def _reachable(address: str, host: str) -> str:
    """The address that gateways connect to, for the one that was bound."""
    bound_host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or (not host and bound_host not in ("0.0.0.0", "[::]")):
        return address
    return f"tcp://{host or socket.gethostname()}:{port}"
