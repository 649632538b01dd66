"""Sizes of open dimensions in workloads: how they are said, drawn, and cut to what a model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.messages.model import ModelSpec, OpenDim, Symbol, Term
from mainspring.traces.arrival import WorkloadError
from mainspring.traces.generators import Poisson, closed_loop
from mainspring.traces.inputs import Inputs
from mainspring.traces.shapes import parse_distribution, parse_shapes, with_shapes
from mainspring.traces.source import Playable


def open_spec(make_spec: Any, name: str = "m") -> ModelSpec:
    spec: ModelSpec = make_spec(name, (64, 3))
    (tensor,) = spec.inputs
    opened = msgspec.structs.replace(tensor, open=(OpenDim(0, (Term(0),)),))
    return msgspec.structs.replace(spec, inputs=(opened,), symbols=(Symbol("seq", (16, 64), 2),))


def drawn(workload: Playable, count: int = 200) -> list[tuple[int, ...]]:
    source = workload.source(np.random.default_rng(3))
    return [source.take().sizes for _ in range(count)]


def poisson(*models: str) -> Playable:
    return Poisson(dict.fromkeys(models, 1_000.0)).cut(0, 10**10)


@pytest.mark.parametrize(
    ("text", "found"),
    [("12", {12}), ("12,30,30", {12, 30}), ("3-5", {3, 4, 5}), ("40~0", {40}), ("1", {2}), ("900", {64})],
)
def test_sizes_are_drawn_as_they_are_said(make_spec: Any, text: str, found: set[int]) -> None:
    workload = with_shapes(poisson("m"), [open_spec(make_spec)], {"seq": text})
    assert {*drawn(workload)} == {(size,) for size in found}


def test_lengths_of_a_file_come_as_often_as_they_stand_there(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("5 9\n9\n9\n")
    shapes = {"seq": f"@{tmp_path / 'lengths.txt'}"}
    sizes = drawn(with_shapes(poisson("m"), [open_spec(make_spec)], shapes), 400)
    assert 0.65 < sizes.count((9,)) / len(sizes) < 0.85


def test_half_of_the_sizes_are_below_a_median(make_spec: Any) -> None:
    workload = with_shapes(poisson("m"), [open_spec(make_spec)], {"seq": "20~0.7"})
    sizes = [size for (size,) in drawn(workload, 1_000)]
    assert 18 <= np.median(sizes) <= 22
    assert (min(sizes), max(sizes)) == (min(max(2, min(sizes)), 10), 64), "cut at the limit alone"


def test_a_model_without_a_distribution_gets_its_limits_and_one_without_symbols_nothing(
    make_spec: Any,
) -> None:
    models = [open_spec(make_spec, "m"), make_spec("plain", (4,))]
    source = with_shapes(poisson("m", "plain"), models, {}).source(np.random.default_rng(1))
    arrivals = [source.take() for _ in range(50)]
    assert {(each.model, each.sizes) for each in arrivals} == {("m", (64,)), ("plain", ())}


def test_the_same_seed_draws_the_same_and_arrivals_are_as_without(make_spec: Any) -> None:
    workload = with_shapes(poisson("m"), [open_spec(make_spec)], {"seq": "1-64"})
    assert drawn(workload) == drawn(workload)
    ours, plain = (each.source(np.random.default_rng(3)) for each in (workload, poisson("m")))
    assert [ours.take().time_ns for _ in range(50)] == [plain.take().time_ns for _ in range(50)]


def test_a_closed_loop_goes_on_with_answers(make_spec: Any) -> None:
    loop = closed_loop(["m"], concurrency=1, duration_ns=10**9, slo_ns=None)
    source = with_shapes(loop, [open_spec(make_spec)], {"seq": "7"}).source(np.random.default_rng(0))
    first = source.take()
    assert (first.sizes, source.next_ns()) == ((7,), None)
    source.completed(first.client, 500_000_000)
    assert source.next_ns() == 500_000_000
    assert not source.done(0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "many",
        "5-3",
        "0-3",
        "1-2-3",
        "20~",
        "0~1",
        "20~-1",
        "3,x",
        "nan",
        "26~1e308",
        "1e308~1",
        f"1-{10**30}",
        "1e300",
    ],
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"are none of: 128; 12,30,64; 1-128"):
        parse_distribution(text)


def test_files_and_dimensions_that_are_not_there_are_named(make_spec: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="can't be read: No such file"):
        parse_distribution(f"@{tmp_path / 'none.txt'}")
    with pytest.raises(WorkloadError, match="an open dimension 'width'; there is seq"):
        with_shapes(poisson("m"), [open_spec(make_spec)], {"width": "3"})
    with pytest.raises(WorkloadError, match="is no new dimension"):
        parse_shapes(["seq=1", "seq=2"])


def test_inputs_of_any_size_are_the_beginning_of_the_largest(make_spec: Any) -> None:
    inputs = Inputs([open_spec(make_spec)], np.random.default_rng(0))
    _, (largest,) = inputs.get("m", 2)
    (header,), (frame,) = inputs.get("m", 2, (5,))
    assert header.shape == (2, 5, 3)
    assert bytes(frame.buffer) == bytes(largest.buffer)[: 2 * 5 * 3 * 4]
