"""Late answers and late refusals of a burst, by the caller's clock.

One asyncio program calls `AsyncClient.infer` many times at once, far more than one worker with ONNX Runtime
can do by the deadline: client, gateway, controller and worker are real processes. Each call is timed around
its ``await``, so that whatever held it counts. ``python -m mainspring.experiments.bench.deadlines``, which
``make bench-deadlines`` runs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic_ns
from typing import Annotated

import msgspec
import numpy as np
import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.asynchronous import AsyncClient
from mainspring.client.errors import DeadlineError, MainspringError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of

SHAPES = ((1_000, 1_000.0), (300, 200.0))
"""Requests at once, and their SLO in milliseconds."""
LATE_SHARE = 0.01
REST_S = 1.0


class Burst(msgspec.Struct):
    """Results of one kind of burst: milliseconds from each call to its end."""

    slo_ms: float
    answered: list[float] = []
    refused: list[float] = []
    failed: Counter[str] = msgspec.field(default_factory=Counter)
    """Outcomes that are neither, by name."""
    waited: list[float] = []

    @property
    def late(self) -> int:
        """Answers after the SLO."""
        return sum(each > self.slo_ms for each in self.answered)

    @property
    def refused_late(self) -> int:
        """Refusals after the SLO."""
        return sum(each > self.slo_ms for each in self.refused)


async def ask(client: AsyncClient, models: list[str], count: int, burst: Burst) -> None:
    """Make a burst of calls, of all models in turn, and add what comes of it."""
    spec = (await client.models())[models[0]]
    inputs = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs}

    async def one(model: str) -> None:
        called_ns = monotonic_ns()
        try:
            await client.infer(model, inputs, slo_ms=burst.slo_ms)
            ends = burst.answered
        except DeadlineError:
            ends = burst.refused
        except MainspringError as error:
            burst.failed[type(error).__name__] += 1
            return
        ends.append((monotonic_ns() - called_ns) / 1e6)

    before = usage_of(os.getpid())
    # All are called now, as in examples/async_client.py, and not one after the other's first step.
    await asyncio.gather(*(one(models[number % len(models)]) for number in range(count)))
    burst.waited.append(usage_of(os.getpid()).since(before).waited_ns / 1e6)


async def measure(address: str, models: list[str], rounds: int) -> dict[tuple[int, float], Burst]:
    """Make each kind of burst ``rounds`` times, in turns."""
    bursts = {shape: Burst(shape[1]) for shape in SHAPES}
    async with AsyncClient(address) as client:
        for model in models:
            await ask(client, [model], 4, Burst(60_000.0))
        for _ in range(rounds):
            for (count, _), burst in bursts.items():
                await ask(client, models, count, burst)
                await asyncio.sleep(REST_S)
    return bursts


def figures_of(bursts: dict[tuple[int, float], Burst]) -> list[Figure]:
    """Return the rows of the report."""
    figures = []
    for (count, slo_ms), burst in bursts.items():
        name = f"{count} at once, {slo_ms:g} ms"
        late, refused = burst.late / max(1, len(burst.answered)), max(1, len(burst.refused))
        figures += [
            Figure(f"{name}: answered", len(burst.answered), "", note="of all rounds"),
            Figure(f"{name}: late by the caller's clock", 100 * late, "%", 100 * LATE_SHARE),
            Figure(f"{name}: refused", len(burst.refused), ""),
            Figure(f"{name}: refused after the deadline", 100 * burst.refused_late / refused, "%", 0.0),
            Figure(f"{name}: neither", burst.failed.total(), "", 0.0, note=str(dict(burst.failed) or "")),
        ]
        middle, most = np.percentile(burst.waited, [50, 100])
        note = f"{most:.0f} ms in the worst; the client alone"
        figures.append(Figure(f"{name}: waited for a processor in a burst", middle, "ms", note=note))
        for kind, ends in (("answer", burst.answered), ("refusal", burst.refused)):
            if ends:
                middle, last = np.percentile(ends, [50, 100])
                figures.append(Figure(f"{name}: {kind}, median", middle, "ms"))
                figures.append(Figure(f"{name}: {kind}, last", last, "ms"))
    return figures


def main(
    copies: Annotated[int, typer.Option(min=1, help="Copies of squeezenet that are asked in turn.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each kind.")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print how many answers are late, and how many refusals, by the caller's clock."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        store = Path(folder) / "store"
        models = [each.manifest.name for each in compile_zoo(["squeezenet"], Store(store), copies)]
        gateway, controller = free_ports(2)
        tables = {
            "cluster": {"run_dir": str(Path(folder) / "run"), "store": str(store)},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "http_address": "", "grpc_address": ""},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        }
        with LocalCluster(make_plan(read_config(tables, "this benchmark")), typer.echo) as cluster:
            bursts = asyncio.run(measure(cluster.address, models, rounds))
    publish(
        "deadlines",
        "A burst beyond what one worker can do, by the caller's clock",
        figures_of(bursts),
        output,
    )


if __name__ == "__main__":
    typer.run(main)
