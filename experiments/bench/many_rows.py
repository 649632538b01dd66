"""A request of many rows beside a client that cuts them up itself and sends all parts at once, in turns.

The device is emulated and takes its time by the row, so that what differs is the cost of a query: one message
of 500 rows, its pieces, one reply. ``python -m mainspring.experiments.bench.many_rows``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of_all
from tests.emulated_cluster import BATCH_SIZES, cluster_of, write_profile

BATCH = BATCH_SIZES[-1]
EXECUTE_MS = 0.25
"""Time for each row."""
TARGET = 1.1
SLO_MS = 20_000.0
WARM_UP = 3

Rows = npt.NDArray[np.float32]


class Samples(msgspec.Struct):
    """Times of one way, in milliseconds."""

    took: list[float] = []
    """Time from the call to all outputs."""
    processor: list[float] = []
    """Processor time of the cluster's processes."""


def parts_of(rows: int) -> list[tuple[int, int]]:
    """Return the first row, and the one behind the last, of each request of a client that cuts rows up."""
    return [(first, min(rows, first + BATCH)) for first in range(0, rows, BATCH)]


def measure(rows: int, rounds: int, run_dir: Path) -> tuple[Samples, Samples]:
    """Return the samples of one request, and of many, taken in turns."""
    profile = write_profile(run_dir / "profiles.csv", input_kb=4, output_kb=4, execute_ms=EXECUTE_MS)
    one, many = Samples(), Samples()
    with cluster_of(run_dir, profile) as cluster, Client(cluster.address) as client:
        tensor = np.zeros((rows, *client.models()[0].inputs[0].shape), np.float32)
        for _ in range(WARM_UP + rounds):
            _take(cluster, one, lambda: _as_one(client, tensor))
            _take(cluster, many, lambda: _as_many(client, tensor))
    return _warm(one), _warm(many)


def _take(cluster: LocalCluster, samples: Samples, ask: Callable[[], None]) -> None:
    before, began_ns = _processor_ns(cluster), time.monotonic_ns()
    ask()
    samples.took.append((time.monotonic_ns() - began_ns) / 1e6)
    samples.processor.append((_processor_ns(cluster) - before) / 1e6)


def _processor_ns(cluster: LocalCluster) -> int:
    names = [job.name for job in cluster.plan.jobs]
    return sum([each.cpu_ns for each in usage_of_all(cluster.supervisor, names).values()])


def _as_one(client: Client, tensor: Rows) -> None:
    assert len(client.infer("model", {"data": tensor}, slo_ms=SLO_MS)["output"]) == len(tensor)


def _as_many(client: Client, tensor: Rows) -> None:
    parts = [tensor[first:end] for first, end in parts_of(len(tensor))]
    waiting = [client.submit("model", {"data": part}, slo_ms=SLO_MS) for part in parts]
    outputs = np.concatenate([each.result()["output"] for each in waiting])
    assert len(outputs) == len(tensor)


def _warm(samples: Samples) -> Samples:
    return Samples(samples.took[WARM_UP:], samples.processor[WARM_UP:])


def figures_of(rows: int, one: Samples, many: Samples) -> list[Figure]:
    """Return what is printed."""
    took, parts = float(np.median(one.took)), float(np.median(many.took))
    processor, of_parts = float(np.median(one.processor)), float(np.median(many.processor))
    count = len(parts_of(rows))
    return [
        Figure(f"{rows} rows / {count} requests, median", took / parts, "x", TARGET),
        Figure(f"{rows} rows / {count} requests, processor time", processor / of_parts, "x"),
        Figure(f"{rows} rows as one request, median", took, "ms"),
        Figure(f"{rows} rows as {count} requests at once, median", parts, "ms"),
        Figure("  processor time as one", processor, "ms", note="of the cluster's processes"),
        Figure(f"  processor time as {count}", of_parts, "ms"),
    ]


def main(
    rows: Annotated[int, typer.Option(min=BATCH + 1, help="Rows of a request.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Requests in each way.")] = 50,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a request of many rows costs beside many of a batch each."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        one, many = measure(rows, rounds, Path(folder))
    title = f"{rows} rows of a model whose largest batch is {BATCH}, {EXECUTE_MS:g} ms a row"
    publish("many-rows", title, figures_of(rows, one, many), output)


if __name__ == "__main__":
    typer.run(main)
