"""The floor of the path: six bare hops between four processes over ZeroMQ, nothing decided, nothing run.

The hops are those of a request: client, gateway, controller, gateway, worker, gateway, client. The input
goes from client to gateway and on to the worker, as it does in Mainspring; the controller sees none of it.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import zmq

from mainspring.launch.addresses import free_ports

SMALL = b"x" * 80
"""About as long as the messages that announce a tensor."""
_POLL_MS = 200


def _hop(socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
    socket.send_multipart(frames, copy=False)


def _gateway(clients: str, controller: str, worker: str, stop: Event) -> None:
    context = zmq.Context()
    front = context.socket(zmq.ROUTER)
    front.bind(clients)
    control, data = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    control.connect(controller)
    data.connect(worker)
    poller = zmq.Poller()
    for socket in (front, control, data):
        poller.register(socket, zmq.POLLIN)
    held: deque[list[zmq.Frame]] = deque()
    peer = b""
    while not stop.is_set():
        for socket, _ in poller.poll(_POLL_MS):
            frames = socket.recv_multipart(copy=False)
            if socket is front:
                peer = frames[0].bytes
                held.append(frames[1:])
                control.send(SMALL)
            elif socket is control:
                _hop(data, held.popleft())
            else:
                front.send_multipart([peer, *frames], copy=False)
    context.destroy(0)


def _echo(address: str, answer_bytes: int, stop: Event) -> None:
    """The controller's and the worker's part: answer whatever comes."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    answer = [SMALL] if not answer_bytes else [SMALL, bytes(answer_bytes)]
    while not stop.is_set():
        if socket.poll(_POLL_MS):
            frames = socket.recv_multipart(copy=False)
            socket.send_multipart([frames[0], *answer], copy=False)
    context.destroy(0)


class Relay:
    """The client's end of a running relay."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

    def round_trip(self, tensor: bytes) -> None:
        """Send a request of one tensor through the six hops and wait for its answer."""
        self.send(tensor)
        self.receive()

    def send(self, tensor: bytes) -> None:
        """Send a request of one tensor."""
        self._socket.send_multipart([SMALL, tensor], copy=False)

    def receive(self) -> None:
        """Wait for the next answer."""
        self._socket.recv_multipart(copy=False)

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(0)


@contextmanager
def running(folder: Path | None, output_bytes: int) -> Iterator[Relay]:
    """Run the three other processes while the block runs.

    Over Unix sockets in ``folder``, or over TCP of 127.0.0.1 if that is None.
    """
    names = ("clients", "controller", "worker")
    if folder is None:
        clients, controller, worker = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    else:
        clients, controller, worker = (f"ipc://{folder / name}" for name in names)
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    children = [
        spawn.Process(target=_gateway, args=(clients, controller, worker, stop), daemon=True),
        spawn.Process(target=_echo, args=(controller, 0, stop), daemon=True),
        spawn.Process(target=_echo, args=(worker, output_bytes, stop), daemon=True),
    ]
    for child in children:
        child.start()
    relay = Relay(clients)
    try:
        yield relay
    finally:
        stop.set()
        relay.close()
        for child in children:
            child.join()
