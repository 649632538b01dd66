"""Worth of each part of the scheduling of graphs: goodput without it, of five graphs at three loads.

Simulated: 12 copies of a graph with models of their own, of which memory holds about a half, so that looking
ahead has something to load. One graph is played once more at a small load, with LOADs that take long and half
the SLO (`SLOW`). A part is taken out by a method of `scheduler.queries` that does less, which is
possible only where the scheduler runs as Python: ``MAINSPRING_NATIVE=0 python -m
mainspring.experiments.graph_ablation``.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Query, Request
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.graph_shares import BATCH_MS, DEVICES, GRAPHS, SLO_FACTOR, capacity, longest_ms
from mainspring.messages.actions import Reject
from mainspring.messages.codes import Reason
from mainspring.scheduler import queries
from mainspring.scheduler.queries import Queries
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec

COPIES = 12
WEIGHTS_MB, LOAD_MS = 64.0, 5.0
SLOW = "text", 0.05, 30.0, 0.5
"""Graph, load, ms of a LOAD, and part of the SLO, where LOADs are most of a request's time."""
PAGES = 24
"""Pages of each device. Of 36 models of 4 pages each, three devices hold half."""
PAYS = 1.0
"""Points of goodput from which on a part is worth its lines, in some cell."""


def fixed_shares(_self: Queries, _now_ns: int, query: Query, index: int, _model: Model, _rows: int) -> int:
    """Return a step's due instant as a fixed part of the deadline, as `simulator.graphs` gives it apart."""
    until: list[float] = []
    for step in query.event.steps:
        took = BATCH_MS[step.model.rpartition("-")[0]][1]
        until.append(max([until[each] for each in step.after], default=0.0) + took)
    assert query.due_ns is not None, "every request has a deadline"
    return query.arrived_ns + round((query.due_ns - query.arrived_ns) * until[index] / max(until))


def admitted(*_arguments: Any, **_options: Any) -> None:
    """Refuse no query for its time."""


def not_ahead(*_arguments: Any) -> bool:
    """Expect no later step."""
    return False


def piece_alone(
    self: SchedulerState, now_ns: int, request: Request, reason: Reason, detail: str, *_evidence: Any
) -> None:
    """Reject a piece, and leave the rest of its query to itself."""
    self.emit(now_ns, Reject(request.id, reason, detail))


WITHOUT: dict[str, tuple[type, str, Callable[..., Any]] | None] = {
    "nothing": None,
    "shares that follow": (Queries, "_due_ns", fixed_shares),
    "admission of the whole": (Queries, "_late", admitted),
    "looking ahead": (Queries, "_comes", not_ahead),
    "early end": (SchedulerState, "reject", piece_alone),
}
"""The parts, each with what takes its place."""


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    """Run the block without a part."""
    found = WITHOUT[part]
    with contextlib.nullcontext() if found is None else mock.patch.object(*found):
        yield


def play(
    graph: str, load: float, part: str, seconds: float, seed: int, load_ms: float = LOAD_MS, slo: float = 1.0
) -> float:
    """Return the goodput of one load without a part, in percent; ``slo`` is the part of the SLO."""
    steps: list[dict[str, Any]] = GRAPHS[graph]
    models = [
        {
            "name": f"{name}-{copy}",
            "infer_ms": {str(size): ms for size, ms in sizes.items()},
            "weights_mb": WEIGHTS_MB,
            "load_ms": load_ms,
        }
        for copy in range(COPIES)
        for name, sizes in BATCH_MS.items()
    ]
    graphs = [
        {"name": f"graph-{copy}", "steps": [_of_copy(step, copy) for step in steps]} for copy in range(COPIES)
    ]
    rate = load * capacity(steps)
    workload = {"models": "graph-*", "rate": rate, "slo_ms": slo * 2 * SLO_FACTOR * longest_ms(steps)}
    spec = {
        "devices": [{"count": DEVICES, "pages": PAGES}],
        "models": models,
        "graphs": graphs,
        "workload": [workload],
        "warm_up_s": 0.0,
        "duration_s": seconds,
        "seed": seed,
    }
    with without(part):
        return 100 * (simulate(parse_spec(spec, graph), analyse=False).summary.goodput_share or 0.0)


def _of_copy(step: dict[str, Any], copy: int) -> dict[str, Any]:
    found = {**step, "model": f"{step['model']}-{copy}"}
    return {**found, "after": [f"{each}-{copy}" for each in step["after"]]} if "after" in step else found


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of each load.")] = 3.0,
    load: Annotated[list[float] | None, typer.Option(help="Multiples of the capacity.")] = None,
    graph: Annotated[list[str] | None, typer.Option(help="Graphs; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds whose mean counts.")] = 2,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what goodput loses without each part, in points, at each load, and the most of all graphs."""
    if not queries.__file__.endswith(".py"):
        raise typer.BadParameter("methods of compiled classes can't be replaced: set MAINSPRING_NATIVE=0")
    figures, most = [], dict.fromkeys(WITHOUT, -100.0)
    cells = [(name, each, LOAD_MS, 1.0) for name in graph or GRAPHS for each in load or [0.7, 1.0, 1.5]]
    for name, each, load_ms, slo in cells if graph or load else [*cells, SLOW]:
        # A small load needs longer for as many requests.
        long = seconds * max(1.0, 0.15 / each)
        found = {
            part: statistics.mean([play(name, each, part, long, seed, load_ms, slo) for seed in range(seeds)])
            for part in WITHOUT
        }
        whole = found.pop("nothing")
        lost = {part: whole - goodput for part, goodput in found.items()}
        most.update({part: max(most[part], points) for part, points in lost.items()})
        note = ", ".join(f"{points:+.1f} for {part}" for part, points in lost.items())
        slow = f", LOADs of {load_ms:g} ms" if load_ms != LOAD_MS else ""
        figures.append(Figure(f"{name} at {each:g}{slow}", whole, "%", note=note))
    del most["nothing"]
    figures += [
        Figure(f"most that is lost without {part}", points, "points", PAYS, at_least=True)
        for part, points in most.items()
    ]
    publish(
        "graph-ablation", "Goodput of graphs, and the points that each part of it is worth", figures, output
    )


if __name__ == "__main__":
    typer.run(main)
