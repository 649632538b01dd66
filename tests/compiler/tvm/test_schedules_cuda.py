"""Every way to divide a sum among blocks and threads computes what ONNX Runtime does, on the emulated GPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring.compiler.artifact.plan import Launch, Operand
from mainspring.compiler.tvm import build, schedules_cuda
from mainspring.compiler.tvm.tiles import TILES, Choice
from tests.compiler.conftest import MakeModel
from tests.emulator.build import why_not
from tests.emulator.cases import Case, compile_case

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here")

CHANNELS, WIDTH = 20, 7
FILTERS = 24


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def convolution(make_model: MakeModel, channels: int = CHANNELS) -> onnx.ModelProto:
    """A padded convolution with bias, residual and activation."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = {"x": ["n", channels, WIDTH, WIDTH], "r": ["n", FILTERS, WIDTH, WIDTH]}
    weights = {"w": weight(FILTERS, channels, 3, 3), "b": weight(FILTERS)}
    return make_model(nodes, inputs, {"y": ["n", FILTERS, WIDTH, WIDTH]}, weights)


@contextmanager
def always(choice: Choice) -> Iterator[None]:
    # What was compiled otherwise is kept for copies of the architecture.
    build._architecture.cache_clear()
    with mock.patch.object(schedules_cuda, "choose", return_value=choice):
        yield
    build._architecture.cache_clear()


def check(case: Case, folder: Path) -> None:
    for found, expected in zip(case.run(folder), case.outputs, strict=True):
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)


def sums(case: Case) -> list[Launch]:
    return [launch for launch in case.plan.launches if "conv2d" in launch.kernel]


def scratch(launch: Launch) -> list[Operand]:
    return [each for each in launch.arguments if isinstance(each, Operand) and each.region == "workspace"]


# 180 terms in slices of 16: four parts have whole slices, five end in one that is padded.
@pytest.mark.parametrize(("tile", "parts"), [(0, 2), (2, 4), (5, 5), (9, 3)])
def test_parts_of_the_terms_are_added_by_a_second_kernel(
    make_model: MakeModel, tmp_path: Path, tile: int, parts: int
) -> None:
    with always(Choice(TILES[tile], parts)):
        case = compile_case(convolution(make_model), 2)
    partial, adding = sums(case)
    assert partial.grid[2] == parts
    (written,) = (each for each in scratch(partial) if each.writes)
    assert any(each.offset == written.offset and not each.writes for each in scratch(adding))
    assert "atomic" not in case.source, "the order of additions would differ from run to run"
    check(case, tmp_path)


def test_a_function_takes_every_choice_that_it_is_offered(make_model: MakeModel) -> None:
    from mainspring.compiler.reference import Prepared
    from mainspring.compiler.tvm.graph import portable
    from mainspring.compiler.tvm.kernels import cuda_target, generate_cuda
    from mainspring.compiler.tvm.lowering import lower

    parts = portable(Prepared(convolution(make_model), 2))
    functions = lower(parts.graph, 2, parts.info.inputs, parts.info.weights).functions
    offered = {name: schedules_cuda.candidates(each, 132) for name, each in functions.items()}
    (name,) = (name for name, choices in offered.items() if choices)
    assert {choice.parts for choice in offered[name]} > {1, 2}
    for choice in offered[name]:
        generated = generate_cuda(
            {name: functions[name]},
            cuda_target("sm_90"),
            functools.partial(schedules_cuda.schedule_cuda, processors=132, chosen={name: choice}),
        )
        first, *others = generated.calls[name]
        assert len(others) == (choice.parts > 1)
        assert first.block[0] * first.block[1] == choice.tile.threads


@pytest.mark.parametrize(("channels", "vectors"), [(CHANNELS, 2), (7, 1)])
def test_slices_are_copied_in_vectors_where_neighbours_are_adjacent(
    make_model: MakeModel, tmp_path: Path, channels: int, vectors: int
) -> None:
    """Of 7 channels every fourth group would reach into the next pixel; filters are adjacent all the same."""
    with always(Choice(TILES[2], 2)):
        case = compile_case(convolution(make_model, channels), 1)
    copied = set(re.findall(r"\*\(float4\*\)\((\w+_shared)_ptr [^=]*\) = ", case.source))
    assert len(copied) == vectors
    check(case, tmp_path)
