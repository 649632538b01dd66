"""Graphs that the scheduler knows beside clients that call step after step, and ways of sharing slack out.

Simulated: one load, offered to each way in the same requests. A client alone gives each step a fixed share of
its deadline. ``python -m mainspring.experiments.graph_shares``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec

GRAPHS: dict[str, list[dict[str, Any]]] = {
    "chain": [{"model": "a"}, {"model": "b"}, {"model": "c"}],
    "text": [{"model": "a"}, {"model": "b", "share": 3.5}, {"model": "c", "share": 1.0}],
    "cascade": [{"model": "b"}, {"model": "a", "share": 0.3}],
    "fork": [{"model": "a"}, {"model": "b"}, {"model": "c", "after": ["a"]}],
    "vote": [{"model": "a", "after": []}, {"model": "b", "after": []}, {"model": "c", "after": []}],
}
BATCH_MS = {"a": {1: 8.0, 2: 12.0, 4: 20.0}, "b": {1: 3.0, 2: 4.5, 4: 7.0}, "c": {1: 5.0, 2: 8.0, 4: 14.0}}
DEVICES, SLO_FACTOR = 3, 5.0
"""The SLO is so many times what the longest path takes alone."""
WAYS: dict[str, tuple[bool, str]] = {
    "apart": (True, "latest"),
    "latest": (False, "latest"),
    "proportional": (False, "proportional"),
    "even": (False, "even"),
}
"""Ways to ask: whether clients call step after step, and ``query_slack``, by name."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one load in one way."""

    goodput: float
    """Part of the requests that were answered in time."""
    in_vain: float
    """Part of the executed rows that were of requests without an answer in time, about: by the mean rows that
    an answer needs."""
    p50_ms: float | None


def rows_needed(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return the rows of each step for a request, by the step's model."""
    found: dict[str, float] = {}
    last = ""
    for step in steps:
        after = step.get("after", [last] if last else [])
        found[step["model"]] = step.get("share", 1.0) * min([found[each] for each in after], default=1.0)
        last = step["model"]
    return found


def capacity(steps: list[dict[str, Any]]) -> float:
    """Return the requests a second that all devices can do in full batches."""
    each_ms = sum(rows * BATCH_MS[model][4] / 4 for model, rows in rows_needed(steps).items())
    return DEVICES * 1e3 / each_ms


def longest_ms(steps: list[dict[str, Any]]) -> float:
    """Return what the longest path takes alone."""
    ends: dict[str, float] = {}
    last = ""
    for step in steps:
        after = step.get("after", [last] if last else [])
        ends[step["model"]] = BATCH_MS[step["model"]][1] + max([ends[each] for each in after], default=0.0)
        last = step["model"]
    return max(ends.values())


def play(graph: str, load: float, way: str, seconds: float, seed: int) -> Outcome:
    """Simulate one load in one way."""
    steps = GRAPHS[graph]
    apart, slack = WAYS[way]
    ran: Counter[str] = Counter()
    sent: dict[int, Infer] = {}

    def record(_now_ns: int, entry: object) -> None:
        if isinstance(entry, Infer):
            sent[entry.action_id] = entry
        elif isinstance(entry, Result) and (infer := sent.pop(entry.action_id, None)) is not None:
            ran[infer.model] += sum(infer.rows) * (entry.status is Status.OK)

    models = [
        {"name": name, "infer_ms": {str(size): ms for size, ms in sizes.items()}, "weights_mb": 16.0}
        for name, sizes in BATCH_MS.items()
    ]
    spec = {
        "devices": [{"count": DEVICES}],
        "models": models,
        "graphs": [{"name": "graph", "steps": steps, "apart": apart}],
        "workload": [
            {"models": "graph", "rate": load * capacity(steps), "slo_ms": SLO_FACTOR * longest_ms(steps)}
        ],
        "scheduler": {"query_slack": slack},
        "warm_up_s": 0.0,
        "duration_s": seconds,
        "seed": seed,
    }
    summary = simulate(parse_spec(spec, graph), record=record, analyse=False).summary
    needed = rows_needed(steps)
    used = sum(rows * summary.goodput * BATCH_MS[model][4] for model, rows in needed.items())
    done = sum(count * BATCH_MS[model][4] for model, count in ran.items())
    return Outcome(summary.goodput_share or 0.0, max(0.0, 1.0 - used / max(done, 1e-9)), summary.p50_ms)


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of each load.")] = 5.0,
    load: Annotated[list[float] | None, typer.Option(help="Multiples of the capacity.")] = None,
    graph: Annotated[list[str] | None, typer.Option(help="Graphs; by default all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print goodput, executions in vain and median latency of each graph, load and way."""
    figures = []
    for name in graph or GRAPHS:
        for each in load or (0.7, 1.0, 1.5):
            for way in WAYS:
                found = play(name, each, way, seconds, seed)
                what = f"{name} at {each:g}, {way}"
                p50 = "no answer" if found.p50_ms is None else f"median {found.p50_ms:.1f} ms"
                note = f"in vain {found.in_vain:.1%}, {p50}"
                figures.append(Figure(what, 100 * found.goodput, "%", note=note))
    publish("graph-shares", "Requests for graphs that were answered in time", figures, output)


if __name__ == "__main__":
    typer.run(main)
