"""Cost of TLS between processes: the serving path and large tensors over TCP, in clear and encrypted.

Two clusters of emulated devices take turns, one with keys. Their processes are on one host, where they would
meet by name and say nothing over TCP; so the names are taken before they start, and they speak as they do
between hosts. Then one process sends another large messages (`secure_bulk`) over connections of `transport`,
and beside these over a bare socket and by bare programs of Python's TLS: what the processor can do at all.
``python -m mainspring.experiments.bench.secure``, which ``make bench-secure`` runs.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from mainspring.cli.authority import Authority
from mainspring.cli.launcher.addresses import free_ports
from mainspring.client.client import Client
from mainspring.experiments.bench.around import EXECUTE_MS, OUTPUT_KB, WARM_UP, ConnectionCaller
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of_all
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.emulated_cluster import cluster_of, write_profile

LARGE_BYTES = 602_112
WINDOW = 8
"""Large messages that are on their way at one time."""
LIMITS = Limits(64 << 20, 256 << 20, 10_000)
HOST = "127.0.0.1"
BLOCK_BYTES = 1 << 18
FORK = multiprocessing.get_context("fork")


class Took(NamedTuple):
    """Time that large messages took."""

    seconds: float
    cpu_s: float
    """Processor time of the end that needed more of it."""


class Rates(NamedTuple):
    """Throughput in GB/s."""

    wall: float
    cpu: float


@contextmanager
def ports_for(keys: Path | None, count: int) -> Iterator[list[int]]:
    """Yield free ports: with keys, at which no process of this host can be met by name, so that TCP is used.

    Without keys processes prove themselves by that name alone.
    """
    ports = free_ports(count)
    with ExitStack() as stack:
        for port in ports if keys is not None else ():
            name = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            name.bind(f"\0mainspring/{HOST}/{port}".encode())
        yield ports


@contextmanager
def beside(read: Callable[..., float], *arguments: Any) -> Iterator[Connection]:
    """Run what reads in another process; yield where its processor time comes from."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=lambda: theirs.send(read(*arguments)))
    process.start()
    yield ours
    process.join()


def framed(messages: int, keys: Path | None) -> Took:
    """Send and read over connections of `transport`: with ``keys`` over TCP, without them by name."""
    with ports_for(keys, 1) as (port,), beside(_read_framed, port, messages, keys) as reader:
        hub = Hub()
        link = Link(hub, f"tcp://{HOST}:{port}", LIMITS, shows=_shown(keys))
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
        took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        hub.close()
        return Took(took, max(cpu_s, reader.recv()))


def _read_framed(port: int, messages: int, keys: Path | None) -> float:
    hub = Hub()
    listener = Listener(hub, f"tcp://{HOST}:{port}", LIMITS, _shown(keys))
    cpu_began = 0.0
    for _ in range(messages):
        while (received := listener.receive()) is None:
            hub.wait(1_000_000_000)
        cpu_began = cpu_began or time.process_time()
        listener.send(received[0], [b"read"])
    took = time.process_time() - cpu_began
    hub.close(1_000_000_000)
    return took


def _shown(keys: Path | None) -> Pass:
    return Pass(keys=None if keys is None else Keys(str(keys)))


class Blocks:
    """A socket that blocks, over TLS in memory: a bare program that does what `transport.secure` does."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        """Take a connected socket, and do the handshake."""
        self._socket = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._memory = memoryview(bytearray(BLOCK_BYTES))
        name = None if server else "localhost"
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._socket.sendall(self._out.read())
                self._fetch()
        self._socket.sendall(self._out.read())

    def __enter__(self) -> Blocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        for begin in range(0, len(data), BLOCK_BYTES):
            block = memoryview(data)[begin : begin + BLOCK_BYTES]
            while block:
                block = block[self._tls.write(block) :]
            self._socket.sendall(self._out.read())

    def recv_into(self, into: memoryview) -> int:
        """Wait for something, and return how much came."""
        while True:
            try:
                return int(self._tls.read(into.nbytes, into))
            except ssl.SSLWantReadError:
                self._fetch()

    def _fetch(self) -> None:
        count = self._socket.recv_into(self._memory)
        self._in.write(self._memory[:count])


def _by_socket(sock: socket.socket, context: ssl.SSLContext, server: bool) -> ssl.SSLSocket:
    return context.wrap_socket(sock, server_side=server, server_hostname=None if server else "localhost")


def bare(messages: int, keys: Path | None, over: Callable[..., Any] = _by_socket) -> Took:
    """Send and read over a bare socket, with ``keys`` over TLS as ``over`` speaks it."""
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        with beside(_read_bare, port, messages, keys, over) as reader:
            sock: Any = listening.accept()[0]
            if keys is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(keys / "cert.pem", keys / "key.pem")
                sock = over(sock, context, True)
            with sock:
                data = np.random.default_rng(0).bytes(LARGE_BYTES)
                began, cpu_began = time.perf_counter(), time.process_time()
                for _ in range(messages):
                    sock.sendall(data)
                assert sock.recv_into(memoryview(bytearray(1))) == 1
                took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            return Took(took, max(cpu_s, reader.recv()))


def _read_bare(port: int, messages: int, keys: Path | None, over: Callable[..., Any]) -> float:
    sock: Any = socket.create_connection((HOST, port))
    if keys is not None:
        sock = over(sock, ssl.create_default_context(cafile=str(keys / "ca.pem")), False)
    memory = memoryview(bytearray(LARGE_BYTES))
    with sock:
        cpu_began, left = time.process_time(), messages * LARGE_BYTES
        while left:
            left -= sock.recv_into(memory[: min(left, LARGE_BYTES)])
        took = time.process_time() - cpu_began
        sock.sendall(b"r")
    return took


WAYS: dict[str, tuple[Callable[..., Took], tuple[str, ...]]] = {
    "ours": (framed, ("clear", "tls")),
    "bare socket": (bare, ("clear", "tls")),
    "bare, TLS in memory": (partial(bare, over=Blocks), ("tls",)),
}
"""Each with the kinds in which it is measured."""


def rates(rounds: int, messages: int, keys: Path) -> dict[tuple[str, str], Rates]:
    """Return the rates of each way and kind; ``keys`` is a folder of a process's keys."""
    found: dict[tuple[str, str], list[Took]] = {}
    for _ in range(rounds):
        for name, (way, kinds) in WAYS.items():
            for kind in kinds:
                took = way(messages, keys if kind == "tls" else None)
                found.setdefault((name, kind), []).append(took)
    whole_gb = messages * LARGE_BYTES / 1e9
    return {
        which: Rates(
            whole_gb / float(np.percentile([each.seconds for each in all_of], 25)),
            whole_gb / float(np.median([each.cpu_s for each in all_of])),
        )
        for which, all_of in found.items()
    }


BLOCK = 20
"""Requests of one kind before the next has its turn."""
PATH_TARGET_MS = 0.2
BULK_TARGET = 0.5
INPUT_KB = 4.0
PROCESSES = (("controller", "controller"), ("gateway", "gateway"), ("worker", "worker-0"))


def keys_for(folder: Path) -> Path:
    """Make keys for all that runs here; return their folder."""
    authority = Authority.create(folder, "bench")
    for role, name in (*PROCESSES, ("provider", "launcher"), ("tool", "*")):
        authority.issue(role, name, ("localhost",), 30)
    return folder


class Kind:
    """One of the two clusters, and what its path took."""

    def __init__(self, stack: ExitStack, run_dir: Path, keys: Path | None) -> None:
        """Start it, with or without keys; ``stack`` ends it."""
        controller, data = stack.enter_context(ports_for(keys, 2))
        run_dir.mkdir()
        profile = write_profile(
            run_dir / "profiles.csv", input_kb=INPUT_KB, output_kb=OUTPUT_KB, execute_ms=EXECUTE_MS
        )
        tables: dict[str, dict[str, Any]] = {
            "controller": {"address": f"tcp://{HOST}:{controller}"},
            "worker": {"data_address": f"tcp://{HOST}:{data}"},
            "cluster": {} if keys is None else {"keys": str(keys)},
        }
        cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
        client = stack.enter_context(Client(cluster.address))
        tensor = np.zeros((1, *client.models()[0].inputs[0].shape), np.float32)
        self._caller = ConnectionCaller(cluster.address, tensor, local=True)
        stack.callback(self._caller.close)
        self._supervisor = cluster.supervisor
        self.around_ms: list[float] = []
        self.cpu_us: list[float] = []
        """Processor time of all processes, for each request of a block."""
        for _ in range(WARM_UP):
            self._caller.request()

    def block(self) -> None:
        """Send a block of requests, one after the other."""
        before_ns = self._cpu_ns()
        for _ in range(BLOCK):
            sent_ns = time.monotonic_ns()
            timing = self._caller.request().timing
            self.around_ms.append((time.monotonic_ns() - sent_ns - timing.execute_ns) / 1e6)
        self.cpu_us.append((self._cpu_ns() - before_ns) / BLOCK / 1e3)

    def _cpu_ns(self) -> int:
        names = [name for _, name in PROCESSES]
        return sum(usage.cpu_ns for usage in usage_of_all(self._supervisor, names).values())


def measure_path(requests: int, folder: Path, keys: Path) -> tuple[Kind, Kind]:
    """Return what the path takes in clear and over TLS."""
    with ExitStack() as stack:
        clear, tls = Kind(stack, folder / "clear", None), Kind(stack, folder / "tls", keys)
        while len(tls.around_ms) < requests:
            clear.block()
            tls.block()
    return clear, tls


def path_figures(clear: Kind, tls: Kind) -> list[Figure]:
    """Return what the path takes, and what TLS adds to it."""
    added_ms, added_us = (
        float(np.median(getattr(tls, what)) - np.median(getattr(clear, what)))
        for what in ("around_ms", "cpu_us")
    )
    name = f"{INPUT_KB:.0f} KB"
    return [
        Figure(f"{name}: path over TCP in clear, median", float(np.median(clear.around_ms)), "ms"),
        Figure(f"{name}: path over TLS, median", float(np.median(tls.around_ms)), "ms"),
        Figure(f"{name}: what TLS adds, medians", added_ms, "ms", PATH_TARGET_MS),
        Figure(f"{name}: processor time that TLS adds, all processes", added_us, "us"),
    ]


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each kind.")] = 400,
    messages: Annotated[int, typer.Option(min=1, help="Large messages of each round.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of large messages.")] = 15,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what TLS adds to a small request, and what it leaves of the rate of large messages."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        keys = keys_for(Path(folder, "keys"))
        path = measure_path(requests, Path(folder), keys)
        bulk = rates(rounds, messages, keys / "tool")
    figures = [*path_figures(*path), *bulk_figures(bulk)]
    publish("secure", "What TLS between processes costs", figures, output)


def bulk_figures(bulk: Mapping[tuple[str, str], Rates]) -> list[Figure]:
    """Return the rates of large messages, and what TLS leaves of each."""
    shown = []
    for (way, kind), found in bulk.items():
        note = f"{found.cpu:.2f} GB/s by processor time of the busier end"
        shown.append(Figure(f"602 KB, {way}, {kind}: better rounds", found.wall, "GB/s", note=note))
    for way, clear, target in (
        ("ours", "ours", BULK_TARGET),
        ("bare socket", "bare socket", None),
        ("bare, TLS in memory", "bare socket", None),
    ):
        tls, plain = bulk[way, "tls"], bulk[clear, "clear"]
        note = f"{tls.cpu / plain.cpu:.2f} x by processor time; {ssl.OPENSSL_VERSION}"
        times = tls.wall / plain.wall
        shown.append(Figure(f"602 KB, {way}: TLS / clear", times, "x", target, at_least=True, note=note))
    return shown


if __name__ == "__main__":
    typer.run(main)
