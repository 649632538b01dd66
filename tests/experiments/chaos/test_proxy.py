"""A proxy passes bytes on, stands still, and cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.chaos.proxy import Proxy
from tests.patience import PATIENCE_S


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield the port of a server that says back what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_it_passes_on_stands_still_and_cuts(echo: int) -> None:
    (port,) = free_ports(1)
    proxy = Proxy("127.0.0.1", port, lambda: ("127.0.0.1", echo))
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"one")
            assert client.recv(16) == b"one"
            proxy.stall()
            client.sendall(b"two")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(16)
            client.settimeout(PATIENCE_S)
            proxy.flow()
            assert client.recv(16) == b"two"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(16)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(b"again")
            assert client.recv(16) == b"again"
    finally:
        proxy.close()
