"""The console over TLS: its pages, its WebSocket, clients' certificates, and those who speak no TLS."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

import pytest
from websockets.sync.client import connect

from mainspring.cli.authority import Authority
from mainspring.console.config import ConsoleConfig
from mainspring.console.view.view import View
from tests.console.web.served import Console, FedSource
from tests.patience import PATIENCE_S


def trusting(folder: Path, shows: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if shows is not None:
        context.load_cert_chain(shows / "cert.pem", shows / "key.pem")
    return context


def ask(console: Console, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", console.port, timeout=PATIENCE_S, context=context)
    try:
        connection.request("GET", "/api/console")
        return connection.getresponse().status
    finally:
        connection.close()


def test_pages_are_served_over_tls_and_to_nobody_without(tmp_path: Path) -> None:
    folder = Authority.create(tmp_path, "here").issue("operator", "console", ("localhost",), 30)
    config = ConsoleConfig(address="https://127.0.0.1:0", tls=str(folder))
    with Console(config, FedSource(View(), operable=False)) as console:
        assert console.address.startswith("https://127.0.0.1:")
        assert ask(console, trusting(folder)) == 200
        with connect(
            f"wss://localhost:{console.port}/ws",
            sock=socket.create_connection(("127.0.0.1", console.port), PATIENCE_S),
            ssl=trusting(folder),
            proxy=None,
        ) as page:
            assert page.ping().wait(PATIENCE_S)
        with socket.create_connection(("127.0.0.1", console.port)) as sock:
            sock.settimeout(PATIENCE_S)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" not in sock.recv(1_000)
        assert ask(console, trusting(folder)) == 200


def test_browsers_may_have_to_show_a_certificate(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "here")
    folder = authority.issue("operator", "console", ("localhost",), 30)
    config = ConsoleConfig(address="https://127.0.0.1:0", tls=str(folder), client_certificates=True)
    with Console(config, FedSource(View(), operable=False)) as console:
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(console, trusting(folder))
        assert ask(console, trusting(folder, authority.issue("operator", "alice", (), 30))) == 200


def test_an_address_over_tls_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="needs tls"):
        ConsoleConfig(address="https://127.0.0.1:0")
    with pytest.raises(ValueError, match="client_certificates needs an address of https"):
        ConsoleConfig(client_certificates=True)
