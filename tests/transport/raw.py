"""Connections of a test's own making: past the handshake, or as far as a test wants."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from mainspring.transport import addresses
from mainspring.transport.greeting import Greeting
from mainspring.transport.handshake import Connecting, Identity
from tests.patience import PATIENCE_S


def connecting(role: str, name: bytes = b"", trusted: bool = False) -> Connecting:
    """The connector's end of a handshake, by default with a listener that it does not know."""
    return Connecting(Identity(role, name), trusted, None)


def by_tcp(address: str) -> socket.socket:
    """Connect as a process of another user or host does."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def over_tcp_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links reach addresses of hosts by TCP, as from another host, and not by the name of the process."""
    at_once = addresses.connect_at_once
    monkeypatch.setattr(
        addresses, "connect_at_once", lambda to: None if isinstance(to, addresses.Address) else at_once(to)
    )


def admitted(
    address: str, role: str, name: bytes = b"", pump: Callable[[], object] = lambda: None
) -> socket.socket:
    """Connect as a process of the same user; ``pump`` has the listener go on, if nothing else does."""
    sock = addresses.connect_at_once(addresses.parse(address))
    assert sock is not None, f"nobody listens at {address} by name"
    greeting = Greeting(sock, connecting(role, name, trusted=True))
    give_up_s = time.monotonic() + PATIENCE_S
    while not greeting.advance():
        assert time.monotonic() < give_up_s, "the handshake did not end"
        pump()
    sock.settimeout(PATIENCE_S)
    return sock
