"""Nodes that pack their weights in every run: kept in the graph where they are few, told of where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler import report
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.program import split
from mainspring.messages.model import Profile

COLUMNS = 24


def recurrent(hidden: int, seed: int = 0) -> onnx.ModelProto:
    """Return an LSTM over three steps, whose rows are apart."""
    drawn = np.random.default_rng(seed)
    shapes = {"w": (1, 4 * hidden, COLUMNS), "r": (1, 4 * hidden, hidden), "b": (1, 8 * hidden)}
    weights = [
        numpy_helper.from_array((drawn.standard_normal(shape) * 0.2).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node("LSTM", ["t", "w", "r", "b"], ["", "h"], hidden_size=hidden),
            helper.make_node("Squeeze", ["h", "zero"], ["y"]),
        ],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", hidden])],
        [*weights, numpy_helper.from_array(np.array([0], np.int64), "zero")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantised() -> onnx.ModelProto:
    """Return a product of 8-bit integers with more weights than stay in a graph."""
    weights = np.random.default_rng(1).integers(-90, 90, (COLUMNS, split.HELD_BYTES // COLUMNS + 8))
    graph = helper.make_graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
            helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "s"], ["y"]),
        ],
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", weights.shape[1]])],
        [numpy_helper.from_array(weights.astype(np.int8), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(model: onnx.ModelProto, folder: Path, name: str = "m") -> Compiled:
    file = folder / f"{name}.onnx"
    file.write_bytes(model.SerializeToString())
    return compile_file(file, name, Store(folder / "store"), (1, 2))


def test_few_weights_stay_in_the_graph(tmp_path: Path) -> None:
    first, second = (compiled(recurrent(16, seed), tmp_path, f"m{seed}") for seed in (0, 1))
    assert first.manifest.tensors == ()
    assert first.manifest.executable != second.manifest.executable
    profile = first.manifest.profiles["cpu"]
    assert (profile.packs, profile.packing) == ({}, "")
    assert report.describe_packing(first) == ""


def test_many_are_told_of_with_what_they_cost(tmp_path: Path) -> None:
    first = compiled(recurrent(300), tmp_path)
    assert len(first.manifest.tensors) == 3
    profile = first.manifest.profiles["cpu"]
    assert profile.packs == {"LSTM": 1}
    assert profile.beside_stock.keys() == {1, 2}
    assert all(0.5 < ratio < 20 for ratio in profile.beside_stock.values())
    said = report.describe_packing(first)
    assert said.startswith(
        "packs the weights of 1 LSTM in every run, stock ONNX Runtime once; at batch sizes 1:"
    )
    assert report.fields(first)["packs"] == {"LSTM": 1}
    assert Store(tmp_path / "store").manifest("m").profiles["cpu"] == profile
    assert first.manifest.spec().profiles["cpu"].packing == profile.packing


def test_products_of_integers_are_told_of(tmp_path: Path) -> None:
    (kind,) = compiled(quantised(), tmp_path).manifest.profiles["cpu"].packs.items()
    assert kind in (("MatMulInteger", 1), ("DynamicQuantizeMatMul", 1))


def test_all_weights_stay_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = recurrent(16).graph
    sizes = {each.name: len(each.raw_data) for each in graph.initializer if each.name != "zero"}
    assert split.held_weights(graph, sizes) == {"w", "r", "b"}
    monkeypatch.setattr(split, "HELD_BYTES", sum(sizes.values()) - 1)
    assert split.held_weights(graph, sizes) == set()


def test_what_was_not_compared_is_said_so() -> None:
    said = Profile({}, 0, packs={"GRU": 2}).packing
    assert "of 2 GRU in every run" in said
    assert said.endswith("not compared with a stock session")


def test_runs_take_turns_in_changing_order() -> None:
    order: list[str] = []
    runs = [lambda: order.append("a"), lambda: order.append("b")]
    assert [len(each) for each in split.in_turns(runs, 0.0, 5)] == [5, 5]
    assert "".join(order[4:]) == "baabbaabba"
