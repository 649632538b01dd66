"""In FP16 matrices and filters lie in memory as FP16, and every kind of kernel reads them so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from mainspring.compiler.artifact.manifest import FP16, FP32, TF32
from mainspring.compiler.tvm.line import as_stored, halved
from tests.compiler.conftest import Array, MakeModel
from tests.compiler.tvm.conftest import MakeNetwork
from tests.emulator.build import why_not
from tests.emulator.cases import Case, compile_case

emulated = pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here")


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def bytes_of(case: Case) -> int:
    return sum(array.nbytes for array in case.weights)


def test_matrices_and_filters_lie_as_fp16_vectors_and_what_fp16_has_no_number_for_do_not() -> None:
    weights = [numbers(4, 6), numbers(6), numbers(1, 1, 8), numbers(3, 3, 4, 1), numbers(2, 2) * 1e5]
    weights.append(np.arange(8).reshape(2, 4))
    halves = halved(weights, FP16)
    assert halves == {0, 3}
    assert [str(array.dtype) for array in as_stored(weights, halves)] == [
        *("float16", "float32", "float32", "float16", "float32", "int64")
    ]
    assert not halved(weights, FP32)
    assert not halved(weights, TF32)


# Small products and large ones that a second kernel adds; 300 columns are not a whole number of vectors.
@emulated
@pytest.mark.parametrize(
    ("rows", "terms", "columns", "vectors"),
    [(1, 512, 200, True), (3, 256, 1024, True), (2, 300, 300, False)],
)
def test_a_product_of_few_rows_reads_halves_and_adds_in_32_bits(
    make_model: MakeModel, tmp_path: Path, rows: int, terms: int, columns: int, vectors: bool
) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["c"], transB=1),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    given = {"w": numbers(columns, terms), "b": numbers(columns)}
    model = make_model(nodes, {"x": ["n", terms]}, {"y": ["n", columns]}, given)
    case = compile_case(model, rows, FP16)
    assert bytes_of(case) == 2 * terms * columns + 4 * columns
    assert ("*(half4*)" in case.source) == vectors
    (found,) = case.run(tmp_path)
    (x,) = case.inputs
    weights = given["w"].astype(np.float16).astype(np.float64)
    expected = np.maximum(x.astype(np.float64) @ weights.T + given["b"], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(found - case.outputs[0]).max() > 1e-4, "no weight was rounded"


@emulated
def test_a_network_takes_half_the_room_and_gives_what_onnx_runtime_does_within_its_tolerance(
    make_network: MakeNetwork, tmp_path: Path
) -> None:
    exact, short = (compile_case(make_network(), 2, precision) for precision in (FP32, FP16))
    vectors = sum(array.nbytes for array in short.weights if array.dtype == np.float32)
    assert bytes_of(short) - vectors == (bytes_of(exact) - vectors) // 2 > 0
    for found, expected in zip(short.run(tmp_path), short.outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
        assert np.abs(found - expected).max() > 1e-6, "nothing was rounded"
