"""`simulate`: a spec played to its end, its report, its determinism and its agreement with itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer, Open, Reject, Result
from mainspring.messages.codes import Reason
from mainspring.messages.events import Event, ModelAdded
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    NetworkSpec,
    SimulationSpec,
    SpecError,
    WorkloadSpec,
)
from mainspring.simulator.spec_file import read_spec

INFER_MS = {"1": 2.6, "2": 4.0, "4": 6.0, "8": 10.0, "16": 17.3}


def model(name: str = "m", copies: int = 4) -> ModelGroup:
    return ModelGroup(name=name, infer_ms=INFER_MS, load_ms=8.3, weights_mb=102.0, copies=copies)


def spec(**changes: object) -> SimulationSpec:
    base = SimulationSpec(
        devices=(DeviceGroup(count=2),),
        models=(model(),),
        workload=(WorkloadSpec(rate=400.0),),
        warm_up_s=0.5,
        duration_s=2.0,
    )
    return msgspec.structs.replace(base, **changes)


def test_every_request_after_the_warm_up_is_in_the_summary_and_answered() -> None:
    run = simulate(spec(), validate_every=50)
    summary = run.summary
    assert 600 < summary.offered < 1000
    assert summary.offered == summary.goodput + summary.rejected_total + summary.late
    assert summary.lost == summary.unsent == 0
    assert summary.goodput_share > 0.99
    assert summary.duration_s == 2.0
    assert summary.offered_rate == summary.offered / 2.0
    assert summary.notes["ended"] == "finished"
    assert run.analysis is not None
    assert run.analysis.summary.infers > 100
    assert 0 < (run.analysis.summary.exec_utilisation or 0) < 1


def test_the_same_spec_gives_the_same_run_and_another_seed_another() -> None:
    again = [simulate(spec()).fingerprint for _ in range(2)]
    assert again[0] == again[1]
    assert simulate(spec(seed=1)).fingerprint != again[0]
    assert simulate(spec(), analyse=False, validate_every=7).fingerprint == again[0]


def test_a_closed_loop_goes_on_after_requests_that_nobody_answered() -> None:
    # Each of four requests in flight is given up after its 50 ms and the gateway's grace of 100 ms.
    workload = (WorkloadSpec(kind="closed", models="m-1", concurrency=4, slo_ms=50.0),)
    run = simulate(spec(workload=workload, network=NetworkSpec(output_loss_probability=1.0)))
    assert run.summary.offered == pytest.approx(4 * 2.0 / 0.15, abs=4)
    assert run.summary.rejected == {"timed_out": run.summary.offered}


def test_a_closed_loop_keeps_its_requests_in_flight_and_saturates_the_device() -> None:
    closed = WorkloadSpec(kind="closed", concurrency=16, slo_ms=500.0)
    run = simulate(spec(devices=(DeviceGroup(),), workload=(closed,)))
    most = 16 / INFER_MS["16"] * 1e3
    assert 0.9 * most < run.summary.goodput_rate <= 1.01 * most
    assert (run.summary.mean_batch or 0) > 15


def test_workloads_run_side_by_side_each_with_its_own_models_and_deadline() -> None:
    loads = (
        WorkloadSpec(models="tight*", rate=100.0, slo_ms=25.0),
        WorkloadSpec(models="batch*", kind="closed", concurrency=4, best_effort=True),
        WorkloadSpec(models="batch*", rate=50.0, slo_ms=200.0),
    )
    run = simulate(spec(models=(model("tight"), model("batch", 2)), workload=loads))
    sent, replied = run.records.columns()
    slos_ms = {int(value) // 1_000_000 for value in sent["slo_ns"] if value < 1 << 62}
    assert slos_ms == {25, 200}
    assert (replied["outcome"] == 1).mean() > 0.95
    best_effort = sent["slo_ns"] > 1 << 62
    in_flight = (sent["intended_ns"][best_effort] <= 10**9) & (replied["replied_ns"][best_effort] > 10**9)
    assert in_flight.sum() == 2 * 4


def test_latency_has_the_clients_way_and_deadlines_count_at_the_gateway() -> None:
    near = simulate(spec()).summary
    far = simulate(spec(network=NetworkSpec(client_delay_us=20_000.0))).summary
    assert far.p50_ms == pytest.approx((near.p50_ms or 0) + 40.0, abs=1.0)
    assert far.goodput_share == pytest.approx(near.goodput_share, abs=0.01)


def test_lost_outputs_are_answered_by_the_gateway_after_the_grace() -> None:
    summary = simulate(spec(network=NetworkSpec(output_loss_probability=0.1))).summary
    assert summary.lost == 0
    assert summary.rejected["timed_out"] > 30
    assert summary.reject_p50_ms == pytest.approx(200.0, abs=1.0)


def test_devices_of_another_speed_take_another_time() -> None:
    slow = simulate(spec(devices=(DeviceGroup(kind="slow", speed=0.5),), workload=(WorkloadSpec(rate=10.0),)))
    fast = simulate(spec(devices=(DeviceGroup(kind="fast", speed=2.0),), workload=(WorkloadSpec(rate=10.0),)))
    assert fast.analysis is not None
    assert slow.analysis is not None
    assert slow.analysis.infer.actual_ns().min() == pytest.approx(5.2e6, rel=0.01)
    assert fast.analysis.infer.actual_ns().min() == pytest.approx(1.3e6, rel=0.01)


def test_models_are_preloaded_where_they_fit() -> None:
    pages = -(-102_000_000 // (16 << 20))
    small = spec(devices=(DeviceGroup(count=2, pages=3 * pages),), models=(model(copies=4),))
    held = {name: len(each.resident) for name, each in build_cluster(small).preloaded.items()}
    assert held == {"worker-0": 3, "worker-1": 3}
    once = build_cluster(msgspec.structs.replace(small, preload="once")).preloaded
    assert [[m.name for m in each.resident] for each in once.values()] == [["m-1", "m-3"], ["m-2", "m-4"]]
    assert simulate(small).summary.cold_starts == 0
    assert simulate(msgspec.structs.replace(small, preload="none", warm_up_s=0.0)).summary.cold_starts > 0


def test_what_can_not_be_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(SpecError, match=r"m-1 needs 7 pages and no device has more than 6"):
        build_cluster(spec(devices=(DeviceGroup(pages=6),)))
    with pytest.raises(SpecError, match=r"no model is left of include = 'x\*'"):
        build_cluster(spec(models=(msgspec.structs.replace(model(), include="x*"),)))
    with pytest.raises(ValueError, match="needs workload"):
        spec(workload=())
    with pytest.raises(ValueError, match="differ in speed"):
        spec(devices=(DeviceGroup(), DeviceGroup(speed=2.0)))
    faults = msgspec.convert({"crashes": [{"worker": "w9", "at_s": 1.0}]}, FaultsSpec)
    with pytest.raises(SpecError, match="worker-0 to worker-1"):
        build_cluster(spec(faults=faults))


def test_a_recorded_log_is_played_again_with_its_arrivals(tmp_path: Path) -> None:
    from mainspring.telemetry.log import EventLogWriter

    log = EventLogWriter(tmp_path / "events")
    first = simulate(spec(), record=log.append)
    log.close()
    replayed = WorkloadSpec(kind="log", log=str(tmp_path / "events"))
    again = simulate(spec(workload=(replayed,), warm_up_s=0.0, duration_s=10.0))
    assert again.summary.offered > first.summary.offered
    assert again.summary.slo_ms == pytest.approx(99.9, abs=0.01)
    assert again.summary.goodput_share > 0.98


NEWCOMER = """
warm_up_s = 0.5
duration_s = 3
[[devices]]
count = 2
[[models]]
name = "old"
infer_ms = { 1 = 2.0, 4 = 5.0 }
copies = 3
[[models]]
name = "new"
infer_ms = { 1 = 4.0 }
copies = 2
at_s = 1.5
[[workload]]
rate = 150
[faults]
open_ms = OPEN_MS
"""


@pytest.mark.parametrize("open_ms", [120.0, 0.0])
def test_a_spec_has_models_that_come_while_others_are_served_and_what_it_takes_to_open_them(
    tmp_path: Path, open_ms: float
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(NEWCOMER.replace("OPEN_MS", str(open_ms)))
    read = read_spec(path)
    stream: list[tuple[int, Event | Command]] = []
    run = simulate(read, validate_every=20, record=lambda now_ns, entry: stream.append((now_ns, entry)))
    assert run.summary.lost == 0
    added = {entry.model.name: now_ns for now_ns, entry in stream if isinstance(entry, ModelAdded)}
    assert sorted(added) == ["new-1", "new-2", "old-1", "old-2", "old-3"]
    assert {name for name, now_ns in added.items() if now_ns == 0} == {"old-1", "old-2", "old-3"}
    assert all(added[name] >= 1_500_000_000 for name in ("new-1", "new-2"))
    # Copies share an executable, which each device opens once.
    opens = [entry for _, entry in stream if isinstance(entry, Open)]
    assert len({entry.worker for entry in opens}) == len(opens) == (2 if open_ms else 0)
    ids = {entry.action_id for entry in opens}
    took_ns = [e.end_ns - e.begin_ns for _, e in stream if isinstance(e, Result) and e.action_id in ids]
    assert took_ns == pytest.approx([open_ms * 1e6] * len(opens), rel=0.01)
    served = {entry.model for _, entry in stream if isinstance(entry, Infer)}
    assert {"new-1", "new-2"} <= served
    unknown = [now_ns for now_ns, e in stream if isinstance(e, Reject) and e.reason is Reason.UNKNOWN_MODEL]
    assert unknown
    assert max(unknown) < min(added["new-1"], added["new-2"]) + 1_000_000
