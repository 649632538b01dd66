"""Data of Ribbon's artifact: latencies, prices, configurations, and the rates that it found for pools.

Latencies become tables of profiles that specs read, arrivals a trace: whole milliseconds drawn from a Poisson
distribution, as the artifact has them, or true Poisson arrivals.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from mainspring.planner.problem import Pool
from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, ModelGroup, NetworkSpec, SimulationSpec, WorkloadSpec
from mainspring.traces.rows import Rows, RowsSpec

SHARED = Path("../shared/profiles")
QUERIES = 25_000
SIZES = range(10, 501, 10)
ROWS = RowsSpec(kind="lognormal", mu=5.1, sigma=0.2, most=500, tail=((2 / 99, 1, 99), (10 / 99, 250, 499)))
"""Heavy-tailed, as the artifact draws them."""
GAUSSIAN = RowsSpec(kind="gaussian", mean=math.exp(5.1), deviation=40, most=500)
Arrivals = Literal["artifact", "poisson"]


class Setting(msgspec.Struct, frozen=True):
    """One model of the paper's evaluation."""

    name: str
    key: str
    kinds: tuple[str, ...]
    most: Pool
    gap_ms: float
    target_ms: float
    artifact_ms: float
    """The target in the artifact's own configuration, which its tables were made with."""
    one_kind: int
    """The best of one kind: so many of the first."""
    saved: float
    evaluations: int
    """The mean number that the paper's search takes."""


_A = ("c5a.4xlarge", "m5.2xlarge", "t3.2xlarge")
SETTINGS = (
    Setting("CANDLE", "candle", _A, (8, 10, 10), 3, 40, 40, 8, 0.11, 33),
    Setting("ResNet50", "resnet", _A, (8, 11, 9), 18, 400, 400, 8, 0.16, 39),
    Setting("VGG19", "vgg", _A, (9, 12, 12), 30, 800, 800, 9, 0.09, 40),
    Setting(
        "MT-WND", "mtwnd", ("g4dn.xlarge", "c5.2xlarge", "r5n.large"), (5, 10, 12), 1.5, 20, 21, 5, 0.14, 17
    ),
    Setting("DIEN", "dien", ("g4dn.xlarge", "r5n.large", "c5.2xlarge"), (6, 10, 10), 2, 30, 30, 6, 0.12, 23),
)


def prices(shared: Path = SHARED) -> dict[str, float]:
    """Return what an instance of each kind costs an hour, in dollars."""
    with (shared / "ribbon" / "price.csv").open(encoding="utf-8", newline="") as file:
        return {row["instance"]: float(row["price"]) for row in csv.DictReader(file) if row["instance"]}


def rates(setting: Setting, shared: Path = SHARED) -> dict[Pool, float] | None:
    """Return the share of queries in time that the artifact found for each pool; None if it has no table."""
    path = shared / "ribbon" / f"lookups_{setting.key}.json"
    if not path.is_file():
        return None
    table: dict[str, tuple[float, float]] = json.loads(path.read_text(encoding="utf-8"))
    return {tuple(map(int, pool.split(","))): rate / 100 for pool, (_, rate) in table.items()}


def write_profiles(
    setting: Setting, folder: Path, shared: Path = SHARED, *, spreads: bool = True
) -> dict[str, Path]:
    """Write a table of profiles for each kind of device, medians with a spread unless ``spreads`` is false;
    return the files by kind."""
    measured: dict[str, dict[int, dict[str, str]]] = {kind: {} for kind in setting.kinds}
    for row in measurements(shared):
        if row["source"] == "ribbon" and row["model"] == setting.key and row["instance"] in measured:
            measured[row["instance"]][int(row["batch"])] = row
    found = {}
    for kind, by_size in measured.items():
        ratios = [float(each["p99_ms"]) / float(each["p50_ms"]) for each in by_size.values()]
        spread = np.median(ratios) if spreads else 1.0
        names = ["model", "input_kb", "output_kb", "weights_mb", "transfer_ms", "spread"]
        # The artifact has neither sizes nor transfers: the model is on every device before the first query.
        cells = [setting.key, "1", "1", "100", "10", f"{max(1.0, float(spread)):.5f}"]
        found[kind] = folder / f"{setting.key}-{kind}.csv"
        with found[kind].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*names, *[f"b{size}_ms" for size in SIZES]])
            writer.writerow([*cells, *[by_size[size]["p50_ms"] for size in SIZES]])
    return found


def write_arrivals(
    setting: Setting,
    path: Path,
    seed: int,
    arrivals: Arrivals,
    rows: RowsSpec = ROWS,
    load: float = 1.0,
    queries: int = QUERIES,
    slower: float = 1.0,
) -> float:
    """Write a trace of the queries, in which all takes ``slower`` times as long; return the instant of the
    last, in seconds."""
    rng = np.random.default_rng(seed)
    gap_ms = setting.gap_ms / load
    gaps_ms = rng.poisson(gap_ms, queries) if arrivals == "artifact" else rng.exponential(gap_ms, queries)
    times_s = np.cumsum(gaps_ms) * slower / 1e3
    drawn = Rows(rows, ()).draw(rng, queries)
    with path.open("w", encoding="utf-8") as file:
        file.write("time_s,model,rows\n")
        file.writelines(
            f"{time_s:.9f},{setting.key},{count}\n"
            for time_s, count in zip(times_s.tolist(), drawn.tolist(), strict=True)
        )
    return float(times_s[-1])


def spec_of(
    setting: Setting,
    folder: Path,
    *,
    seed: int = 0,
    arrivals: Arrivals = "artifact",
    rows: RowsSpec = ROWS,
    target_ms: float | None = None,
    attainment: float = 0.99,
    load: float = 1.0,
    shared: Path = SHARED,
) -> SimulationSpec:
    """Return the spec of a model's evaluation, with its files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{setting.key}-{arrivals}-{rows.kind}-{seed}-{load:g}.csv"
    end_s = write_arrivals(setting, trace, seed, arrivals, rows, load)
    files, priced = write_profiles(setting, folder, shared), prices(shared)
    return SimulationSpec(
        devices=tuple(
            DeviceGroup(kind=kind, profiles=str(files[kind]), price=priced[kind], most=most)
            for kind, most in zip(setting.kinds, setting.most, strict=True)
        ),
        models=(ModelGroup(profiles=str(files[setting.kinds[0]])),),
        workload=(
            WorkloadSpec(
                kind="csv", trace=str(trace), slo_ms=setting.target_ms if target_ms is None else target_ms
            ),
        ),
        objective=Objective(attainment=attainment),
        # Ribbon's latency is waiting and computing alone.
        network=NetworkSpec(delay_us=0),
        warm_up_s=0,
        duration_s=end_s + 1e-6,
        seed=seed,
    )


def measurements(shared: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of the measured latencies."""
    with gzip.open(shared / "ribbon_kairos_aws.csv.gz", "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
