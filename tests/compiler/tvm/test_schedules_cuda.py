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
from msgspec import structs
from onnx import helper

from mainspring.compiler.artifact.plan import Launch, Operand, Shape
from mainspring.compiler.artifact.target import known_gpu
from mainspring.compiler.tvm import build, schedules
from mainspring.compiler.tvm.tiles import TILES, Choice
from mainspring.compiler.zoo.catalogue import build as zoo
from tests.compiler.conftest import MakeModel
from tests.compiler.tvm.conftest import copying_ahead
from tests.emulator.build import EmulationError, why_not
from tests.emulator.cases import Case, compile_case

H100 = known_gpu("sm_90")

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
    with mock.patch.object(schedules, "choose", return_value=choice):
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
    from mainspring.compiler.tvm.kernels import cuda_target, generate_cuda
    from mainspring.compiler.tvm.lowering import lower, portable

    parts = portable(Prepared(convolution(make_model), 2))
    functions = lower(parts.graph, Shape(2), parts.info.inputs, parts.info.weights).functions
    products = {name: schedules.product_of(each) for name, each in functions.items()}
    ((name, product),) = ((name, each) for name, each in products.items() if each is not None)
    offered = schedules.candidates(functions[name], product, H100)
    assert {choice.parts for choice in offered} > {1, 2}
    assert not offered[0].ahead
    assert {choice.ahead for choice in offered} == {False, True}
    older = schedules.candidates(functions[name], product, structs.replace(H100, arch="sm_75"))
    assert older == tuple(choice for choice in offered if not choice.ahead)
    for choice in offered:
        generated = generate_cuda(
            {name: functions[name]},
            cuda_target(H100),
            functools.partial(schedules.schedule_cuda, gpu=H100, chosen={name: choice}),
        )
        first, *others = generated.calls[name]
        assert len(others) == (choice.parts > 1)
        assert first.block[0] * first.block[1] == choice.tile.threads


@pytest.mark.parametrize(
    ("tile", "parts", "channels"), [(0, 1, CHANNELS), (2, 4, CHANNELS), (1, 1, 7), (9, 3, 7)]
)
def test_slices_are_copied_in_the_background_while_others_are_multiplied(
    make_model: MakeModel, tmp_path: Path, tile: int, parts: int, channels: int
) -> None:
    model = convolution(make_model, channels)
    with always(Choice(TILES[tile], parts)):
        plain = compile_case(model, 2)
    with always(Choice(TILES[tile], parts, ahead=True)):
        case = compile_case(model, 2)
    assert plain.source.count("__syncthreads();") == 2
    assert case.source.count("__syncthreads();") == 1, "one barrier for each slice"
    assert "mainspring_copy_" not in plain.source
    copied = set(re.findall(r"mainspring_copy_(\d+)\(\(&", case.source))
    assert copied == ({"16"} if channels % 4 == 0 else {"16", "4"})
    check(case, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "batch_size"), [("resnet20", 1), ("bert-tiny", 4), ("squeezenet", 1)])
def test_models_whose_slices_are_copied_ahead_give_what_onnx_runtime_does(
    name: str, batch_size: int, tmp_path: Path
) -> None:
    with copying_ahead():
        case = compile_case(zoo(name), batch_size)
    assert case.source.count("mainspring_wait();") >= 5
    check(case, tmp_path)


@pytest.mark.parametrize("missing", ["mainspring_wait();", "__syncthreads();", "mainspring_commit();"])
def test_a_kernel_that_does_not_wait_for_its_copies_is_found(
    make_model: MakeModel, tmp_path: Path, missing: str
) -> None:
    with always(Choice(TILES[2], ahead=True)):
        case = compile_case(convolution(make_model), 1)
    assert case.source.count(f"    {missing}\n") == 1
    broken = case._replace(source=case.source.replace(f"    {missing}\n", "\n"))
    with pytest.raises(EmulationError, match=r"shared memory|did not wait for"):
        broken.run(tmp_path)


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
