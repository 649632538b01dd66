"""The gateway's process: one thread, one poll over all sockets, each served a burst at a time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from time import monotonic_ns

import zmq

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.plane import Plane
from mainspring.gateway.zeromq import ZeroMqFrontEnd

_LONGEST_POLL_NS = 50_000_000
"""How long a stop can go unnoticed."""
_COLLECT_NS = 1_000_000_000
"""Least time between two collections of garbage."""
_SLEPT_NS = 50_000
"""A poll that took this long has slept, and the message that woke it most likely came alone: it is not
followed by an attempt to take another, which costs more than the next poll, which is needed anyway."""


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
        self._poller = zmq.Poller()
        self._plane = Plane(context, config, self._poller)
        self._clients = ZeroMqFrontEnd(context, config, self._plane, self._poller)
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
            linger_ms = round(self._config.goodbye_linger_ms)
            self._plane.close(linger_ms)
            self._clients.socket.close(linger_ms)

    def _round(self) -> None:
        """Do all that is due, wait for the next message or timer, and serve what has come."""
        began_ns = monotonic_ns()
        if began_ns >= self._due_ns:
            self._plane.tick(began_ns)
            self._clients.tick(began_ns)
            self._plane.flush()
        wait_ns = min(self._plane.next_wakeup_ns() - began_ns, _LONGEST_POLL_NS)
        self._due_ns = began_ns + wait_ns
        ready = self._poller.poll(max(0, -(-wait_ns // 1_000_000)))
        ended_ns = monotonic_ns()
        limit = 1 if ended_ns - began_ns > _SLEPT_NS else self._config.burst_messages
        for socket, _ in ready:
            if socket is self._clients.socket:
                self._clients.serve(limit)
            else:
                self._plane.serve(socket, limit)
            self._plane.flush()
        if not ready and ended_ns - self._collected_ns > _COLLECT_NS:
            # Idle: the one time when a pause delays nobody.
            gc.collect()
            self._collected_ns = monotonic_ns()
