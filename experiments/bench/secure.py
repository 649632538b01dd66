"""What TLS between processes costs: the serving path and large tensors over TCP, in clear and encrypted.

Two clusters of emulated devices take turns, one with keys. Their processes are on one host, where they would
meet by name and say nothing over TCP; so the names are taken before they start, and they speak as they do
between hosts. Then two processes send each other large messages over connections of `transport`, and beside
these over a bare socket and a bare `ssl.SSLSocket`: what the processor and Python's TLS can do at all.
``python -m mainspring.experiments.bench.secure``, which ``make bench-secure`` runs.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mainspring.cli.authority import Authority
from mainspring.cli.launcher.addresses import free_ports
from mainspring.client.client import Client
from mainspring.experiments.bench.around import EXECUTE_MS, OUTPUT_KB, WARM_UP, ConnectionCaller
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.serving import cluster_of, write_profile
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener

BLOCK = 20
"""Requests of one kind before the next has its turn."""
PATH_TARGET_MS = 0.2
BULK_TARGET = 0.5
INPUT_KB = 4.0
LARGE_BYTES = 602_112
WINDOW = 8
"""Large messages that are on their way at one time."""
LIMITS = Limits(64 << 20, 256 << 20, 10_000)
HOST = "127.0.0.1"
SECRET = bytes(32)
"""Of the connections in clear, which would not be let in without one."""


@contextmanager
def unnamed(count: int) -> Iterator[list[int]]:
    """Yield free ports at which no process of this host can be met by name."""
    ports = free_ports(count)
    with ExitStack() as stack:
        for port in ports:
            name = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            name.bind(f"\0mainspring/{HOST}/{port}".encode())
        yield ports


def keys_for(folder: Path) -> Path:
    """Make keys for all that runs here; return their folder."""
    authority = Authority.create(folder, "bench")
    for role, name in (("controller", "controller"), ("gateway", "gateway"), ("worker", "worker-0")):
        authority.issue(role, name, ("localhost",), 30)
    authority.issue("tool", "*", ("localhost",), 30)
    return folder


def measure_path(requests: int, folder: Path, keys: Path) -> dict[str, list[float]]:
    """Return by kind what the path added to EXEC, in ms."""
    found: dict[str, list[float]] = {"clear": [], "tls": []}
    with ExitStack() as stack:
        callers = {}
        for kind in found:
            controller, data = stack.enter_context(unnamed(2))
            run_dir = folder / kind
            run_dir.mkdir()
            profile = write_profile(
                run_dir / "profiles.csv", input_kb=INPUT_KB, output_kb=OUTPUT_KB, execute_ms=EXECUTE_MS
            )
            tables: dict[str, dict[str, Any]] = {
                "controller": {"address": f"tcp://{HOST}:{controller}"},
                "worker": {"data_address": f"tcp://{HOST}:{data}"},
                "cluster": {"keys": str(keys)} if kind == "tls" else {},
            }
            cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
            client = stack.enter_context(Client(cluster.address))
            tensor = np.zeros((1, *client.models()[0].inputs[0].shape), np.float32)
            callers[kind] = ConnectionCaller(cluster.address, tensor, local=True)
            stack.callback(callers[kind].close)
        for caller in callers.values():
            for _ in range(WARM_UP):
                caller.request()
        while len(found["tls"]) < requests:
            for kind, caller in callers.items():
                for _ in range(BLOCK):
                    sent_ns = time.monotonic_ns()
                    timing = caller.request().timing
                    found[kind].append((time.monotonic_ns() - sent_ns - timing.execute_ns) / 1e6)
    return found


# --- large messages ---


def framed(messages: int, keys: Path | None) -> tuple[float, float]:
    """Return seconds, and this process's processor time, that large messages take to be sent and read."""
    with unnamed(1) as (port,):
        reader = multiprocessing.Process(target=_read_framed, args=(port, messages, keys))
        reader.start()
        hub = Hub()
        shows = Pass(secret=SECRET, keys=None if keys is None else Keys(str(keys)))
        link = Link(hub, f"tcp://{HOST}:{port}", LIMITS, shows=shows)
        data = np.random.default_rng(0).bytes(LARGE_BYTES)
        while not link.connected:
            hub.wait(10_000_000)
        began, cpu_began = time.perf_counter(), time.process_time()
        sent = read = 0
        while read < messages:
            while sent < min(messages, read + WINDOW):
                link.send([b"m", data])
                sent += 1
            hub.wait(1_000_000_000)
            while link.receive() is not None:
                read += 1
        took = time.perf_counter() - began, time.process_time() - cpu_began
        hub.close()
        reader.join()
        return took


def _read_framed(port: int, messages: int, keys: Path | None) -> None:
    hub = Hub()
    shows = Pass(secret=SECRET, keys=None if keys is None else Keys(str(keys)))
    listener = Listener(hub, f"tcp://{HOST}:{port}", LIMITS, shows)
    for _ in range(messages):
        while (received := listener.receive()) is None:
            hub.wait(1_000_000_000)
        listener.send(received[0], [b"read"])
    hub.close(1_000_000_000)


def bare(messages: int, keys: Path | None) -> tuple[float, float]:
    """Return the same of a bare socket, with ``keys`` of one over TLS."""
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        reader = multiprocessing.Process(target=_read_bare, args=(port, messages, keys))
        reader.start()
        sock: Any = listening.accept()[0]
        if keys is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / "cert.pem", keys / "key.pem")
            sock = context.wrap_socket(sock, server_side=True)
        with sock:
            data = np.random.default_rng(0).bytes(LARGE_BYTES)
            began, cpu_began = time.perf_counter(), time.process_time()
            for _ in range(messages):
                sock.sendall(data)
            assert sock.recv(1) == b"r"
            took = time.perf_counter() - began, time.process_time() - cpu_began
        reader.join()
        return took


def _read_bare(port: int, messages: int, keys: Path | None) -> None:
    sock: Any = socket.create_connection((HOST, port))
    if keys is not None:
        context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
        sock = context.wrap_socket(sock, server_hostname="localhost")
    memory = memoryview(bytearray(LARGE_BYTES))
    with sock:
        left = messages * LARGE_BYTES
        while left:
            left -= sock.recv_into(memory[: min(left, LARGE_BYTES)])
        sock.sendall(b"r")


def rates(
    rounds: int, messages: int, keys: Path, ways: dict[str, Callable[..., tuple[float, float]]]
) -> dict[str, float]:
    """Return the median of each way's rates in GB/s, in turns; a way over TLS ends in ``tls``."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            for kind, folder in (("clear", None), ("tls", keys)):
                seconds, _ = way(messages, folder)
                found.setdefault(f"{name} {kind}", []).append(messages * LARGE_BYTES / seconds / 1e9)
    return {name: statistics.median(values) for name, values in found.items()}


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each kind.")] = 400,
    messages: Annotated[int, typer.Option(min=1, help="Large messages of each round.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of large messages.")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what TLS adds to a small request, and what it leaves of the rate of large messages."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        keys = keys_for(Path(folder, "keys"))
        path = measure_path(requests, Path(folder), keys)
        bulk = rates(rounds, messages, keys / "tool", {"framed": framed, "bare": bare})
    clear, tls = (float(np.median(path[kind])) for kind in ("clear", "tls"))
    figures = [
        Figure(f"{INPUT_KB:.0f} KB: path over TCP in clear, median", clear, "ms"),
        Figure(f"{INPUT_KB:.0f} KB: path over TLS, median", tls, "ms"),
        Figure(f"{INPUT_KB:.0f} KB: what TLS adds, medians", tls - clear, "ms", PATH_TARGET_MS),
        *(Figure(f"602 KB: {name}", value, "GB/s") for name, value in bulk.items()),
        Figure(
            "602 KB: TLS / clear, connections of ours",
            bulk["framed tls"] / bulk["framed clear"],
            "x",
            BULK_TARGET,
            at_least=True,
            note="sent by one process and read by another",
        ),
        Figure("602 KB: TLS / clear, bare", bulk["bare tls"] / bulk["bare clear"], "x", note="ssl.SSLSocket"),
        Figure("602 KB: ours / bare, over TLS", bulk["framed tls"] / bulk["bare tls"], "x"),
    ]
    publish("secure", "What TLS between processes costs", figures, output)


if __name__ == "__main__":
    typer.run(main)
