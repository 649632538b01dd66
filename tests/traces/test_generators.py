"""Generators: rates, burstiness and skew, with fixed seeds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.generators import (
    BURSTY,
    COLD,
    PERIODIC,
    SUSTAINED,
    AzureLike,
    Gamma,
    Poisson,
    azure_like,
    closed_loop,
    zipf_rates,
)
from mainspring.traces.workload import Workload


def play(workload: Workload, seconds: float, seed: int = 3) -> list[Arrival]:
    return list(workload.cut(0, int(seconds * SECOND_NS)).arrivals(np.random.default_rng(seed)))


def gaps_cv(times: list[int]) -> float:
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean())


def test_poisson_has_its_rates_and_exponential_gaps() -> None:
    arrivals = play(Poisson({"a": 300.0, "b": 100.0, "never": 0.0}), 50)
    counts = Counter(a.model for a in arrivals)
    assert counts["a"] == pytest.approx(15_000, rel=0.04)
    assert counts["b"] == pytest.approx(5_000, rel=0.06)
    assert counts["never"] == 0
    assert gaps_cv([a.time_ns for a in arrivals if a.model == "b"]) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("cv", [0.2, 1.0, 4.0])
def test_gamma_has_its_rate_and_coefficient_of_variation(cv: float) -> None:
    arrivals = play(Gamma({"a": 100.0}, cv), 400)
    assert len(arrivals) == pytest.approx(40_000, rel=0.02 + 0.03 * cv)
    assert gaps_cv([a.time_ns for a in arrivals]) == pytest.approx(cv, rel=0.08)


def test_scaling_a_generator_scales_its_rate_and_leaves_its_burstiness() -> None:
    arrivals = play(Gamma({"a": 25.0}, 3.0).scaled(4), 200)
    assert len(arrivals) == pytest.approx(20_000, rel=0.1)
    assert gaps_cv([a.time_ns for a in arrivals]) == pytest.approx(3, rel=0.15)
    assert len(play(Poisson({"a": 25.0}).scaled(4), 100)) == pytest.approx(10_000, rel=0.05)


def test_zipf_rates_sum_to_the_rate_and_have_the_skew_of_the_azure_trace() -> None:
    rates = list(zipf_rates([str(i) for i in range(17_000)], 5000, 1.3).values())
    assert sum(rates) == pytest.approx(5000)
    assert sum(rates[:170]) / 5000 == pytest.approx(0.86, abs=0.03)
    assert set(zipf_rates(["a", "b"], 10, 0).values()) == {5.0}


def test_the_mix_has_its_rate_a_heavy_head_and_a_long_tail() -> None:
    models = tuple(f"m{i}" for i in range(400))
    arrivals = play(AzureLike(models, 2000.0), 60)
    counts = sorted(Counter(a.model for a in arrivals).values(), reverse=True)
    assert len(arrivals) == pytest.approx(120_000, rel=0.1)
    assert sum(counts[:4]) > 0.4 * len(arrivals)
    assert sum(counts[200:]) < 0.2 * len(arrivals)


@pytest.mark.parametrize("seconds", [2, 10, 30])
def test_a_short_run_of_the_mix_has_its_rate_too(seconds: int) -> None:
    mix = azure_like([f"m{i}" for i in range(24)], 80.0)
    rates = [len(play(mix, seconds, seed)) / seconds for seed in range(24)]
    assert np.mean(rates) == pytest.approx(80, rel=0.04), "no run begins with a spike because it begins"


def test_the_mix_has_all_four_kinds_in_their_proportions() -> None:
    kinds = Counter(AzureLike(("m",), 1.0)._kinds(10_000, np.random.default_rng(0)).tolist())
    assert kinds[SUSTAINED] == 1000
    assert kinds[COLD] == 4500
    assert kinds[BURSTY] / (kinds[BURSTY] + kinds[PERIODIC]) == pytest.approx(0.6, abs=0.03)


def test_periodic_functions_spike_together_and_bursty_ones_come_in_bursts() -> None:
    periodic = AzureLike(
        ("m",), 400.0, sustained_share=0, cold_share=0, bursty_share=0, zipf_exponent=0, periods_s=(10.0,)
    )
    seconds = Counter(a.time_ns // SECOND_NS % 10 for a in play(periodic, 60))
    spike = max(sum(seconds[(begin + i) % 10] for i in range(3)) for begin in range(10))
    assert spike == sum(seconds.values()), "two seconds of ten, which begin within one"
    bursty = AzureLike(
        ("m",), 400.0, sustained_share=0, cold_share=0, bursty_share=1, zipf_exponent=3, on_s=2, off_s=6
    )
    per_second = Counter(a.time_ns // SECOND_NS for a in play(bursty, 200))
    counts = np.array([per_second[second] for second in range(200)])
    assert counts.std() / counts.mean() > 0.5, "Poisson would have 0.05"


def test_scaling_the_mix_scales_its_rate() -> None:
    assert len(play(azure_like(("a", "b"), 100.0).scaled(5), 60)) == pytest.approx(30_000, rel=0.3)


def test_descriptions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(WorkloadError, match="at least one model"):
        Poisson({})
    with pytest.raises(WorkloadError, match="every rate is 0"):
        Poisson({"a": 0.0})
    with pytest.raises(WorkloadError, match="rate of model 'a'"):
        Gamma({"a": -1.0}, 1.0)
    with pytest.raises(WorkloadError, match="coefficient of variation"):
        Gamma({"a": 1.0}, 0.0)
    with pytest.raises(WorkloadError, match="exceed 1"):
        AzureLike(("a",), 1.0, sustained_share=0.8, cold_share=0.5)
    with pytest.raises(WorkloadError, match="twice"):
        azure_like(("a", "a"), 1.0)
    with pytest.raises(WorkloadError, match="concurrency"):
        closed_loop(["a"], concurrency=0, duration_ns=1, slo_ns=None)
