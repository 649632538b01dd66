"""The floor of the path: six bare hops between four processes, nothing decided, nothing run.

The hops are those of a request: client, gateway, controller, gateway, worker, gateway, client. The input
goes from client to gateway and on to the worker, as it does in Mainspring; the controller sees none of it.
They go over ZeroMQ and loopback TCP, or, "framed", over the connections that Mainspring's processes have.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Protocol

import zmq

from mainspring.cli.launcher.addresses import free_ports
from mainspring.transport.channel import Message
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.blocking import LIMITS, Client, Server

SMALL = b"x" * 80
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
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    answer = [SMALL] if not answer_bytes else [SMALL, bytes(answer_bytes)]
    while not stop.is_set():
        if socket.poll(_POLL_MS):
            frames = socket.recv_multipart(copy=False)
            socket.send_multipart([frames[0], *answer], copy=False)
    context.destroy(0)


def _framed_gateway(clients: str, controller: str, worker: str, stop: Event) -> None:
    hub = Hub()
    front = Listener(hub, clients, LIMITS)
    control, data = (Link(hub, address, LIMITS, keeps=True) for address in (controller, worker))
    held: deque[Message] = deque()
    peer = b""
    while not stop.is_set():
        for port in hub.wait(_POLL_MS * 1_000_000):
            if port is front and (received := front.receive()) is not None:
                peer = received[0]
                held.append(received[1])
                control.send([SMALL])
            elif port is control and control.receive() is not None:
                data.send(held.popleft())
            elif port is data and (answer := data.receive()) is not None:
                front.send(peer, answer)
    hub.close()


def _framed_echo(address: str, answer_bytes: int, stop: Event) -> None:
    server = Server(address)
    answer = [SMALL] if not answer_bytes else [SMALL, bytes(answer_bytes)]
    while not stop.is_set():
        if server.poll(_POLL_MS):
            server.send([server.receive()[0], *answer])
    server.close()


class Relay(Protocol):
    """The client's end of a running relay."""

    def send(self, tensor: bytes) -> None:
        """Send a request of one tensor."""

    def receive(self) -> None:
        """Wait for the next answer."""

    def close(self) -> None:
        """Close the connection."""


class FramedRelay:
    """The client's end of a relay over the project's own connections."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)

    def send(self, tensor: bytes) -> None:
        """Send a request of one tensor."""
        self._client.send([SMALL, tensor])
        self._client.flush()

    def receive(self) -> None:
        """Wait for the next answer."""
        self._client.receive()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class ZeroMqRelay:
    """The client's end of a relay over ZeroMQ."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

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
def running(output_bytes: int, framed: bool = False) -> Iterator[Relay]:
    """Run the three other processes while the block runs: over ZeroMQ's TCP, or the project's connections."""
    clients, controller, worker = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    gateway, echo = (_framed_gateway, _framed_echo) if framed else (_gateway, _echo)
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    children = [
        spawn.Process(target=gateway, args=(clients, controller, worker, stop), daemon=True),
        spawn.Process(target=echo, args=(controller, 0, stop), daemon=True),
        spawn.Process(target=echo, args=(worker, output_bytes, stop), daemon=True),
    ]
    for child in children:
        child.start()
    relay: Relay = FramedRelay(clients) if framed else ZeroMqRelay(clients)
    try:
        yield relay
    finally:
        stop.set()
        relay.close()
        for child in children:
            child.join()
