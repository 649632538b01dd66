from __future__ import annotations

import resource
from pathlib import Path

import msgspec
import pytest

from mainspring.cli.doctor import machine
from mainspring.gateway import descriptors
from mainspring.gateway.config import GatewayConfig
from mainspring.native import CORE, CORES, State, Use
from mainspring.worker.limits import Limits, Room

QUOTA = Limits(cores=1.5, cores_by="/c/cpu.max", periods=244, throttled=77)


def test_each_missing_thing_says_what_it_costs_and_how_to_get_it() -> None:
    missing = [
        machine.cores([3], 1, Limits()),
        machine.cores([0, 1, 2], 2, QUOTA),
        machine.memory(Limits(memory_bytes=300 << 20, memory_by="/m/memory.max")),
        machine.realtime(PermissionError(1, "Operation not permitted"), Limits()),
        machine.locked_memory(8 << 20, False),
        machine.wake_ups([5_000_000] * 100),
        machine.open_files(1024, 1000),
        machine.space("disk", Path("/"), 1 << 62, "the store needs room"),
        machine.compiled(CORE, State(Use.MISSING, "not compiled from this source")),
        machine.compiled(CORE, State(Use.OFF, "MAINSPRING_NATIVE=0")),
        machine.store(Path("nowhere"), lambda: 1 // 0),
    ]
    for finding in missing:
        assert not finding.good
        assert finding.costs
        assert finding.remedy
    assert [finding.fatal for finding in missing] == [False] * 10 + [True]
    assert "limit 8.0 MiB" in missing[4].found
    assert "for the time of 1.5 cores (/c/cpu.max, throttled in 77 of 244 periods)" in missing[1].found
    assert missing[2].found.startswith("300.0 MiB (/m/memory.max); ")


def test_what_is_there_is_good() -> None:
    assert machine.cores([0, 1, 2], 2, Limits()).good
    assert "core 1, 2, all else on core 0" in machine.cores([0, 1, 2], 2, Limits()).found
    assert machine.realtime(None, Limits()).good
    assert machine.locked_memory(8 << 20, True).good
    assert machine.locked_memory(resource.RLIM_INFINITY, False).good
    assert machine.wake_ups([10_000] * 99 + [9_000_000]).good
    assert machine.open_files(4096, 1000).good
    assert machine.compiled(CORE, State(Use.COMPILED, "library")).good
    assert machine.store(Path("store"), lambda: 3).good
    assert not machine.store(Path("store"), lambda: 0).good


def test_a_group_without_time_for_real_time_priority_is_named() -> None:
    refused = PermissionError(1, "Operation not permitted")
    assert "CAP_SYS_NICE" in machine.realtime(refused, Limits()).remedy
    remedy = machine.realtime(refused, Limits(no_realtime_by="/c/cpu.rt_runtime_us")).remedy
    assert remedy.startswith("let the control group have such threads: /c/cpu.rt_runtime_us is 0")


@pytest.mark.parametrize(
    ("by", "of", "free"), [("/m/memory.max", 2 << 30, "it"), ("", 8 << 30, "this machine's 8.0 GiB")]
)
def test_what_others_leave_of_the_memory_is_said_and_fitted(by: str, of: int, free: str) -> None:
    limits = Limits(memory_bytes=2 << 30, memory_by="/m/memory.max", room=Room(1 << 30, of, by))
    finding = machine.memory(limits)
    assert finding.good
    assert finding.found.startswith(f"2.0 GiB (/m/memory.max), 1.0 GiB of {free} free; ")
    assert "has 21 pages" in finding.found
    assert not machine.memory(msgspec.structs.replace(limits, room=Room(300 << 20, of, by))).good


def test_an_examination_covers_everything_and_finds_this_machine_fit(tmp_path: Path) -> None:
    findings = machine.examine(10, 1, tmp_path / "not" / "there", GatewayConfig())
    assert len({finding.subject for finding in findings}) == 12 + len(CORES)
    assert not [finding for finding in findings if finding.fatal and not finding.good]


def test_a_gateway_may_have_the_clients_that_it_is_configured_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 20_000)
    assert machine.connections(GatewayConfig()).good
    few = machine.connections(GatewayConfig(max_connections=50_000))
    assert not few.good
    assert "[gateway] max_connections is 50,000" in few.found
    assert "LimitNOFILE" in few.remedy
