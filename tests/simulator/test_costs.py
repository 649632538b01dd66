"""The controller's own cost in virtual time: a slow scheduler looks slow."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.simulator.calibrate import cost_toml
from mainspring.simulator.costs import COMMANDS, EVENTS, ControllerCost, CostSpec, ProcessCosts
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec

SPEC = SimulationSpec(
    devices=(DeviceGroup(count=2),),
    models=(ModelGroup(name="m", infer_ms={"1": 2.6, "4": 6.0, "16": 17.3}, copies=4),),
    workload=(WorkloadSpec(rate=100.0),),
    warm_up_s=0.2,
    duration_s=2.0,
)


def charged(microseconds: float, **more: float) -> CostSpec:
    handled = dict.fromkeys(("request_arrived", "result"), microseconds)
    return CostSpec(mode="table", controller=ControllerCost(handle_us=handled, **more))  # type: ignore[arg-type]


def p50_ms(spec: SimulationSpec) -> float:
    value = simulate(spec, validate_every=50).summary.p50_ms
    assert value is not None
    return value


def test_a_request_waits_for_the_controller_as_long_as_it_costs() -> None:
    free, slow = SPEC, msgspec.structs.replace(SPEC, cost=charged(500.0, schedule_us=300.0))
    assert p50_ms(slow) - p50_ms(free) == pytest.approx(0.8, abs=0.25)
    summary = simulate(slow).summary
    least_s = 2 * summary.offered * 0.0008
    assert least_s < float(summary.notes["controller_busy_s"] or 0) < 2 * least_s, "turns for alarms cost too"


def test_a_controller_that_is_too_slow_for_the_load_fails_it() -> None:
    overloaded = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=800.0),), cost=charged(2000.0))
    summary = simulate(overloaded).summary
    assert summary.goodput_share < 0.5
    assert summary.lost == 0, "the gateway answers what the controller does not get to"
    assert simulate(msgspec.structs.replace(overloaded, cost=CostSpec())).summary.goodput_share > 0.99


def test_a_table_is_deterministic_and_what_was_measured_is_not_free() -> None:
    spec = msgspec.structs.replace(SPEC, cost=charged(50.0, send_us=5.0, log_us=2.0, receive_us=7.0))
    assert simulate(spec).fingerprint == simulate(spec).fingerprint != simulate(SPEC).fingerprint
    measured = simulate(msgspec.structs.replace(SPEC, cost=CostSpec(mode="measured"))).summary
    assert float(measured.notes["controller_busy_s"] or 0) > 0


def test_events_that_wait_are_taken_in_a_burst_with_one_schedule() -> None:
    dense = (WorkloadSpec(rate=2000.0, slo_ms=500.0),)
    cost = charged(0.0, schedule_us=5000.0)
    turns = {}
    for burst in (1, 16):
        each = msgspec.structs.replace(
            cost, controller=msgspec.structs.replace(cost.controller, burst_messages=burst)
        )
        summary = simulate(msgspec.structs.replace(SPEC, workload=dense, cost=each)).summary
        turns[burst] = summary.goodput
    assert turns[16] > 3 * turns[1]


def test_what_gateway_and_worker_cost_adds_to_the_latency() -> None:
    processes = ProcessCosts(
        gateway_arrival_us=100, gateway_reply_us=200, gateway_dispatch_us=300,
        worker_input_us=400, worker_action_us=500, worker_result_us=600, worker_turn_us=700,
    )  # fmt: skip
    quiet = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=10.0),))
    added = p50_ms(msgspec.structs.replace(quiet, processes=processes)) - p50_ms(quiet)
    assert added == pytest.approx(2.1, abs=0.05)


def test_a_cost_that_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"handle_us\.result is -1"):
        ControllerCost(handle_us={"result": -1.0})
    with pytest.raises(ValueError, match="handle_us has no kind 'request_arived'; did you mean 'request_arr"):
        ControllerCost(handle_us={"request_arived": 5.0})
    with pytest.raises(
        ValueError, match="command_us has no kind 'xyzzy'; there are chosen, drop_worker, infer, load"
    ):
        ControllerCost(command_us={"xyzzy": 5.0})
    with pytest.raises(ValueError, match="burst_messages is 0"):
        ControllerCost(burst_messages=0)
    with pytest.raises(ValueError, match="worker_turn_us is inf"):
        ProcessCosts(worker_turn_us=float("inf"))


def test_a_calibrated_table_names_what_its_load_did_not_have() -> None:
    cost = ControllerCost(handle_us=dict.fromkeys(EVENTS, 1.0), command_us=dict.fromkeys(COMMANDS, 1.0))
    assert "Free" not in cost_toml(cost)
    some = msgspec.structs.replace(cost, command_us={"infer": 1.0, "load": 1.0})
    assert cost_toml(some).endswith(
        "none: chosen, drop_worker, open, prepare, provide, reject, release, unload"
    )
