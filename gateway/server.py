"""The gateway's process: one thread, one wait for all sockets, each served a burst at a time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from time import monotonic_ns

import zmq

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.plane import Plane
from mainspring.gateway.zeromq import ZeroMqFrontEnd
from mainspring.transport.hub import Hub

_LONGEST_POLL_NS = 50_000_000
"""How long a stop can go unnoticed."""
_COLLECT_NS = 1_000_000_000
"""Least time between two collections of garbage."""
_SLEPT_NS = 50_000
"""A wait that took this long has slept, and the client's message that ended it most likely came alone: no
attempt to take another follows, which costs more than to ask whether there is one."""


def run(config: GatewayConfig, stop: threading.Event, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until ``stop`` is set, then let what is in flight end, and return.

    ``on_ready`` is called with the address once clients can connect. Raises OSError if the address can't
    be had.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.setsockopt(zmq.MAX_SOCKETS, 8_192)
    try:
        _Server(context, config).serve(stop, on_ready)
    finally:
        context.destroy(linger=round(config.goodbye_linger_ms))


class _Server:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: GatewayConfig) -> None:
        self._config = config
        self._hub = Hub()
        try:
            self._plane = Plane(self._hub, config)
            self._clients = ZeroMqFrontEnd(context, config, self._plane, self._hub)
        except BaseException:
            self._hub.close()
            raise
        self._collected_ns = 0
        self._due_ns = 0

    def serve(self, stop: threading.Event, on_ready: Callable[[str], None] | None) -> None:
        if on_ready is not None:
            on_ready(self._clients.address)
        collecting = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while not stop.is_set():
                self._round()
            self._plane.core.shut_down()
            give_up_ns = monotonic_ns() + milliseconds(self._config.drain_timeout_ms)
            while self._plane.core.in_flight and monotonic_ns() < give_up_ns:
                self._round()
            self._plane.core.abandon()
            self._plane.flush()
        finally:
            gc.unfreeze()
            if collecting:
                gc.enable()
            self._plane.goodbye()
            self._hub.close(milliseconds(self._config.goodbye_linger_ms))
            self._clients.socket.close(round(self._config.goodbye_linger_ms))

    def _round(self) -> None:
        """Do all that is due, wait for the next message or timer, and serve what has come."""
        began_ns = monotonic_ns()
        if began_ns >= self._due_ns:
            self._plane.tick(began_ns)
            self._clients.tick(began_ns)
            self._plane.flush()
        wait_ns = min(self._plane.next_wakeup_ns() - began_ns, _LONGEST_POLL_NS)
        self._due_ns = began_ns + wait_ns
        waits = self._clients.readable()
        ready = self._hub.wait(0 if waits else max(0, wait_ns))
        ended_ns = monotonic_ns()
        slept = ended_ns - began_ns > _SLEPT_NS
        for port in ready:
            if port is not self._clients:
                self._plane.serve(port, self._config.burst_messages)
                self._plane.flush()
        if waits or self._clients in ready:
            self._clients.serve(1 if slept else self._config.burst_messages)
            self._plane.flush()
        if not ready and ended_ns - self._collected_ns > _COLLECT_NS:
            # Idle: the one time when a pause delays nobody.
            gc.collect()
            self._collected_ns = monotonic_ns()
