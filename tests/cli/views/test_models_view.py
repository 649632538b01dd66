"""The rows of ``mainspring models``, and the verb against a running cluster's status."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from mainspring.cli.views.models_view import rows, state_of, table
from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.status import ClusterStatus, ModelStatus

TENSOR = (TensorSpec("x", "float32", (4,)),)


def spec(name: str) -> ModelSpec:
    profile = Profile({1: 2_000_000, 2: 3_500_000}, 1_000_000)
    return ModelSpec(name, "w", "x", (1, 2), 100, (1,), TENSOR, TENSOR, {"cpu": profile})


def state(name: str, arrived: int, finished: int, late: int = 0) -> ModelStatus:
    workers = tuple(f"worker-{number}" for number in range(5 if name == "wide" else 1))
    return ModelStatus(
        name, 7, workers, workers, queued=3, arrived=arrived, finished=finished, late=late, rejected=1
    )


def status(*states: ModelStatus) -> ClusterStatus:
    return ClusterStatus("clockwork", (), states, 0, {})


SPECS = [spec("a"), spec("wide")]


def test_shares_are_of_the_time_since_the_look_before() -> None:
    before = {"a": state("a", 100, 90), "wide": state("wide", 10, 10)}
    found = rows(SPECS, status(state("a", 140, 120, late=4), state("wide", 20, 20)), before, 2.0)
    assert [(row.finished, row.late, row.goodput_share, row.goodput_per_s) for row in found] == [
        (30, 4, 0.75, 15.0),
        (10, 0, 0.25, 5.0),
    ]
    assert found[0].infer_ms == {"cpu": {1: 2.0, 2: 3.5}}


def test_without_a_look_before_counts_are_whole_and_none_is_no_share() -> None:
    assert [row.goodput_share for row in rows(SPECS, status(state("a", 5, 0)), {})] == [None]
    assert rows(SPECS, status(state("a", 5, 4)), {})[0].finished == 4


def test_counts_that_a_restarted_controller_began_anew_are_not_negative() -> None:
    found = rows(SPECS, status(state("a", 3, 2)), {"a": state("a", 100, 90)}, 1.0)
    assert found[0].finished == 2


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_never_cuts_a_name(width: int) -> None:
    name = "a-rather-long-name-of-a-model-000"
    output = StringIO()
    console = Console(file=output, width=width)
    console.print(table(rows([spec(name), spec("wide")], status(state(name, 9, 9), state("wide", 1, 1)), {})))
    text = output.getvalue()
    assert name in text
    assert "90.0%" in text
    assert "5 of 5" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


def test_a_model_takes_one_line_of_80_columns() -> None:
    busy = spec("resnet50-117")
    profile = Profile({1: 98_512_000, 2: 190_000_000, 16: 1_438_200_000}, 1_000_000)
    busy = msgspec.structs.replace(busy, profiles={"cpu": profile})
    output = StringIO()
    found = rows([busy], status(state(busy.name, 123_456, 100_000, late=1_234)), {}, 1.0)
    Console(file=output, width=80).print(table(found))
    head, line = output.getvalue().splitlines()
    assert head.split()[0] == "model"
    assert line.split()[:2] == ["resnet50-117", "7"]
    assert "98.51-1438" in line


def test_a_repositorys_model_has_the_profile_and_the_state_of_its_version() -> None:
    served = msgspec.structs.replace(spec("net"), served_as="net", version=2)
    states = {name: state(name, 1, 1) for name in ("net@1-0123456789ab", "net@2-0123456789ab", "a")}
    assert state_of(served, states) is states["net@2-0123456789ab"]
    assert state_of(spec("a"), states) is states["a"]
    assert state_of(spec("net"), states) is None
    found = rows([served], status(*states.values()), {})
    assert found[1].infer_ms == {"cpu": {1: 2.0, 2: 3.5}}


def test_an_unverified_model_is_marked() -> None:
    word = msgspec.structs.replace(state("word", 1, 1), verified=False)
    console = Console(width=80, record=True, file=StringIO())
    console.print(table(rows([], status(word, state("even", 1, 1)), {})))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines if "unverified" in line] == ["word"]


def test_an_erratic_model_is_marked() -> None:
    erratic = msgspec.structs.replace(state("wild", 1, 1), erratic=True)
    wild, even = rows([], status(erratic, state("even", 1, 1)), {})
    assert (wild.erratic, even.erratic) == (True, False)
    console = Console(width=80, record=True, file=StringIO())
    console.print(table([wild, even]))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines if "erratic" in line] == ["wild"]
