"""From ONNX to a straight line: which layout values have, and what is fused."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.reference import Prepared
from mainspring.compiler.tvm.line import Line
from mainspring.compiler.tvm.lowering import Lowered, lower, portable
from tests.compiler.conftest import MakeModel


def lowered(model: onnx.ModelProto, batch_size: int = 2) -> Lowered:
    parts = portable(Prepared(model, batch_size))
    return lower(parts.graph, Shape(batch_size), parts.info.inputs, parts.info.weights)


def names(line: Line) -> list[str]:
    return [step.function for step in line.steps]


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def convolution(*names_: str, pads: int = 1) -> onnx.NodeProto:
    *inputs, output = names_
    return helper.make_node("Conv", inputs, [output], pads=[pads] * 4)


def test_images_stay_channels_last_between_convolutions(make_model: MakeModel) -> None:
    nodes = [
        convolution("x", "a", "b", "c"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        convolution("p", "d", "e", "y"),
    ]
    weights = {"a": weight(8, 3, 3, 3), "b": weight(8), "d": weight(5, 8, 3, 3), "e": weight(5)}
    line = lowered(make_model(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5, 4, 4]}, weights)).line
    assert names(line) == [
        "transpose",
        "fused_conv2d_add_relu",
        "max_pool2d",
        "fused_conv2d1_add1",
        "transpose1",
    ]
    shapes = [step.writes[0].shape for step in line.steps]
    assert shapes == [(2, 8, 8, 3), (2, 8, 8, 8), (2, 4, 4, 8), (2, 4, 4, 5), (2, 5, 4, 4)]
    assert line.steps[1].reads[1].shape == (3, 3, 3, 8)


def test_one_channel_or_one_pixel_is_not_moved(make_model: MakeModel) -> None:
    nodes = [
        convolution("x", "a", "c"),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    weights = {"a": weight(8, 1, 3, 3), "m": weight(8, 4)}
    line = lowered(make_model(nodes, {"x": ["n", 1, 8, 8]}, {"y": ["n", 4]}, weights)).line
    assert names(line) == ["conv2d", "mean", "matmul"]
    assert line.steps[0].reads[0].value.kind == "input"
    assert line.steps[2].reads[0].shape == (2, 8)


def test_bounds_and_sums_are_fused(make_model: MakeModel) -> None:
    nodes = [
        convolution("x", "a", "c"),
        helper.make_node("Sum", ["c", "x", "x"], ["s"]),
        helper.make_node("Clip", ["s", "low", "high"], ["y"]),
    ]
    weights = {"a": weight(3, 3, 3, 3), "low": np.float32(-1), "high": np.float32(1)}
    line = lowered(make_model(nodes, {"x": ["n", 3, 4, 4]}, {"y": ["n", 3, 4, 4]}, weights)).line
    assert len(line.steps) == 3, names(line)
    assert names(line)[1].startswith("fused_conv2d_add_add")


def test_what_an_unknown_operator_reads_is_transposed_back(make_model: MakeModel) -> None:
    nodes = [
        convolution("x", "a", "c"),
        helper.make_node("LRN", ["c"], ["l"], size=3),
        convolution("l", "b", "y"),
    ]
    weights = {"a": weight(6, 3, 3, 3), "b": weight(4, 6, 3, 3)}
    line = lowered(make_model(nodes, {"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]}, weights)).line
    assert [step.function.startswith("conv2d") for step in line.steps].count(True) == 2
    assert line.steps[-1].writes[0].shape == (2, 4, 4, 4)


def test_equal_constants_are_one(make_model: MakeModel) -> None:
    table = np.arange(6, dtype=np.int64)
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"], axis=1),
        helper.make_node("Gather", ["r", "j"], ["b"], axis=1),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    nodes = [nodes[2], nodes[0], nodes[1], nodes[3]]
    model = make_model(
        nodes, {"x": ["n", 6]}, {"y": ["n", 6]}, {"i": table[::-1].copy(), "j": table[::-1].copy()}
    )
    assert len(lowered(model).line.constants) == 1
