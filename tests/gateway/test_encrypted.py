"""A whole cluster over TLS: controller, worker and gateway, with a relay between them that records it."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring import Client
from mainspring.cli.authority import Authority
from mainspring.controller import running as controller_running
from mainspring.controller.config import ControllerConfig
from mainspring.scheduler.config import SchedulerConfig
from mainspring.transport import addresses
from tests.gateway.fakes import gateway, wait_until
from tests.gateway.test_end_to_end import emulated, workers_ready
from tests.patience import PATIENCE_S

X = np.frombuffer(b"a tensor that is looked for on the way".ljust(64, b"."), np.float32).reshape(4, 4)
WORKER, GATEWAY = "worker-that-is-looked-for", "gateway-that-is-looked-for"
"""Long enough not to be met by chance in what is encrypted."""
WORKER_PROGRAM = """
import sys, threading
from mainspring.transport import addresses
from mainspring.worker.config import WorkerConfig
from mainspring.worker.server import run
addresses._connect_by_name = lambda *_: None
name, controller, keys = sys.argv[1:]
config = WorkerConfig(name=name, controller=controller, engine="emulated", device_kind="emulated", pages=4,
                      data_address="tcp://127.0.0.1:*", keys=keys, io_bytes=1 << 20, realtime=False,
                      spin_us=0)
run(config, threading.Event(), lambda address: print(address, flush=True))
"""


@contextlib.contextmanager
def recorded(port: int) -> Iterator[tuple[str, bytearray]]:
    """Yield an address whose connections are passed on to a port of this host, and what has passed."""
    listening = socket.create_server(("127.0.0.1", 0))
    passed, stop = bytearray(), threading.Event()

    def relay() -> None:
        ends: dict[socket.socket, socket.socket] = {}
        while not stop.is_set():
            for end in select.select([listening, *ends], [], [], 0.05)[0]:
                if end is listening:
                    one, other = listening.accept()[0], socket.create_connection(("127.0.0.1", port))
                    ends |= {one: other, other: one}
                elif end in ends:
                    data = end.recv(1 << 16)
                    passed.extend(data)
                    if data:
                        ends[end].sendall(data)
                    else:
                        for each in (end, ends[end]):
                            del ends[each]
                            each.close()

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", passed
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        listening.close()


@contextlib.contextmanager
def controller(keys: str) -> Iterator[int]:
    stop, ready = threading.Event(), queue.Queue[str]()
    config = ControllerConfig(address="tcp://127.0.0.1:*", keys=keys, drain_timeout_ms=200.0)
    arguments = (config, SchedulerConfig(), [emulated("a")], stop, ready.put)
    thread = threading.Thread(target=controller_running.run, args=arguments, daemon=True)
    thread.start()
    try:
        yield int(ready.get(timeout=PATIENCE_S).rpartition(":")[2])
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@contextlib.contextmanager
def worker(name: str, at: str, keys: str) -> Iterator[int]:
    """Yield the port of a worker's data address."""
    command = [sys.executable, "-c", WORKER_PROGRAM, name, at, keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


def test_requests_are_served_over_tls_and_nothing_of_them_is_seen_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = addresses._connect_by_name
    # Clients still go past ZeroMQ; the processes behave as if each were on a host of its own.
    monkeypatch.setattr(addresses, "_connect_by_name", lambda *given: real(*given) if given[1:] else None)
    authority = Authority.create(tmp_path, "here")
    folders = {
        role: str(authority.issue(role, name, (), 30))
        for role, name in (("controller", "one"), ("worker", WORKER), ("gateway", GATEWAY))
    }
    moved: dict[int, int] = {}
    begin = addresses.begin_to_connect

    def begin_moved(to: addresses.Target) -> socket.socket:
        return begin((to[0], (to[1][0], moved.get(to[1][1], to[1][1]))))

    monkeypatch.setattr(addresses, "begin_to_connect", begin_moved)
    with (
        controller(folders["controller"]) as port,
        recorded(port) as (at, to_controller),
        worker(WORKER, at, folders["worker"]) as data_port,
        recorded(data_port) as (to_data, to_worker),
    ):
        moved[data_port] = int(to_data.rpartition(":")[2])
        with gateway(at, keys=folders["gateway"]) as address, Client(address) as client:
            wait_until(lambda: workers_ready(client, 1, 1), PATIENCE_S)
            result = client.infer("a", {"data": X}, slo_ms=5_000)
        assert result.timing.worker == WORKER
        assert len(to_controller) > 5_000
        assert len(to_worker) > 1_000
        for seen in (b"worker_hello", b"arrival", WORKER.encode(), GATEWAY.encode(), b"looked for"):
            assert seen not in to_controller
            assert seen not in to_worker


def test_a_worker_that_takes_anothers_name_is_refused_by_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_connect_by_name", lambda *_: None)
    authority = Authority.create(tmp_path, "here")
    keys = {role: str(authority.issue(role, f"its-{role}", (), 30)) for role in ("controller", "gateway")}
    own = str(authority.issue("worker", "w0", (), 30))
    with (
        controller(keys["controller"]) as port,
        worker("w1", f"tcp://127.0.0.1:{port}", own),
        worker("w0", f"tcp://127.0.0.1:{port}", own),
        gateway(f"tcp://127.0.0.1:{port}", keys=keys["gateway"]) as address,
        Client(address) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), PATIENCE_S)
        assert [each.worker for each in client.status().workers] == ["w0"]
