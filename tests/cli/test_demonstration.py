from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mainspring.cli.demonstration import at_load, recipe_for
from mainspring.compiler.artifact.profiles import EMULATED, read_profile_table
from mainspring.messages.model import ModelSpec
from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import build

PROFILES = """model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms
even,4,4,20,2,10,20,40,80,160
better,4,4,20,2,10,12,16,24,40
"""
MINUTE_NS = 60_000_000_000


@pytest.fixture
def specs(tmp_path: Path) -> list[ModelSpec]:
    path = tmp_path / "profiles.csv"
    path.write_text(PROFILES)
    return read_profile_table(path, 3)


def test_a_workload_is_scaled_to_its_share_of_the_capacity(specs: list[ModelSpec]) -> None:
    recipe = recipe_for(None, MINUTE_NS, 100_000_000, seed=1)
    scaled, capacity = at_load(recipe, specs, EMULATED, load=0.5, devices=1)
    assert capacity.capacity_single_rate == pytest.approx(100)
    assert 100 < capacity.capacity_rate < 400, "between that of the two models' best batches"
    workload = build(scaled, [spec.name for spec in specs])
    source = workload.source(np.random.default_rng(1))
    arrivals = 0
    while source.next_ns() is not None:
        assert source.take().slo_ns == 100_000_000
        arrivals += 1
    assert arrivals / 60 == pytest.approx(capacity.capacity_rate / 2, rel=0.1)


def test_more_devices_have_more_capacity(specs: list[ModelSpec]) -> None:
    recipe = recipe_for(None, MINUTE_NS, 100_000_000, seed=1)
    one = at_load(recipe, specs, EMULATED, load=0.5, devices=1)[1]
    three = at_load(recipe, specs, EMULATED, load=0.5, devices=3)[1]
    assert three.capacity_rate == pytest.approx(3 * one.capacity_rate)


def test_a_trace_is_played_as_what_it_holds(tmp_path: Path) -> None:
    old, new = tmp_path / "2019.csv", tmp_path / "2021.csv"
    old.write_text("HashOwner,HashApp,HashFunction,Trigger,1\no,a,f,http,3\n")
    new.write_text("app,func,end_timestamp,duration\na,f,1.0,0.5\n")
    assert recipe_for(old, MINUTE_NS, 1, 0).kind is Kind.AZURE2019
    assert recipe_for(new, MINUTE_NS, 1, 0).kind is Kind.AZURE2021
