"""Large messages from one process to another, in clear and over TLS: ours, and what bare programs do.

What else the machine does only makes a round slower, and the longer it computes the more: in clear, a message
takes a third of the processor time. So rounds are short, all ways take turns, a way's rate is that of its
better rounds (the upper quartile), and beside it stands the rate by the processor time of the busier end,
which nothing that waits can exceed.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mainspring.cli.launcher.addresses import free_ports
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener

LARGE_BYTES = 602_112
WINDOW = 8
"""Large messages that are on their way at one time."""
LIMITS = Limits(64 << 20, 256 << 20, 10_000)
HOST = "127.0.0.1"
BLOCK_BYTES = 1 << 18
"""What `Blocks` encrypts before it is sent, and reads at a time."""
FORK = multiprocessing.get_context("fork")


class Took(NamedTuple):
    """What large messages took."""

    seconds: float
    cpu_s: float
    """Processor time of the end that needed more of it."""


class Rates(NamedTuple):
    """In GB/s."""

    wall: float
    cpu: float
    """By processor time of the busier end."""


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
