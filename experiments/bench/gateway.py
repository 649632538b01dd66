"""Throughput of tensors through the gateway beside a bare ZeroMQ loop.

A client sends requests of 16 KB, 600 KB (an image) and 8 MB and the worker echoes as much back, 8 in flight.
The bare loop is a process that passes messages of the same size on between two sockets, in turns with it.
``python -m mainspring.experiments.bench.gateway``, which ``make bench-gateway`` runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from mainspring.client.connection import Connection
from mainspring.experiments.bench import relay
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of_all
from mainspring.messages.clients import InferReply, InferRequest
from mainspring.messages.peers import TensorHeader
from tests.emulated_cluster import cluster_of, write_profile

SIZES_KB = (16.0, 600.0, 8000.0)
EXECUTE_MS = 0.05
IN_FLIGHT = 8
ROUNDS = 3
SLO_NS = 10_000_000_000
TABLES: Mapping[str, Mapping[str, Any]] = {
    "worker": {"io_bytes": 1 << 30},
    "scheduler": {"action_window_ms": 1000.0},
}
"""A batch of eight inputs of 8 MB is longer on its way than the usual window allows."""

Seconds = Annotated[float, typer.Option(min=0.1, help="For each size, of each kind.")]
SizesKb = Annotated[list[float] | None, typer.Option(help="Sizes of input and output.")]
Folder = Annotated[Path, typer.Option(help="Folder of the report.")]
"""Options of benchmarks that go through sizes of tensors."""


class Client:
    """Keeps `IN_FLIGHT` requests going over one connection."""

    def __init__(self, address: str, tensor: npt.NDArray[np.float32]) -> None:
        self._connection = Connection(address, local=False)
        self._connection.open(10)
        self._tensor = tensor
        self._key = 0

    def run(self, seconds: float) -> float:
        """Return requests per second; raises RuntimeError if one fails."""
        until, answered, out = time.monotonic() + seconds, 0, 0
        began = time.monotonic()
        while out or time.monotonic() < until:
            while out < IN_FLIGHT and time.monotonic() < until:
                self._send()
                out += 1
            self._connection.poll(1_000)
            while (received := self._connection.receive()) is not None:
                if not isinstance(received[0], InferReply):
                    raise RuntimeError(f"a request failed: {received[0]}")
                answered += 1
                out -= 1
        return answered / (time.monotonic() - began)

    def _send(self) -> None:
        self._key += 1
        header = TensorHeader("data", "float32", self._tensor.shape)
        self._connection.send(InferRequest(self._key, "model", (header,), SLO_NS), [self._tensor])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _bare(bare: relay.Relay, tensor: bytes, seconds: float) -> float:
    until, done, out = time.monotonic() + seconds, 0, 0
    began = time.monotonic()
    while out or time.monotonic() < until:
        while out < IN_FLIGHT and time.monotonic() < until:
            bare.send(tensor)
            out += 1
        bare.receive()
        done, out = done + 1, out - 1
    return done / (time.monotonic() - began)


def measure(size_kb: float, seconds: float, run_dir: Path) -> list[Figure]:
    """Return the rows of one size of tensor."""
    profile = write_profile(
        run_dir / "profiles.csv", input_kb=size_kb, output_kb=size_kb, execute_ms=EXECUTE_MS
    )
    rates, floor, cpu_us = [], [], []
    with ExitStack() as stack:
        bare = stack.enter_context(relay.running(round(size_kb * 1000)))
        cluster = stack.enter_context(cluster_of(run_dir, profile, TABLES))
        client = Client(cluster.address, np.zeros((1, round(size_kb * 250)), np.float32))
        stack.callback(client.close)
        tensor = bytes(round(size_kb * 1000))
        for warm_up, share in ((True, 0.2), *((False, 1.0),) * ROUNDS):
            bare_rate = _bare(bare, tensor, seconds * share / ROUNDS)
            before = usage_of_all(cluster.supervisor, ["gateway"])["gateway"]
            rate = client.run(seconds * share / ROUNDS)
            used = usage_of_all(cluster.supervisor, ["gateway"])["gateway"].since(before)
            if not warm_up:
                floor.append(bare_rate)
                rates.append(rate)
                cpu_us.append(used.cpu_ns / 1e3 / (rate * seconds / ROUNDS))
    size, rate, bare_rate = f"{size_kb:g} KB", float(np.median(rates)), float(np.median(floor))
    bandwidth = f"{rate * size_kb * 2 / 1e6:.2f} GB/s in and out"
    return [
        Figure(f"{size}: served, {IN_FLIGHT} in flight", rate, "requests/s", note=bandwidth),
        Figure(f"{size}: bare relay of the same hops", bare_rate, "requests/s", note="same run, in turns"),
        Figure(f"{size}: served / bare", rate / bare_rate, "x"),
        Figure(f"{size}: CPU of the gateway for each request", float(np.median(cpu_us)), "us"),
    ]


def main(seconds: Seconds = 4, size_kb: SizesKb = None, output: Folder = OUTPUT) -> None:
    """Print the throughput for each size of tensor."""
    figures = []
    for size in size_kb or SIZES_KB:
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            figures += measure(size, seconds, Path(folder))
    publish("gateway", "Tensors through the gateway", figures, output)


if __name__ == "__main__":
    typer.run(main)
