"""Spells of slowness: devices that are slow for a while, correlated in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.messages.actions import Command, Infer, Load, Result
from mainspring.messages.events import Event
from mainspring.messages.tables import ConfigError
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.run import simulate
from mainspring.simulator.slowness import Spells
from mainspring.simulator.spec import (
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    SimulationSpec,
    SpecError,
    Spell,
    WorkloadSpec,
)
from mainspring.simulator.spec_file import read_spec

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def states(spell: Spell, device: str = "worker-0", seconds: int = 2_000, seed: int = 3) -> list[bool]:
    """Whether a device is slow, every 10 ms: a millisecond's work takes longer."""
    slowness = Spells([spell], seed).of(device)
    assert slowness is not None
    return [
        slowness.infer_ns(at_ns, MILLISECOND) > 1.5 * MILLISECOND
        for at_ns in range(0, seconds * SECOND, 10 * MILLISECOND)
    ]


def lengths(slow: list[bool]) -> list[int]:
    """Lengths of spells, in steps of 10 ms."""
    found, run = [], 0
    for each in slow:
        if each:
            run += 1
        elif run:
            found.append(run)
            run = 0
    return found


def test_spells_come_and_last_as_often_and_long_as_said_and_are_correlated_in_time() -> None:
    slow = states(Spell(infer_factor=4, every_s=2.0, lasts_s=0.5))
    assert sum(slow) / len(slow) == pytest.approx(0.25, abs=0.03)
    found = lengths(slow)
    assert len(found) == pytest.approx(1000, rel=0.12)
    assert sum(found) / len(found) == pytest.approx(50, rel=0.12)
    after = [later for now, later in zip(slow, slow[5:], strict=False) if now]
    # A process without memory in steps would be at 0.25.
    assert sum(after) / len(after) == pytest.approx(0.9, abs=0.04)


def test_devices_are_slow_each_by_itself_or_together_and_the_same_each_time() -> None:
    apart, together = Spell(every_s=2.0, lasts_s=0.5), Spell(every_s=2.0, lasts_s=0.5, together=True)
    assert states(apart, seconds=50) == states(apart, seconds=50)
    assert states(apart, seconds=50) != states(apart, "worker-1", seconds=50)
    assert states(apart, seconds=50) != states(apart, seconds=50, seed=4)
    spells = Spells([together], 1)
    one, other = spells.of("worker-0"), spells.of("worker-1")
    assert one is not None
    assert other is not None
    for at_ns in range(0, 100 * SECOND, 30 * MILLISECOND):
        assert one.infer_ns(at_ns, MILLISECOND) == other.infer_ns(at_ns, MILLISECOND)


def test_work_is_slow_for_the_part_that_lies_in_a_spell_and_factors_multiply() -> None:
    slow = Spell(infer_factor=3.0, load_factor=2.0, every_s=0.4, lasts_s=0.2)
    slowness = Spells([slow], 5).of("worker-0")
    assert slowness is not None
    long_ns = 400 * SECOND
    # Half of the time is slow: what is done in it takes three times as long.
    assert slowness.infer_ns(0, long_ns) / long_ns == pytest.approx(1 / (0.5 + 0.5 / 3), rel=0.1)
    assert slowness.load_ns(0, long_ns) / long_ns == pytest.approx(1 / (0.5 + 0.5 / 2), rel=0.1)
    parts_ns, at_ns = 0.0, 0.0
    while parts_ns < SECOND:
        parts_ns += MILLISECOND
        at_ns += slowness.infer_ns(round(at_ns), MILLISECOND)
    assert at_ns == pytest.approx(slowness.infer_ns(0, SECOND), rel=1e-3)
    twice = Spells([slow, Spell(infer_factor=2.0, every_s=3e7, lasts_s=2.997e7)], 5).of("worker-0")
    assert twice is not None
    assert twice.infer_ns(0, MILLISECOND) == pytest.approx(2 * slowness.infer_ns(0, MILLISECOND), rel=0.01)
    assert Spells([Spell(devices="worker-1")], 1).of("worker-0") is None


def spec(*spells: Spell, seed: int = 1) -> SimulationSpec:
    return SimulationSpec(
        devices=(DeviceGroup(count=2, pages=30),),
        models=(ModelGroup(name="m", infer_ms={"1": 2.0, "4": 5.0}, copies=8),),
        workload=(WorkloadSpec(rate=400.0, slo_ms=40.0),),
        faults=FaultsSpec(spells=spells),
        warm_up_s=0.0,
        duration_s=6.0,
        seed=seed,
    )


def durations(played: SimulationSpec) -> dict[type, dict[str, set[int]]]:
    """How long INFERs of one and LOADs took, by worker."""
    stream: list[Event | Command] = []
    simulate(played, record=lambda _, entry: stream.append(entry), validate_every=50)
    sent = {
        entry.action_id: entry
        for entry in stream
        if isinstance(entry, Load) or (isinstance(entry, Infer) and entry.batch_size == 1)
    }
    found: dict[type, dict[str, set[int]]] = {Infer: {}, Load: {}}
    for entry in stream:
        if isinstance(entry, Result) and entry.action_id in sent and entry.end_ns > entry.begin_ns:
            action = sent[entry.action_id]
            here = found[type(action)].setdefault(action.worker, set())
            here.add(round((entry.end_ns - entry.begin_ns) / MILLISECOND))
    return found


def test_a_simulation_is_slow_where_and_when_it_is_said() -> None:
    spell = Spell(devices="worker-1", infer_factor=3.0, every_s=1.0, lasts_s=0.4)
    found = durations(spec(spell))
    assert found[Infer]["worker-0"] == {2}
    assert {2, 6} <= found[Infer]["worker-1"]
    assert all(2 <= each <= 6 for each in found[Infer]["worker-1"])
    assert found[Load].get("worker-1", {10}) == {10}


def test_the_same_seed_gives_the_same_run_and_no_spell_changes_none() -> None:
    spell = Spell(infer_factor=2.5, every_s=1.0, lasts_s=0.4)
    one, again = simulate(spec(spell)), simulate(spec(spell))
    assert one.fingerprint == again.fingerprint
    even = simulate(spec())
    assert one.summary.goodput_share < even.summary.goodput_share
    rare = Spell(infer_factor=2.5, every_s=3e7, lasts_s=0.001)
    assert simulate(spec(rare)).fingerprint == even.fingerprint


def test_a_file_says_it_and_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    text = """
[[devices]]
[[models]]
name = "a"
infer_ms = { 1 = 4.0 }
[[workload]]
rate = 10
[[faults.spells]]
devices = "worker-0"
"""
    path.write_text(text)
    assert read_spec(path).faults.spells == (Spell(devices="worker-0"),)
    for more, says in (
        ("factor = 2", "has no key .factor.; did you mean .load_factor."),
        ("infer_factor = 0.5", "infer_factor is 0.5; it must be at least 1"),
        ("infer_factor = 1", "both 1, so that nothing is slow"),
        ("lasts_s = 20", "every_s is 10; it must be greater than 20"),
    ):
        path.write_text(text + more)
        with pytest.raises(ConfigError, match=says):
            read_spec(path)
    path.write_text(text.replace("worker-0", "gpu-0"))
    with pytest.raises(SpecError, match=r"no device matches devices = 'gpu-0' of a spell; there is worker-0"):
        build_cluster(read_spec(path))
