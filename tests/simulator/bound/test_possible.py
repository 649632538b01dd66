"""What was possible for the requests of a run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.simulator.bound import possible as module
from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound
from mainspring.simulator.bound.possible import deadlines, in_time, possible
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.run import NoBound, bounded, simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.telemetry.report import Possible
from mainspring.traces.records import Records

SPEC = SimulationSpec(
    devices=(DeviceGroup(),),
    models=(ModelGroup(name="m", infer_ms={"1": 2.6, "4": 6.0, "16": 17.3}, copies=4),),
    workload=(WorkloadSpec(rate=1100.0, slo_ms=50.0),),
    warm_up_s=0.2,
    duration_s=0.8,
)


def found(spec: SimulationSpec, asked: bool | None = None) -> Possible | None:
    cluster = build_cluster(spec)
    return bounded(simulate(spec, cluster=cluster, analyse=False), cluster, asked=asked).summary.possible


def test_an_overloaded_device_is_told_what_share_it_reached() -> None:
    bound = found(SPEC)
    assert bound is not None
    assert bound.requests > 700
    assert bound.in_time < bound.at_most < bound.requests
    assert 0.7 < bound.share < 1
    assert bound == found(SPEC), "the same run has the same bound"


def test_a_run_that_answered_all_in_time_reached_all_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "goodput_bound", None)
    light = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=100.0),))
    bound = found(light)
    assert bound is not None
    assert bound.requests == bound.in_time == bound.at_most > 50
    assert bound.share == 1.0


def test_a_bound_in_stretches_is_close_to_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(SPEC)
    monkeypatch.setattr(module, "STRETCH_REQUESTS", 300)
    parts = found(SPEC)
    assert whole is not None
    assert parts is not None
    assert whole.requests == parts.requests
    assert whole.at_most * 0.99 < parts.at_most < whole.at_most * 1.3


def test_long_runs_are_bounded_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_REQUESTS", 500)
    assert found(SPEC) is None
    assert found(SPEC, asked=True) is not None
    monkeypatch.setattr(module, "QUICK_REQUESTS", 5_000)
    assert found(SPEC, asked=False) is None


def test_progress_goes_from_nothing_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRETCH_REQUESTS", 500)
    cluster = build_cluster(SPEC)
    told: list[float] = []
    bounded(simulate(SPEC, cluster=cluster, analyse=False), cluster, progress=told.append)
    assert told == sorted(told)
    assert told[0] < 0.05
    assert told[-1] == pytest.approx(1.0)


def test_requests_without_a_deadline_do_not_count() -> None:
    free = WorkloadSpec(rate=200.0, best_effort=True)
    both = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=100.0), free))
    bound = found(both)
    assert bound is not None
    assert bound.requests < 150
    assert found(msgspec.structs.replace(SPEC, workload=(free,))) is None


def test_closed_loop_clients_under_deadlines_have_no_bound() -> None:
    closed = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(kind="closed"),))
    assert found(closed) is None
    with pytest.raises(NoBound, match="depends on the answers"):
        found(closed, asked=True)


def test_rows_count_as_parts_of_batches_and_what_fits_in_none_can_not_be_served() -> None:
    records = Records()
    for number in range(40):
        records.sent(number * 1_000_000, number * 1_000_000, "m-1", 4, 20_000_000)
    records.sent(50_000_000, 50_000_000, "unknown", 1, 20_000_000)
    records.sent(51_000_000, 51_000_000, "m-2", 17, 20_000_000)
    cluster = build_cluster(SPEC)
    bound = possible(records, cluster.models, cluster.workers)
    assert bound is not None
    assert (bound.requests, bound.in_time) == (42, 0) == (deadlines(records), in_time(records))
    # Four rows take 6.0 ms alone and 17.3 ms by four: some 58 ms of time are for these.
    arrival_ns = np.arange(40) * 1_000_000
    table = {"gpu": {1: 6_000_000, 4: 17_300_000}}
    alone = goodput_bound([Stream(arrival_ns, arrival_ns + 20_000_000, table)], Fleet({"gpu": 1}))
    assert bound.at_most == pytest.approx(alone.requests, rel=0.01)
    assert 8 < bound.at_most < 15
