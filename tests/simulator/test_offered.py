"""What a spec's workloads offer: loads, SLOs in turn, and who is asked for most."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from mainspring.messages.model import ModelSpec
from mainspring.messages.tables import ConfigError
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.offered import expected_rates
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    SimulationSpec,
    Spread,
    WorkloadSpec,
)
from mainspring.simulator.spec_file import read_spec
from mainspring.simulator.workloads import build_source, title
from mainspring.traces.arrival import Arrival, WorkloadError

FAST = ModelGroup(name="fast", infer_ms={"1": 2.0, "8": 8.0}, load_ms=4.0, weights_mb=60.0, copies=6)
SLOW = ModelGroup(name="slow", infer_ms={"1": 10.0, "4": 32.0, "8": 80.0}, copies=2)
BASE = SimulationSpec(
    devices=(DeviceGroup(count=2), DeviceGroup(kind="old", speed=0.5)),
    models=(FAST, SLOW),
    workload=(WorkloadSpec(load=0.6, slo_ms=50.0),),
    warm_up_s=0.0,
    duration_s=20.0,
)


def arrivals(spec: SimulationSpec) -> list[Arrival]:
    source = build_source(spec, build_cluster(spec).models)
    found = []
    while source.next_ns() is not None:
        found.append(source.take())
    return found


def changed(**fields: object) -> SimulationSpec:
    return msgspec.structs.replace(BASE, **fields)


def asked(spec: SimulationSpec) -> float:
    """Return what requests take in the best batches, as a part of the time of two devices and a half."""
    best_ms = {"fast": 1.0, "slow": 8.0}
    total_ms = sum(best_ms[each.model.split("-")[0]] for each in arrivals(spec))
    return total_ms / (2.5 * 1e3 * spec.duration_s)


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_a_load_is_a_multiple_of_what_the_devices_can_do_in_time(kind: str) -> None:
    # The batch of eight of the slow model ends too late.
    spec = changed(workload=(WorkloadSpec(kind=kind, load=0.6, slo_ms=50.0, cv=1.5, zipf_exponent=0.5),))
    assert asked(spec) == pytest.approx(0.6, rel=0.06)
    assert title(spec, 8).endswith("load 0.6, SLO 50 ms")


def test_loads_of_workloads_side_by_side_add_up() -> None:
    spec = changed(
        workload=(
            WorkloadSpec(load=0.3, models="fast*"),
            WorkloadSpec(load=0.5, models="slow*", slo_ms=50.0),
        )
    )
    assert asked(spec) == pytest.approx(0.8, rel=0.06)
    assert asked(changed(workload=(WorkloadSpec(load=1.6, models="fast*"),))) == pytest.approx(1.6, rel=0.03)


def test_a_trace_is_scaled_to_a_load(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    rows = "".join(f"{number / 50:.2f},{('fast-1', 'slow-2')[number % 5 == 0]}\n" for number in range(1000))
    path.write_text("time_s,model\n" + rows)
    spec = changed(workload=(WorkloadSpec(kind="csv", trace=str(path), load=0.4, slo_ms=50.0),))
    assert asked(spec) == pytest.approx(0.4, rel=0.06)
    half = changed(workload=(WorkloadSpec(kind="csv", trace=str(path), scale=0.5),))
    assert len(arrivals(half)) == pytest.approx(500, rel=0.1)
    with pytest.raises(
        WorkloadError, match=re.escape("no request in its first 20 s, so no scale gives a load of 1")
    ):
        arrivals(changed(workload=(WorkloadSpec(kind="csv", trace=str(path), load=1.0, start_s=60),)))


def test_the_synthetic_mix_has_the_load_but_for_its_bursts() -> None:
    for seed in (1, 2):
        spec = changed(workload=(WorkloadSpec(kind="synthetic", load=0.7, slo_ms=50.0),), seed=seed)
        assert asked(spec) == pytest.approx(0.7, rel=0.15)


def test_rows_sizes_and_spreads_count_in_a_load() -> None:
    def offered(**fields: object) -> int:
        return len(arrivals(changed(**fields)))

    usual = offered(workload=(WorkloadSpec(load=0.6, models="fast*"),))
    rows = offered(workload=(WorkloadSpec(load=0.6, models="fast*", rows=8),))
    assert rows == pytest.approx(usual / 8, rel=0.1)
    spread = FaultsSpec(spreads=(Spread(long_share=1.0, long_factor=3.0),))
    assert offered(workload=(WorkloadSpec(load=0.6, models="fast*"),), faults=spread) == (
        pytest.approx(usual / 3, rel=0.1)
    )
    text = ModelGroup(
        name="text", symbols=("seq",), shaped_ms={"16": {"1": 2.0}, "128": {"1": 16.0}}, load_ms=4.0
    )
    short = offered(models=(text,), workload=(WorkloadSpec(load=0.6, shape={"seq": "16"}),))
    full = offered(models=(text,), workload=(WorkloadSpec(load=0.6),))
    assert short == pytest.approx(8 * full, rel=0.1)


def test_models_take_several_slos_in_turn() -> None:
    spec = changed(workload=(WorkloadSpec(rate=200.0, slo_ms=(20.0, 50.0, 100.0)),))
    found = {(each.model, (each.slo_ns or 0) // 1_000_000) for each in arrivals(spec)}
    names = [model.name for model in build_cluster(spec).models]
    assert found == {(name, (20, 50, 100)[place % 3]) for place, name in enumerate(names)}
    assert title(spec, 8).endswith("200 requests/s, SLOs 20, 50, 100 ms")
    closed = changed(workload=(WorkloadSpec(kind="closed", concurrency=2, slo_ms=(20.0, 50.0)),))
    run = simulate(msgspec.structs.replace(closed, duration_s=1.0))
    sent = run.records.columns()[0]
    assert Counter(sent["slo_ns"].tolist()).keys() == {20_000_000, 50_000_000}


def test_the_most_popular_models_are_preloaded() -> None:
    tight = (DeviceGroup(count=2, pages=8),)
    workload = WorkloadSpec(rate=100.0, zipf_exponent=1.5)
    spec = changed(devices=tight, models=(FAST,), workload=(workload,), preload="popular")
    cluster = build_cluster(spec)
    rates = expected_rates(spec, cluster.models)
    ranked = sorted(rates, key=lambda name: -rates[name])
    held = [model.name for each in cluster.preloaded.values() for model in each.resident]
    assert set(held) == set(ranked[:4])
    assert rates[ranked[0]] > 2 * rates[ranked[1]]
    assert len(held) == 4
    usual = build_cluster(msgspec.structs.replace(spec, preload="fill"))
    first = [model.name for model in usual.models[:4]]
    assert {model.name for each in usual.preloaded.values() for model in each.resident} == set(first)


def test_popularity_counts_all_workloads(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("time_s,model\n" + "0.1,fast-6\n" * 4000)
    closed = WorkloadSpec(kind="closed", models="slow-2", concurrency=4, think_ms=10.0, slo_ms=50.0)
    spec = changed(
        workload=(WorkloadSpec(rate=80.0), WorkloadSpec(kind="csv", trace=str(path), models="fast*"), closed)
    )
    models: tuple[ModelSpec, ...] = build_cluster(spec).models
    rates = expected_rates(spec, models)
    assert rates["fast-6"] == pytest.approx(210)
    assert rates["fast-1"] == pytest.approx(10)
    assert rates["slow-2"] == pytest.approx(10 + 4 / 0.02)


SPEC = """
preload = "popular"
[[devices]]
[[models]]
name = "a"
infer_ms = { 1 = 4.0 }
[[workload]]
load = 0.5
slo_ms = [25, 100.5]
"""


def test_a_file_says_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    spec = read_spec(path)
    assert (spec.preload, spec.workload[0].load, spec.workload[0].slos_ms) == ("popular", 0.5, (25, 100.5))
    assert read_spec(path, ["workload.slo_ms=40"]).workload[0].slos_ms == (40,)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("rate = 5", "load and rate both say how many requests come: take one of them out"),
        ("scale = 2", "load and scale both say how many"),
        ('kind = "closed"', "closed-loop clients decide that"),
        ("slo_ms = []", "slo_ms is an empty list"),
        ("slo_ms = [10, 0]", "slo_ms is 0"),
        ('slo_ms = ["10"]', "slo_ms expects"),
        ("load = -1", "load is -1; it must be greater than 0"),
        ('kind = "log"\nlog = "x"', "load, slo_ms would change nothing of a workload of kind log"),
        ('kind = "csv"', "a workload of kind csv is read from a file: name it with trace"),
        ('trace = "a.csv"', "poisson is generated and would not read a.csv"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path: Path, more: str, says: str) -> None:
    path = tmp_path / "spec.toml"
    text = SPEC
    for key in re.findall(r"^(\w+) =", more, re.MULTILINE):
        if key in ("load", "slo_ms"):
            text = re.sub(rf"(?m)^{key} = .*\n", "", text)
    path.write_text(text + more)
    with pytest.raises((ConfigError, WorkloadError), match=re.escape(says)):
        build_source(read_spec(path), build_cluster(read_spec(path)).models)
