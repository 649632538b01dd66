"""Products of a few rows read each weight once, in vectors, and compute what ONNX Runtime does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from onnx import helper

from mainspring.compiler.artifact.plan import MOST_THREADS
from mainspring.compiler.artifact.target import KNOWN, known_gpu
from mainspring.compiler.tvm.gemv import shares, threads_wanted
from tests.compiler.conftest import MakeModel
from tests.emulator.build import why_not
from tests.emulator.cases import Case, compile_case

emulated = pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here")


def compiled(make_model: MakeModel, rows: int, terms: int, columns: int) -> Case:
    """A fully connected layer with bias and activation."""
    drawn = np.random.default_rng(terms)
    weights = {
        "w": drawn.standard_normal((columns, terms)).astype(np.float32),
        "b": drawn.standard_normal(columns).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["c"], transB=1),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return compile_case(make_model(nodes, {"x": ["n", terms]}, {"y": ["n", columns]}, weights), rows)


def check(case: Case, folder: Path) -> None:
    for found, expected in zip(case.run(folder), case.outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))


# Large ones are summed in parts by a second kernel; a warp reads vectors, and 300 columns are not a whole
# number of them.
@emulated
@pytest.mark.parametrize(
    ("rows", "terms", "columns", "kernels"),
    [(1, 512, 200, 2), (3, 256, 1000, 2), (1, 64, 10, 1), (2, 91, 133, 1), (2, 300, 300, 2)],
)
def test_a_product_of_few_rows_computes_what_onnx_runtime_does(
    make_model: MakeModel, tmp_path: Path, rows: int, terms: int, columns: int, kernels: int
) -> None:
    case = compiled(make_model, rows, terms, columns)
    assert len(case.plan.launches) == kernels
    assert "atomic" not in case.source
    check(case, tmp_path)


@emulated
def test_weights_are_read_as_vectors_of_16_bytes(make_model: MakeModel) -> None:
    source = compiled(make_model, 1, 512, 256).source
    weights = re.findall(r"= \*\(float4\*\)\(lv\d*_ptr \+", source)
    assert len(weights) >= 4, "too few bytes are asked for at once"


@emulated
def test_more_rows_take_tiles(make_model: MakeModel) -> None:
    source = compiled(make_model, 4, 512, 256).source
    assert re.search(r"__shared__ .*reindex", source), "each row would read the weights again"


@given(st.integers(1, 5000), st.integers(1, 30000), st.sampled_from(sorted(KNOWN)))
def test_every_division_can_be_launched_and_has_equal_parts(columns: int, terms: int, arch: str) -> None:
    divided = shares(columns, terms, known_gpu(arch))
    assert 32 <= divided.threads * divided.depth <= MOST_THREADS
    assert terms % (divided.parts * divided.depth * divided.at_once) == 0
    assert not divided.vectors or columns % (4 * divided.threads) == 0


def test_a_large_matrix_keeps_every_multiprocessor_busy() -> None:
    for columns, terms in ((1000, 2048), (4096, 25088), (4096, 9216)):
        divided = shares(columns, terms, known_gpu("sm_90"))
        blocks = columns // (4 * divided.threads) * divided.parts
        assert divided.vectors
        assert blocks > 132


def test_faster_memory_is_asked_by_more_threads() -> None:
    h100 = known_gpu("sm_90")
    h200 = structs.replace(h100, memory_gb_s=4_915)
    assert threads_wanted(h100) == 512
    assert 512 < threads_wanted(h200) <= 1024
    assert shares(4096, 9216, h200).parts > shares(4096, 9216, h100).parts
