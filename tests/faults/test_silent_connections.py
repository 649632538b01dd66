"""More connections that ask for nothing than a process may have descriptors: whoever talks is answered."""

from __future__ import annotations

import http.client
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mainspring.transport import bounds
from tests.patience import PATIENCE_S

DESCRIPTORS = 256
SILENT = 400


@contextmanager
def process(*arguments: str, errors: Path) -> Iterator[None]:
    """Run a verb of the command line that says when it is ready."""
    command = ["prlimit", f"--nofile={DESCRIPTORS}", sys.executable, "-m", "mainspring", *arguments]
    with (
        errors.open("w") as kept,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=kept, text=True) as running,
    ):
        assert running.stdout is not None
        try:
            assert running.stdout.readline().startswith("ready"), errors.read_text()
            yield
        finally:
            running.terminate()
            running.wait(PATIENCE_S)


def free_ports(count: int) -> list[int]:
    """Return ports of this host that nobody listens at."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in taken]


def check(port: int, path: str) -> None:
    """Ask five times, each over a new connection, while hundreds of others say nothing."""
    with ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("GET", path)
            assert connection.getresponse().status == 200
            connection.close()


def test_silent_clients_keep_nobody_from_the_gateway(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    http_port, metrics_port = free_ports(2)
    options = {
        "--address": "tcp://127.0.0.1:*",
        "--controller": "tcp://127.0.0.1:1",
        "--http": f"http://127.0.0.1:{http_port}",
        "--metrics": f"http://127.0.0.1:{metrics_port}",
    }
    with process("gateway", *(word for pair in options.items() for word in pair), errors=errors):
        check(http_port, "/v2/health/live")
        check(metrics_port, "/metrics")
        check(http_port, "/v2/health/live")
    assert "Traceback" not in errors.read_text()


def test_silent_clients_keep_nobody_from_the_console(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    (port,) = free_ports(1)
    addresses = ("--address", f"http://127.0.0.1:{port}", "--controller", "tcp://127.0.0.1:1")
    with process("console", *addresses, errors=errors):
        check(port, "/api/console")
    assert len(errors.read_text().splitlines()) < 10, errors.read_text()


def test_a_shortage_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    shortage = bounds.Shortage("tcp://127.0.0.1:7401")
    error = OSError(24, "Too many open files")
    assert shortage.caused(error)
    assert not shortage.caused(ConnectionAbortedError(103, "gone"))
    for now_ns in range(0, 20_000_000_000, 100_000_000):
        shortage.say(logging.getLogger("test"), error, now_ns)
    assert [each.getMessage() for each in caplog.records] == [
        "tcp://127.0.0.1:7401 can't take another connection: Too many open files"
    ] * 2
