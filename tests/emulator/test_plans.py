"""Launch plans for a GPU, run by the emulator: their outputs are those of stock ONNX Runtime.

No GPU is needed, and none could say as much: the workspace begins as NaNs, every access has its bounds, and
threads that are not ordered may not touch the same memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from mainspring.compiler.artifact.plan import Launch, Operand
from mainspring.compiler.zoo.catalogue import build
from tests.emulator.build import EmulationError
from tests.emulator.cases import Case, compile_case, main

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")
pytestmark = pytest.mark.timeout(900)


def smaller(model: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Give a ResNet smaller images: a fiftieth of the work, in the same kernels at other sizes."""
    for axis in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        axis.dim_value = width
    pool = next(node for node in model.graph.node if node.op_type == "AveragePool")
    pool.op_type = "GlobalAveragePool"
    del pool.attribute[:]
    return model


@pytest.mark.parametrize(
    ("name", "batch_size", "width"),
    [("squeezenet", 1, 224), ("resnet50", 2, 64)],
)
def test_plan_computes_what_onnx_runtime_does(name: str, batch_size: int, width: int, tmp_path: Path) -> None:
    model = build(name)
    case = compile_case(model if width == 224 else smaller(model, width), batch_size)
    assert len(case.plan.launches) > 25
    for found, expected in zip(case.run(tmp_path), case.outputs, strict=True):
        assert found.shape == expected.shape
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)


@pytest.fixture(scope="module")
def digits() -> Case:
    """The zoo's smallest convolutional network, at two rows."""
    return compile_case(build("digits"), 2)


def test_digits_computes_what_onnx_runtime_does(digits: Case, tmp_path: Path) -> None:
    for found, expected in zip(digits.run(tmp_path), digits.outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_program_says_how_far_a_model_of_the_zoo_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digits", "nobody"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert re.match(r"digits: \d+ launches, largest difference \d\.\de-0[5-9] of the largest output", first)
    assert second.startswith("nobody: ")


def test_a_generated_kernel_without_one_of_its_barriers_is_found(digits: Case, tmp_path: Path) -> None:
    """The first barrier that stands between writing and reading shared memory, taken out."""
    barriers = list(re.finditer(r"^ *__syncthreads\(\);\n", digits.source, re.MULTILINE))
    assert barriers
    missed = []
    for number, barrier in enumerate(barriers[:2]):
        source = digits.source[: barrier.start()] + "\n" + digits.source[barrier.end() :]
        try:
            digits._replace(source=source).run(tmp_path / str(number))
        except EmulationError as error:
            assert re.search("race|which no thread of its block wrote before", str(error)), error  # noqa: PT017
        else:
            missed.append(digits.source[: barrier.start()].count("\n") + 1)
    assert not missed, f"nothing was said of the barriers of lines {missed}"


def altered(case: Case, position: int, argument: int, **changes: object) -> Case:
    """Change one operand of one launch."""
    launches = list(case.plan.launches)
    arguments = list(launches[position].arguments)
    operand = arguments[argument]
    assert isinstance(operand, Operand)
    arguments[argument] = msgspec.structs.replace(operand, **changes)
    launches[position] = msgspec.structs.replace(launches[position], arguments=tuple(arguments))
    return case._replace(plan=msgspec.structs.replace(case.plan, launches=tuple(launches)))


def reader_of(case: Case, region: str = "workspace") -> tuple[int, int, Operand]:
    """Return the first launch that reads from a region, and which of its arguments does."""
    for position, launch in enumerate(case.plan.launches):
        for index, operand in enumerate(launch.arguments):
            if isinstance(operand, Operand) and operand.region == region and not operand.writes:
                return position, index, operand
    raise AssertionError(f"no launch reads the {region}")


def test_a_plan_that_reads_beside_its_tensor_is_found(digits: Case, tmp_path: Path) -> None:
    position, index, operand = reader_of(digits, "weights")
    wrong = altered(digits, position, index, size_bytes=operand.size_bytes - 64)
    with pytest.raises(EmulationError, match=rf"launch {position} .*out of bounds: it reads"):
        wrong.run(tmp_path)


def test_a_plan_that_reads_too_early_is_found(digits: Case, tmp_path: Path) -> None:
    """The launch before is left out, so nobody wrote what this one reads."""
    position, _, _ = reader_of(digits)
    launches: list[Launch] = list(digits.plan.launches)
    del launches[position - 1]
    plan = msgspec.structs.replace(digits.plan, launches=tuple(launches))
    with pytest.raises(
        EmulationError, match=rf"launch {position - 1} .*it reads byte .*, which nobody wrote"
    ):
        digits._replace(plan=plan).run(tmp_path)


def test_a_plan_that_lays_a_result_over_what_is_still_read_is_found(digits: Case, tmp_path: Path) -> None:
    position, _, operand = reader_of(digits)
    outputs = [
        index
        for index, each in enumerate(digits.plan.launches[position].arguments)
        if isinstance(each, Operand) and each.writes and each.region == "workspace"
    ]
    wrong = altered(digits, position, outputs[0], offset=operand.offset)
    with pytest.raises(EmulationError, match="overlaps another argument"):
        wrong.run(tmp_path)


def test_a_grid_that_is_too_small_is_found(digits: Case, tmp_path: Path) -> None:
    position = next(index for index, each in enumerate(digits.plan.launches) if each.grid[0] > 1)
    launches = list(digits.plan.launches)
    x, y, z = launches[position].grid
    launches[position] = msgspec.structs.replace(launches[position], grid=(x - 1, y, z))
    plan = msgspec.structs.replace(digits.plan, launches=tuple(launches))
    with pytest.raises(
        EmulationError, match=rf"launch {position} .* left byte \d+ of argument \d+ unwritten"
    ):
        digits._replace(plan=plan).run(tmp_path)
