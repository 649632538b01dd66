"""Time of the estimator ``queues`` for graphs: an hour at 300 queries a second over four steps.

``python -m mainspring.experiments.bench.planning`` counts the processor time of one thread, the median of
`ROUNDS`, with numba if that is installed.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import typer

from mainspring.experiments.bench.report import Figure, publish
from mainspring.planner.graph_queues import GraphQueues, Station, read_graph_problem
from mainspring.simulator.graph_groups import GraphGroup, GraphStep
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec

ROUNDS = 5
RATE = 300.0
HOUR_S = 3_600.0
MOST_MS = 300.0
STEPS = {"open": (1.0, 1.0, 2), "detect": (8.0, 6.0, 6), "read": (4.0, 3.0, 4), "spell": (1.0, 2.0, 2)}
"""Milliseconds of a batch and of each row, and replicas, of each step."""


def chain(seconds: float) -> SimulationSpec:
    """Return a chain of four steps under Poisson arrivals."""
    sizes = (1, 2, 4, 8)
    return SimulationSpec(
        devices=(DeviceGroup(kind="gpu", price=0.7),),
        models=tuple(
            ModelGroup(name=name, infer_ms={str(size): fixed + each * size for size in sizes})
            for name, (fixed, each, _) in STEPS.items()
        ),
        graphs=(GraphGroup(name="chain", steps=tuple(GraphStep(model=name) for name in STEPS)),),
        workload=(WorkloadSpec(models="chain", rate=RATE, slo_ms=250),),
        warm_up_s=0,
        duration_s=seconds,
    )


def main(
    seconds: Annotated[float, typer.Option(min=10, help="Length of the sample.")] = HOUR_S,
) -> None:
    """Print what an evaluation takes, and write ``planning.json``."""
    problem = read_graph_problem(chain(seconds))
    stations = tuple(Station(0, 8, replicas) for _, _, replicas in STEPS.values())
    estimator = GraphQueues(problem)
    estimator.play(stations)
    took_ms = []
    for _ in range(ROUNDS):
        begun_ns = time.thread_time_ns()
        estimator.play(stations)
        took_ms.append((time.thread_time_ns() - begun_ns) / 1e6)
    median = statistics.median(took_ms)
    bound = MOST_MS if seconds == HOUR_S else None
    figures = [Figure(f"{len(problem.queries):,} queries over {len(STEPS)} steps", median, "ms", bound)]
    publish("planning", "Estimate of a graph", figures)


if __name__ == "__main__":
    typer.run(main)
