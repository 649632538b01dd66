"""What a spec asks for, before it is simulated: every number has a bound, and the whole has to fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mainspring.messages.tables import ConfigError
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator import estimate
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.costs import ControllerCost, ProcessCosts
from mainspring.simulator.spec import (
    Crash,
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    NetworkSpec,
    SimulationSpec,
    SpecError,
    Spell,
    Spread,
    WorkloadSpec,
)
from mainspring.simulator.spec_file import parse_spec

SPEC: dict[str, Any] = {
    "devices": [{"count": 1, "pages": 64}],
    "models": [{"name": "m", "infer_ms": {"1": 5.0}, "weights_mb": 20.0}],
    "workload": [{"rate": 50.0}],
    "duration_s": 1.0,
}
TABLES: dict[tuple[str, ...], type[msgspec.Struct]] = {
    (): SimulationSpec,
    ("devices", "0"): DeviceGroup,
    ("models", "0"): ModelGroup,
    ("workload", "0"): WorkloadSpec,
    ("network",): NetworkSpec,
    ("faults",): FaultsSpec,
    ("faults", "crashes", "0"): Crash,
    ("faults", "spells", "0"): Spell,
    ("faults", "spreads", "0"): Spread,
    ("cost", "controller"): ControllerCost,
    ("processes",): ProcessCosts,
    ("scheduler",): SchedulerConfig,
}


def numbers() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every number of a spec: its table and its key."""
    for path, struct in TABLES.items():
        for field in msgspec.structs.fields(struct):
            kind = str(field.type)
            if ("float" in kind or "int" in kind) and "dict" not in kind and "RowsSpec" not in kind:
                yield path, field.name
    yield ("models", "0", "infer_ms"), "1"
    yield ("cost", "controller", "handle_us"), "request_arrived"
    yield ("workload", "0"), "rows"


def spec_with(path: tuple[str, ...], name: str, value: object) -> dict[str, Any]:
    table = copy.deepcopy(SPEC)
    at: Any = table
    for place, step in enumerate(path):
        if step == "0":
            if not at:
                at.append({"worker": "worker-0", "at_s": 0.5} if "crashes" in path else {})
            at = at[0]
        else:
            at = at.setdefault(step, [] if path[place + 1 : place + 2] == ("0",) else {})
    at[name] = value
    return table


@pytest.mark.parametrize(("path", "name"), list(numbers()), ids=str)
def test_every_number_has_a_bound_that_its_error_names(path: tuple[str, ...], name: str) -> None:
    for value in (1e300, 1e20, 10**30):
        with pytest.raises(ConfigError, match=rf"{name}.* (at most|to|less than|below|a whole number)"):
            parse_spec(spec_with(path, name, value), "the spec")


def test_what_fits_no_machine_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**SPEC, "workload": [{"rate": 1e7}], "duration_s": 30e6}
    with pytest.raises(
        SpecError, match=r"about 3e\+14 requests.* need some 2.1e\+07 GB, and this machine has"
    ):
        build_cluster(parse_spec(table, "the spec"))
    monkeypatch.setattr(estimate, "MOST_MODELS", 10)
    with pytest.raises(SpecError, match="there are 11 models; at most 10"):
        build_cluster(parse_spec(spec_with(("models", "0"), "copies", 11), "the spec"))
    monkeypatch.setattr(estimate, "MOST_PAIRS", 10)
    with pytest.raises(SpecError, match="1 models on 11 devices are 11 pairs; at most 10"):
        build_cluster(parse_spec(spec_with(("devices", "0"), "count", 11), "the spec"))
    monkeypatch.undo()
    closed = {**SPEC, "workload": [{"kind": "closed", "concurrency": 100_000}]}
    closed["models"] = [{**SPEC["models"][0], "copies": 10}]
    build_cluster(parse_spec(closed, "the spec"))
    closed["models"] = [{**SPEC["models"][0], "copies": 11}]
    with pytest.raises(SpecError, match="keep 1,100,000 requests in flight; at most 1,000,000 may be"):
        build_cluster(parse_spec(closed, "the spec"))


def test_a_long_run_and_one_that_serves_nothing_are_told_first() -> None:
    spec = parse_spec({**SPEC, "workload": [{"rate": 1e4}], "duration_s": 3e3, "warm_up_s": 0}, "the spec")
    models = build_cluster(spec).models
    assert estimate.told_first(estimate.expected_requests(spec, models)) == (
        "mind: about 3e+07 requests, some 17 minutes and 2.1 GB of memory"
    )
    many = {**SPEC, "workload": [{"rate": 1e2, "rows": 1 << 20}], "duration_s": 3.0, "warm_up_s": 0}
    assert estimate.expected_requests(parse_spec(many, "the spec"), models) == pytest.approx(
        300 * (1 << 20) / models[0].batch_sizes[-1]
    ), "each is cut into pieces"
    assert not estimate.told_first(1e6)
    assert not estimate.hopeless(spec, models)
    spec = parse_spec(spec_with(("models", "0", "infer_ms"), "1", 1e7), "the spec")
    assert estimate.hopeless(spec, build_cluster(spec).models) == (
        "mind: none of the requests to 1 of 1 models can be in time: INFER of m takes 1e+07 ms at least, and"
        " its requests have 100 ms"
    )
