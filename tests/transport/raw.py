"""Connections of a test's own making: past the handshake, or as far as a test wants."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from mainspring.transport.greeting import Greeting, new_nonce
from mainspring.transport.handshake import Connecting, Identity
from tests.patience import PATIENCE_S

SECRET = b"a secret of the run, 32 bytes at least"


def connecting(role: str, name: bytes = b"", secret: bytes | None = SECRET) -> Connecting:
    """The connector's end of a handshake that nobody trusts by its user."""
    return Connecting(Identity(role, name), secret, False, new_nonce(), None)


def by_tcp(address: str) -> socket.socket:
    """Connect as a process of another user or host does."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def admitted(
    address: str, role: str, name: bytes = b"", pump: Callable[[], object] = lambda: None
) -> socket.socket:
    """Connect by TCP and prove to belong; ``pump`` has the listener go on, if nothing else does."""
    sock = by_tcp(address)
    sock.setblocking(False)
    greeting = Greeting(sock, connecting(role, name))
    give_up_s = time.monotonic() + PATIENCE_S
    while not greeting.advance():
        assert time.monotonic() < give_up_s, "the handshake did not end"
        pump()
    sock.settimeout(PATIENCE_S)
    return sock
