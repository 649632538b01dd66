"""Branches that a number of the request decides: each is tried, and so served at its own sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from mainspring.compiler.artifact.errors import CompileError, ExecutableError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.samples import Arrays, Choices, compared_numbers
from mainspring.messages.model import TensorSpec
from tests.compiler.conftest import RunStored

RATE = 16_000
INPUTS = (TensorSpec("x", "float32", (4,)), TensorSpec("rate", "int64", ()))


def branches() -> onnx.ModelProto:
    """A filter of 16 samples at the rate, of 8 at any other: it has to fit once, and less than twice."""
    model: onnx.ModelProto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[L] x, int64 rate) => (float[4] y) <int64 known = {{{RATE}}}, int64[3] flat = {{1, 1, -1}},
           int64[1] four = {{4}}> {{
            e = Equal(rate, known)
            u = Reshape(x, flat)
            y = If (e) <
                then_branch = many () => (float[4] a) {{
                    h = Conv<strides=[16]>(u, w16) a = Reshape(h, four) }},
                else_branch = few () => (float[4] b) {{
                    k = Conv<strides=[8]>(u, w8) b = Reshape(k, four) }}
            >
        }}"""
    )
    random = np.random.default_rng(0)
    for size in (8, 16):
        weight = random.standard_normal((4, 1, size)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{size}"))
    return model


def test_a_model_is_served_at_the_sizes_of_all_its_branches(
    store: Store, run_stored: RunStored, tmp_path: Path
) -> None:
    onnx.save_model(branches(), tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, most={}).manifest
    (length,) = manifest.symbols
    assert (length.name, length.least, length.limit) == ("L", 8, 31)
    stock = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size, rate in ((8, 8_000), (15, 0), (16, RATE), (31, RATE)):
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        (found,) = run_stored(store, manifest, [x[None], np.array([rate])], (size,))
        (expected,) = stock.run(None, {"x": x, "rate": np.array(rate)})
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ExecutableError):
        run_stored(store, manifest, [np.zeros((1, 31), np.float32), np.array([8_000])], (31,))


def test_numbers_are_those_that_an_input_is_compared_with() -> None:
    assert compared_numbers(branches().graph) == {"rate": [RATE]}
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64 a, float b, bool c) => (float y) {
            limit = Constant<value = int64 {5}>() f = Less(a, limit)
            half = Constant<value = float {0.5}>() e = Greater(b, half)
            y = If (c) <then_branch = t () => (float p) { p = Neg(b) },
                        else_branch = o () => (float q) { q = Identity(b) }>
        }"""
    )
    assert compared_numbers(model.graph) == {"a": [4, 5, 6], "c": [0, 1]}


def runs_at(rate: int, asked: list[int]) -> object:
    """A model that runs at one rate only; what it was asked for is noted."""

    def run(arrays: Arrays) -> Arrays:
        asked.append(int(arrays[1][0]))
        if arrays[1][0] != rate:
            raise CompileError(f"not at {arrays[1][0]}")
        return [arrays[0]]

    return run


def drawn(rows: int) -> Arrays:
    return [np.ones((rows, 4), np.float32), np.zeros(rows, np.int64)]


def test_the_first_numbers_that_run_are_taken() -> None:
    choices = Choices(INPUTS, {"rate": [8, 16], "x": [3]})
    assert choices.ways == ({1: 8}, {1: 16}), "x has several elements"
    asked: list[int] = []
    choices.first(runs_at(16, asked), drawn(1))  # type: ignore[arg-type]
    assert asked == [0, 8, 16, 16]
    with pytest.raises(CompileError, match="not at 0"):
        choices.first(runs_at(5, []), drawn(1))  # type: ignore[arg-type]


def test_rows_have_the_numbers_that_run_in_turns() -> None:
    choices = Choices(INPUTS, {"rate": [8, 16]})
    assert choices.spread(lambda arrays: arrays, drawn(5))[1].tolist() == [0, 8, 16, 0, 8]
    assert choices.spread(runs_at(16, []), drawn(3))[1].tolist() == [16, 16, 16]  # type: ignore[arg-type]
    arrays = drawn(2)
    assert Choices(INPUTS, {}).spread(runs_at(1, []), arrays) is arrays  # type: ignore[arg-type]
