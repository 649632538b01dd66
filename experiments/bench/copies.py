"""Counts the copies that the gateway makes of a tensor on its way to a worker and back.

A message goes from a socket through the gateway's own parts to another socket while `tracemalloc` watches: a
copy in Python would be an allocation of the tensor's size. What libzmq and the kernel do is below that: each
message is read from a socket into one buffer and written from it, which no process can avoid over TCP.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import zmq

from mainspring.gateway.backlog import Backlog
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.links import WorkerLinks
from mainspring.gateway.multipart import receive, send
from mainspring.messages.peers import Input

_Context = zmq.Context[zmq.Socket[bytes]]
_WAIT_MS = 5_000


def count(size: int) -> tuple[int, int]:
    """Return the copies of an input and of an output of ``size`` bytes."""
    return _pass_on(size, _to_worker), _pass_on(size, _to_client)


def _pass_on(size: int, send: Callable[[_Context, str, list[zmq.Frame]], object]) -> int:
    """Pass one message on; return the allocations of the tensor's size."""
    context: _Context = zmq.Context()
    try:
        source, inlet, sink = (context.socket(kind) for kind in (zmq.DEALER, zmq.ROUTER, zmq.ROUTER))
        port = inlet.bind_to_random_port("tcp://127.0.0.1")
        source.connect(f"tcp://127.0.0.1:{port}")
        address = f"tcp://127.0.0.1:{sink.bind_to_random_port('tcp://127.0.0.1')}"
        source.send_multipart([b"announced", bytes(size)], copy=False)
        if not inlet.poll(_WAIT_MS):
            raise RuntimeError("the message did not arrive")
        tracemalloc.start()
        frames = receive(inlet)
        assert frames is not None
        keep = send(context, address, frames[2:])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if not sink.poll(_WAIT_MS) or sum(map(len, sink.recv_multipart()[1:])) < size:
            raise RuntimeError("the message was not passed on whole")
        del keep
        return peak // size
    finally:
        tracemalloc.stop()
        context.destroy(linger=0)


def _to_worker(context: _Context, address: str, frames: list[zmq.Frame]) -> object:
    """Send as the gateway does to a worker."""
    links = WorkerLinks(context, GatewayConfig(), zmq.Poller())
    links.connect("worker", address)
    assert links.send("worker", Input(1, 1), frames)
    return links


def _to_client(context: _Context, address: str, frames: list[zmq.Frame]) -> object:
    """Send as the gateway does to a client, with its account of what waits unread."""
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    parts = Backlog().admit(b"reply", frames, 0)
    assert parts is not None
    send(socket, *parts)
    return socket
