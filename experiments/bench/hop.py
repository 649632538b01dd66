"""Time that a graph takes between two of its steps, one request at a time.

Chains of steps of one emulated model, of known execution time, are asked for in turns. What a chain takes
less the executions of its steps grows by a hop with each step: the slope. A hop is the way from the end of
one EXEC over the gateway and the controller to the begin of the next: outputs, the next arrival, its
admission and dispatch, inputs. ``python -m mainspring.experiments.bench.hop``.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of, usage_of_all
from mainspring.messages.graphs import GraphSpec, StepSpec
from tests.emulated_cluster import cluster_of, write_profile

EXECUTE_MS = 0.5
LENGTHS = (1, 2, 4, 8)
BLOCK = 20
"""Requests of one chain before the next one's turn."""
TARGET_MS, TARGET_KB = 0.6, 4.0
SLO_MS = 1_000.0


Tensor = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class Samples(msgspec.Struct):
    """Times of chains of one length, less the executions of their steps, in milliseconds."""

    caller: list[float] = []
    """Time from call to result."""
    gateway: list[float] = []
    """Time from arrival at the gateway to the outputs there."""
    alone: list[float] = []
    """Time from call to result, less what any thread waited for a processor: of each block, the mean."""
    processor: list[float] = []
    """Processor time of gateway, controller and worker: of each block, the mean."""


def chain(steps: int) -> GraphSpec:
    """Return a chain of so many steps."""
    found = [
        StepSpec(
            name=f"s{place}", model="model", inputs={"data": f"s{place - 1}.output" if place else "data"}
        )
        for place in range(steps)
    ]
    outputs: dict[str, str | tuple[str, ...]] = {"output": f"s{steps - 1}.output"}
    return GraphSpec(name=f"chain{steps}", inputs=("data",), steps=tuple(found), outputs=outputs)


def measure(size_kb: float, requests: int, run_dir: Path) -> dict[int, Samples]:
    """Return ``requests`` samples of each length, taken in turns."""
    profile = write_profile(
        run_dir / "profiles.csv", input_kb=size_kb, output_kb=size_kb, execute_ms=EXECUTE_MS
    )
    found = {steps: Samples() for steps in LENGTHS}
    with cluster_of(run_dir, profile) as cluster, Client(cluster.address) as client:
        tensor = np.zeros((1, *client.models()[0].inputs[0].shape), np.float32)
        for steps in LENGTHS:
            client.add_graph(chain(steps))
            _block(client, cluster, steps, tensor, Samples())
        while len(found[LENGTHS[0]].caller) < requests:
            for steps, samples in found.items():
                _block(client, cluster, steps, tensor, samples)
    return found


def _block(client: Client, cluster: LocalCluster, steps: int, tensor: Tensor, samples: Samples) -> None:
    """Take `BLOCK` samples, and those of the block as a whole."""
    before = _used(cluster)
    for _ in range(BLOCK):
        _take(client, steps, tensor, samples)
    after = _used(cluster)
    waited_ms, processor_ms = ((now - then) / BLOCK / 1e6 for now, then in zip(after, before, strict=True))
    samples.alone.append(float(np.mean(samples.caller[-BLOCK:])) - waited_ms)
    samples.processor.append(processor_ms)


def _used(cluster: LocalCluster) -> tuple[int, int]:
    """Return how long threads have waited for a processor, and how long the cluster's have had one."""
    used = usage_of_all(cluster.supervisor, [job.name for job in cluster.plan.jobs]).values()
    own = usage_of(os.getpid()).waited_ns
    return sum([each.waited_ns for each in used]) + own, sum([each.cpu_ns for each in used])


def _take(client: Client, steps: int, tensor: Tensor, samples: Samples) -> None:
    began_ns = time.monotonic_ns()
    timing = client.infer(f"chain{steps}", {"data": tensor}, slo_ms=SLO_MS).timing
    took_ns = time.monotonic_ns() - began_ns
    executed_ns = sum(step.execute_ns for step in timing.steps)
    samples.caller.append((took_ns - executed_ns) / 1e6)
    samples.gateway.append((timing.total_ns - executed_ns) / 1e6)


def slope(medians: dict[int, float]) -> float:
    """Return by how much a median grows with each step: the least squares' line."""
    return float(np.polyfit(list(medians), list(medians.values()), 1)[0])


def figures_of(size_kb: float, found: dict[int, Samples]) -> list[Figure]:
    """Return the rows of one size of tensor."""
    size = f"{size_kb:g} KB"
    medians = {steps: float(np.median(samples.caller)) for steps, samples in found.items()}
    gateway = {steps: float(np.median(samples.gateway)) for steps, samples in found.items()}
    quarter = {steps: float(np.percentile(samples.caller, 25)) for steps, samples in found.items()}
    alone = {steps: float(np.median(samples.alone)) for steps, samples in found.items()}
    processor = {steps: float(np.median(samples.processor)) for steps, samples in found.items()}
    target = TARGET_MS if size_kb == TARGET_KB else None
    rows = [
        Figure(f"{size}: hop, median", slope(medians), "ms", target, note="slope over chains, less EXEC"),
        Figure(f"{size}: hop as the gateway sees it, median", slope(gateway), "ms"),
        Figure(f"{size}: hop, lower quartile", slope(quarter), "ms"),
        Figure(
            f"{size}: hop, without waits for a processor",
            slope(alone),
            "ms",
            note="as on an idle machine, about",
        ),
        Figure(f"{size}: hop, processor time", slope(processor), "ms", note="of the cluster's processes"),
    ]
    return rows + [
        Figure(f"{size}:   chain of {steps}, median", median, "ms", note="less EXEC")
        for steps, median in medians.items()
    ]


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each chain.")] = 400,
    size_kb: Annotated[list[float] | None, typer.Option(help="Sizes of the tensor between steps.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a hop between two steps costs, for each size of tensor."""
    figures = []
    for size in size_kb or [TARGET_KB, 602.112]:
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            figures += figures_of(size, measure(size, requests, Path(folder)))
    publish("hop", f"A hop between two steps of a graph, each of {EXECUTE_MS:g} ms", figures, output)


if __name__ == "__main__":
    typer.run(main)
