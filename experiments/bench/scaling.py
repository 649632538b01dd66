"""A cluster that grows and shrinks under load: 4, 8, 2 and again 4 emulated devices within a minute.

Requests come all the while, at half of what four devices can do, so that two of them have nothing to spare.
What is lost, what is late, and how long each change takes:
``python -m mainspring.experiments.bench.scaling``, which ``make bench-scaling`` runs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.client.client import Client
from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.telemetry.report import Summary
from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.replayer import ReplayConfig, Replayer
from tests.emulated_cluster import cluster_of, write_profile

FIRST, STEPS = 4, (8, 2, 4)
EXECUTE_MS = 20.0
SLO_MS = 200.0
COPIES = 24
PAGES = 16
LOOK_S = 0.05


class Step(msgspec.Struct, frozen=True):
    """One change of the number of workers."""

    count: int
    asked_s: float
    took_s: float | None


def climb(
    client: Client, steps: Sequence[int], seconds: float, began: float, stop: threading.Event
) -> list[Step]:
    """Scale through ``steps``, evenly over the time."""
    found: list[Step] = []
    gap_s = seconds / (len(steps) + 1)
    for index, count in enumerate(steps):
        stop.wait(max(0.0, began + (index + 1) * gap_s - time.monotonic()))
        asked = time.monotonic()
        client.scale_workers(EMULATED, count)
        took_s: float | None = None
        while took_s is None and time.monotonic() < asked + gap_s and not stop.wait(LOOK_S):
            (kind,) = client.status().kinds
            if kind.running == count and not kind.leaving:
                took_s = time.monotonic() - asked
        found.append(Step(count, asked - began, took_s))
        typer.echo(f"  {count} workers after {'too long' if took_s is None else f'{took_s:.1f} s'}")
    return found


def figures_of(summary: Summary, steps: Sequence[Step]) -> list[Figure]:
    """Return what became of the requests, and how long each change took."""
    offered = max(1, summary.offered)
    refused = sum(summary.rejected.values())
    rows = [
        Figure("offered", summary.offered, "requests", note=f"{summary.offered_rate:.0f} a second"),
        Figure("lost", _lost(summary), "requests", target=0),
        Figure("not sent in time", summary.unsent + summary.expired, "requests"),
        Figure("late by the gateway's clock", 100 * summary.gateway_late / offered, "%", target=0.1),
        Figure("late by the caller's clock", 100 * summary.late / offered, "%"),
        Figure("refused", 100 * refused / offered, "%", note=str(summary.rejected)),
        Figure("in time", 100 * summary.goodput_share, "%"),
    ]
    before = FIRST
    for step in steps:
        took_s = float("nan") if step.took_s is None else step.took_s
        rows.append(Figure(f"from {before} to {step.count} workers", took_s, "s"))
        before = step.count
    return rows


def main(
    seconds: Annotated[float, typer.Option(min=8, help="Length of the load.")] = 60,
    load: Annotated[float, typer.Option(min=0.01, help="Share of what four devices can do.")] = 0.5,
    execute_ms: Annotated[float, typer.Option(min=1, help="Duration of one row.")] = EXECUTE_MS,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Scale a cluster up and down while requests come; print what was lost and late."""
    rate = load * FIRST * 1000 / execute_ms
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        profile = write_profile(Path(folder) / "model.csv", input_kb=4, output_kb=4, execute_ms=execute_ms)
        tables = {
            "cluster": {"workers": FIRST, "copies": COPIES},
            "worker": {"pages": PAGES, "spin_us": 0},
        }
        with cluster_of(Path(folder) / "run", profile, tables) as cluster:
            summary, steps = _measure(cluster.address, rate, seconds)
    devices = ", ".join(map(str, (FIRST, *STEPS)))
    title = f"{devices} emulated devices in turn, {rate:.0f} requests/s, SLO {SLO_MS:.0f} ms"
    publish("scaling", title, figures_of(summary, steps), output, steps=steps)
    if _lost(summary):
        raise typer.Exit(1)


def _lost(summary: Summary) -> int:
    """Return how many requests were sent and have no reply."""
    return summary.lost + summary.unanswered


def _measure(address: str, rate: float, seconds: float) -> tuple[Summary, list[Step]]:
    replayer = Replayer(ReplayConfig(address=address, straggler_wait_s=3, connect_timeout_s=30))
    recipe = Recipe(
        kind=Kind.POISSON,
        rate=rate,
        duration_ns=round(seconds * 1e9),
        slo_ns=round(SLO_MS * 1e6),
        zipf_exponent=0.9,
    )
    workload = build(recipe, [spec.name for spec in replayer.specs])
    stop, steps = threading.Event(), list[Step]()
    with Client(address) as client:

        def scale() -> None:
            steps.extend(climb(client, STEPS, seconds, time.monotonic(), stop))

        scaling = threading.Thread(target=scale)
        scaling.start()
        try:
            summary, _ = replayer.play(workload)
        finally:
            stop.set()
            scaling.join()
            replayer.close()
    return summary, steps


if __name__ == "__main__":
    typer.run(main)
