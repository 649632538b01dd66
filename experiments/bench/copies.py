"""Counts the copies that the gateway makes of a tensor on its way to a worker and back.

A message goes from a socket through the gateway's own parts to another socket while `tracemalloc` watches: a
copy in Python would be an allocation of the tensor's size. Each tensor is read from a socket into memory of
its own, which no process can avoid, so one allocation is not a copy. What the kernel does is below that.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import zmq

# It is imported by the first message that is sent uncopied, and what that allocates would count as copies.
import zmq.utils.garbage

from mainspring.experiments.blocking import Server
from mainspring.gateway.bounds import Budget
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.peer_connections import WorkerLinks
from mainspring.gateway.uploads import Upload
from mainspring.gateway.zmtp.limits import Limits
from mainspring.gateway.zmtp.listener import ZmtpListener
from mainspring.gateway.zmtp.receiver import Message as ClientMessage
from mainspring.messages.codec import encode
from mainspring.messages.peers import Input, Output
from mainspring.transport.channel import Message
from mainspring.transport.hub import Hub

_Context = zmq.Context[zmq.Socket[bytes]]
_WAIT_MS = 5_000
_ANY = "tcp://127.0.0.1:*"


def count(size: int) -> tuple[int, int]:
    """Return the copies of an input and of an output of ``size`` bytes."""
    context: _Context = zmq.Context()
    hub, worker = Hub(), Server(role="worker", name=b"worker")
    try:
        links = WorkerLinks(hub, GatewayConfig(), lambda _: None)
        links.connect("worker", worker.address)
        copies = _of_input(context, links, hub, worker, size)
        return copies, _of_output(context, links, hub, worker, size)
    finally:
        tracemalloc.stop()
        worker.close()
        hub.close()
        context.destroy(linger=0)


def _of_input(context: _Context, links: WorkerLinks, hub: Hub, worker: Server, size: int) -> int:
    """Pass an input on from a client to a worker; return the allocations of its size."""
    clients = _Clients(hub)
    source = context.socket(zmq.DEALER)
    source.connect(clients.address)
    sent = bytes(size)
    tracemalloc.start()
    source.send_multipart([b"announced", sent], copy=False)
    _, frames = clients.receive()
    assert links.send("worker", Input(1, 1), frames[1:])
    copies = _allocated(size) - 1
    until_s = time.monotonic() + _WAIT_MS / 1e3
    while not worker.poll():
        hub.wait(0)
        if time.monotonic() > until_s:
            raise RuntimeError("the input was not passed on")
    _check(worker.receive()[2:], size)
    return copies


def _of_output(context: _Context, links: WorkerLinks, hub: Hub, worker: Server, size: int) -> int:
    """Pass an output on from a worker to a client; return the allocations of its size beyond the first."""
    assert links.send("worker", Input(1, 2, withdrawn=True), ())
    peer = worker.receive(_WAIT_MS)[0]
    clients = _Clients(hub)
    sink = context.socket(zmq.DEALER)
    sink.connect(clients.address)
    sink.send(b"hello")
    name, _ = clients.receive()
    worker.send([peer, encode(Output(1, 2, 1)), bytes(size)])
    tracemalloc.start()
    clients.listener.send(name, (b"reply", *_received(links, hub, worker)[1:]))
    copies = _allocated(size) - 1
    until_s = time.monotonic() + _WAIT_MS / 1e3
    while not sink.poll(1):
        hub.wait(0)
        if time.monotonic() > until_s:
            raise RuntimeError("the output was not passed on")
    _check(sink.recv_multipart()[1:], size)
    return copies


class _Clients:
    """The gateway's listener without the gateway: all clients are known, large frames don't wait."""

    def __init__(self, hub: Hub) -> None:
        config = GatewayConfig()
        ever_ns = 1 << 60
        limits = Limits(config.max_message_bytes, ever_ns, ever_ns, ever_ns, ever_ns, 1 << 30, 1_000)
        self.listener = ZmtpListener(
            hub, _ANY, limits, self, uploads=self, most=9, budget=Budget(1 << 30), backlog_bytes=1 << 30
        )
        self.address = self.listener.address
        self._hub = hub
        self._received: list[tuple[bytes, ClientMessage]] = []

    def receive(self) -> tuple[bytes, list[Any]]:
        """Return who sent the next message, and its parts."""
        until_s = time.monotonic() + _WAIT_MS / 1e3
        while not self._received:
            self._hub.wait(0)
            for name in list(self.listener.names):
                self.listener.welcome(name, True)
            if (received := self.listener.receive()) is not None:
                self._received.append(received)
            if time.monotonic() > until_s:
                raise RuntimeError("the message did not arrive")
        name, message = self._received.pop()
        return name, message.parts

    def wait(self, upload: Upload) -> None:
        upload.read_slice()

    def large_message(self, name: bytes, message: ClientMessage) -> None:
        self._received.append((name, message))

    def gone(self, name: bytes) -> None:
        raise RuntimeError(f"the connection {name!r} broke")

    def violated(self, why: str) -> Sequence[bytes]:
        raise RuntimeError(why)

    def busy(self, name: bytes) -> bool:
        return bool(name)


def _received(links: WorkerLinks, hub: Hub, worker: Server) -> Message:
    link = links.link_of("worker")
    assert link is not None
    until_s = time.monotonic() + _WAIT_MS / 1e3
    while (message := link.receive()) is None:
        worker.poll()
        hub.wait(0)
        if time.monotonic() > until_s:
            raise RuntimeError("the output did not arrive")
    return message


def _allocated(size: int) -> int:
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak // size


def _check(tensors: Sequence[Any], size: int) -> None:
    if sum(map(len, tensors)) != size:
        raise RuntimeError("the tensor was not passed on whole")
