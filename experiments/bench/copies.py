"""Counts the copies that the gateway makes of a tensor on its way to a worker and back.

A message goes from a socket through the gateway's own parts to another socket while `tracemalloc` watches: a
copy in Python would be an allocation of the tensor's size. What libzmq and the kernel do is below that: each
message is read from a socket into one buffer and written from it, which no process can avoid. Outputs come
by the project's own connections, whose one buffer is Python's, so one allocation of theirs is no copy.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import zmq

from mainspring.gateway.backlog import Backlog
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.links import WorkerLinks
from mainspring.gateway.multipart import receive, send
from mainspring.messages.codec import encode
from mainspring.messages.peers import Input, Output
from mainspring.transport.blocking import Server
from mainspring.transport.channel import Message
from mainspring.transport.hub import Hub

_Context = zmq.Context[zmq.Socket[bytes]]
_WAIT_MS = 5_000
_ANY = "tcp://127.0.0.1:*"


def count(size: int) -> tuple[int, int]:
    """Return the copies of an input and of an output of ``size`` bytes."""
    context: _Context = zmq.Context()
    hub, worker = Hub(), Server()
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
    source, inlet = context.socket(zmq.DEALER), context.socket(zmq.ROUTER)
    inlet.bind(_ANY)
    source.connect(inlet.getsockopt_string(zmq.LAST_ENDPOINT))
    source.send_multipart([b"announced", bytes(size)], copy=False)
    if not inlet.poll(_WAIT_MS):
        raise RuntimeError("the input did not arrive")
    tracemalloc.start()
    frames = receive(inlet)
    assert frames is not None
    assert links.send("worker", Input(1, 1), frames[2:])
    copies = _allocated(size)
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
    sink, outlet = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    sink.bind(_ANY)
    outlet.connect(sink.getsockopt_string(zmq.LAST_ENDPOINT))
    worker.send([peer, encode(Output(1, 2, 1)), bytes(size)])
    tracemalloc.start()
    parts = Backlog().admit(b"reply", _received(links, hub, worker)[1:], 0)
    assert parts is not None
    send(outlet, *parts)
    copies = _allocated(size) - 1
    if not sink.poll(_WAIT_MS):
        raise RuntimeError("the output was not passed on")
    _check(sink.recv_multipart()[2:], size)
    return copies


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
