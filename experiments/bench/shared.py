"""What shared memory saves between a gateway and a worker of one host, by the size of the tensors.

Two clusters in turns, one with and one without a slab: eight requests in flight over ZeroMQ, whose input and
output have the same size, and the processor time that gateway and worker take for each.
``python -m mainspring.experiments.bench.shared``. Tensors below `LEAST_SHARED_BYTES` go as frames in both; to
see what they would cost in it, set it lower (`transport/slab.py`).
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from mainspring.experiments.bench.gateway import EXECUTE_MS, TABLES, Client, Folder, Seconds, SizesKb
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.serving import cluster_of, write_profile
from mainspring.experiments.bench.usage import usage_of_all

SIZES_KB = (8.0, 16.0, 32.0, 64.0, 128.0, 600.0)
PROCESSES = ("gateway", "worker-0")
WITH, WITHOUT = "slab", "frames"


def measure(size_kb: float, seconds: float, rounds: int, folder: Path) -> list[Figure]:
    """Return the rows of one size of tensor."""
    cpu_us: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    rates: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    with ExitStack() as stack:
        running = {}
        for kind in (WITH, WITHOUT):
            run_dir = folder / kind
            run_dir.mkdir()
            profile = write_profile(
                run_dir / "profiles.csv", input_kb=size_kb, output_kb=size_kb, execute_ms=EXECUTE_MS
            )
            slab = {} if kind == WITH else {"slab_bytes": 0}
            tables = {**TABLES, "worker": {**TABLES["worker"], **slab}, "gateway": slab}
            cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
            client = Client(cluster.address, np.zeros((1, round(size_kb * 250)), np.float32))
            stack.callback(client.close)
            client.run(seconds / 4)
            running[kind] = cluster, client
        for _ in range(rounds):
            for kind, (cluster, client) in running.items():
                before = usage_of_all(cluster.supervisor, PROCESSES)
                rate = client.run(seconds / rounds)
                after = usage_of_all(cluster.supervisor, PROCESSES)
                used_ns = sum(after[name].since(before[name]).cpu_ns for name in PROCESSES)
                cpu_us[kind].append(used_ns / 1e3 / (rate * seconds / rounds))
                rates[kind].append(rate)
    size = f"{size_kb:g} KB"
    ratios = [slab / frames for slab, frames in zip(cpu_us[WITH], cpu_us[WITHOUT], strict=True)]
    return [
        *(
            Figure(
                f"{size}: CPU of gateway and worker, {kind}",
                float(np.median(cpu_us[kind])),
                "us",
                note=f"a request; {np.median(rates[kind]):,.0f} requests/s",
            )
            for kind in (WITH, WITHOUT)
        ),
        Figure(f"{size}: {WITH} / {WITHOUT}", float(np.median(ratios)), "x", note="median of the turns"),
    ]


def main(
    seconds: Seconds = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each kind.")] = 6,
    size_kb: SizesKb = None,
    output: Folder = OUTPUT,
) -> None:
    """Print what a request costs with a slab and without, for each size of tensor."""
    figures = []
    for size in size_kb or SIZES_KB:
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            figures += measure(size, seconds, rounds, Path(folder))
    publish("shared", "Tensors in shared memory beside frames", figures, output)


if __name__ == "__main__":
    typer.run(main)
