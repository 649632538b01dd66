"""InferLine's four pipelines (SoCC '20, figure 2) with the authors' measurements, as specs to plan.

Measured by the authors: ResNet-152, ResNet-50, AlexNet, Inception and the language identification, in queries
a second of one replica. Assumed, since they published no numbers: preprocessing, the detector, the plates,
the translation, and which part of the queries comes to each conditional step. `assumed` multiplies what
was assumed of rates, to see what hangs on it. The V100 is Clockwork's table 1; models that it lacks are as
much faster there than on the K80 as ResNet-50.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mainspring.planner.problem import Whole
from mainspring.simulator.graph_groups import GraphGroup, GraphStep
from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec

V100_TABLE = Path("../shared/profiles/clockwork_table1.csv")
SIZES = (1, 2, 4, 8, 16, 32)
PRICES = {"k80": 0.70, "cpu": 0.0475, "v100": 2.68}
"""Dollars an hour; the V100 as the K80: p3.2xlarge less its eight CPUs."""
RATES: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "resnet152": ((29, 47, 55, 60), (1.4, 1.5, 1.6, 1.6)),
    "resnet50": ((60, 84, 95, 100), (3.6, 3.7, 3.9, 4.0)),
    "alexnet": ((99, 114, 142, 158), (17, 19, 21, 23)),
    "inception": ((21, 33, 49, 61, 69, 73), (3.5,)),
    "language": ((454, 575, 865, 1170, 1424, 1501), (75, 79, 81, 82)),
}
"""Queries a second on a K80 and on a CPU in batches of 1, 2, 4 ...; the last holds for larger ones."""
ASSUMED: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "preprocess": ((120,), (120,)),
    "detector": ((32, 44, 52, 56), (1.0,)),
    "plates": ((70, 95, 115, 125), (6.0,)),
    "translation": ((36, 58, 88, 112), (1.5,)),
}
V100_ROWS = {"resnet152": "resnet152_v1", "resnet50": "resnet50_v1", "inception": "inceptionv3"}

PIPELINES: Mapping[str, tuple[GraphStep, ...]] = {
    "image-processing": (GraphStep(model="preprocess"), GraphStep(model="resnet152")),
    "video-monitoring": (
        GraphStep(model="detector"),
        GraphStep(model="resnet50", share=0.5),
        GraphStep(model="alexnet", share=0.3, after=("detector",)),
        GraphStep(model="plates", share=0.6, after=("resnet50",)),
    ),
    "social-media": (
        GraphStep(model="language"),
        GraphStep(model="translation", share=0.4),
        GraphStep(model="inception", share=0.6, after=()),
    ),
    "tf-cascade": (GraphStep(model="resnet50"), GraphStep(model="resnet152", share=0.3)),
}


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Gamma arrivals; ``cv`` is the paper's, of which ours is the square root."""

    rate: float = 150.0
    cv: float = 1.0
    slo_ms: float = 150.0
    seconds: float = 60.0
    seed: int = 0


def tables(folder: Path, assumed: float = 1.0) -> dict[str, Path]:
    """Write a table of durations for each kind of device; return their files."""
    rates = {**RATES, **{name: _times(each, assumed) for name, each in ASSUMED.items()}}
    k80 = {name: _ms(each[0]) for name, each in rates.items()}
    found = {"k80": k80, "cpu": {name: _ms(each[1]) for name, each in rates.items()}}
    if V100_TABLE.exists():
        found["v100"] = _v100(k80)
    paths = {}
    for kind, durations in found.items():
        paths[kind] = folder / f"{kind}.csv"
        with paths[kind].open("w", newline="") as file:
            writer = csv.writer(file)
            head = ["family", "model", "input_kb", "output_kb", "weights_mb", "transfer_ms"]
            writer.writerow([*head, *[f"b{size}_ms" for size in SIZES]])
            for name, each in durations.items():
                writer.writerow([name, name, 100, 4, 100, 8, *[f"{value:.4f}" for value in each]])
    return paths


def _times(
    rates: tuple[tuple[float, ...], tuple[float, ...]], factor: float
) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(factor * rate for rate in each) for each in rates)


def _ms(rates: tuple[float, ...]) -> list[float]:
    """Return the durations of batches of all sizes."""
    return [1e3 * size / rates[min(place, len(rates) - 1)] for place, size in enumerate(SIZES)]


def _v100(k80: Mapping[str, list[float]]) -> dict[str, list[float]]:
    with V100_TABLE.open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    known = {
        name: [float(rows[row][f"b{size}_ms"]) for size in SIZES[:-1]] for name, row in V100_ROWS.items()
    }
    found = {name: [*each, 2 * each[-1]] for name, each in known.items()}
    faster = [slow / fast for slow, fast in zip(k80["resnet50"], found["resnet50"], strict=True)]
    for name, each in k80.items():
        # No model profits that does not profit from a GPU at all.
        gains = faster if name != "preprocess" else [1.0] * len(SIZES)
        found.setdefault(name, [slow / gain for slow, gain in zip(each, gains, strict=True)])
    return found


def spec_of(
    pipeline: str,
    traffic: Traffic,
    folder: Path,
    *,
    kinds: tuple[str, ...] = ("k80", "cpu"),
    assumed: float = 1.0,
    arrivals_ns: Whole | None = None,
) -> SimulationSpec:
    """Return a pipeline under a traffic, or under these arrivals; the tables of profiles, and the arrivals,
    are written to a folder."""
    files, steps = tables(folder, assumed), PIPELINES[pipeline]
    workload = WorkloadSpec(
        models=pipeline, kind="gamma", cv=traffic.cv**0.5, rate=traffic.rate, slo_ms=traffic.slo_ms
    )
    if arrivals_ns is not None:
        trace = folder / f"arrivals-{traffic.seed}.csv"
        lines = [f"{each / 1e9:.9f},{pipeline}" for each in arrivals_ns.tolist()]
        trace.write_text("\n".join(["time_s,model", *lines]) + "\n")
        workload = WorkloadSpec(models=pipeline, kind="csv", trace=str(trace), slo_ms=traffic.slo_ms)
    return SimulationSpec(
        devices=tuple(
            DeviceGroup(kind=kind, price=PRICES[kind], profiles=str(files[kind])) for kind in kinds
        ),
        models=(
            ModelGroup(profiles=str(files[kinds[0]]), include=",".join({step.model: 0 for step in steps})),
        ),
        graphs=(GraphGroup(name=pipeline, steps=steps),),
        workload=(workload,),
        objective=Objective(attainment=0.99),
        warm_up_s=0,
        duration_s=traffic.seconds,
        seed=traffic.seed,
    )
