"""What TLS between processes costs: the serving path and large tensors over TCP, in clear and encrypted.

Two clusters of emulated devices take turns, one with keys. Their processes are on one host, where they would
meet by name and say nothing over TCP; so the names are taken before they start, and they speak as they do
between hosts. Then one process sends another large messages (`secure_bulk`) over connections of `transport`,
and beside these over a bare socket and by bare programs of Python's TLS: what the processor can do at all.
``python -m mainspring.experiments.bench.secure``, which ``make bench-secure`` runs.
"""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mainspring.cli.authority import Authority
from mainspring.client.client import Client
from mainspring.experiments.bench.around import EXECUTE_MS, OUTPUT_KB, WARM_UP, ConnectionCaller
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.secure_bulk import HOST, Rates, ports_for, rates
from mainspring.experiments.bench.usage import usage_of_all
from tests.emulated_cluster import cluster_of, write_profile

BLOCK = 20
"""Requests of one kind before the next has its turn."""
PATH_TARGET_MS = 0.2
BULK_TARGET = 0.5
INPUT_KB = 4.0
PROCESSES = (("controller", "controller"), ("gateway", "gateway"), ("worker", "worker-0"))
"""By role, those that serve a request, and their names."""


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
        """What the path added to EXEC, for each request."""
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
