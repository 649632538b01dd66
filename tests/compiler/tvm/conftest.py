"""A small network of everything that images go through, for TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import helper

MakeNetwork = Callable[..., onnx.ModelProto]


@contextmanager
def copying_ahead() -> Iterator[None]:
    """Have every sum of products in FP32 copy its slices ahead, in the tiles that the model chooses."""
    from mainspring.compiler.tvm import build, schedules
    from mainspring.compiler.tvm.tiles import choose

    # What was compiled otherwise is kept for copies of the architecture.
    build._architecture.cache_clear()
    with mock.patch.object(schedules, "choose", lambda *sizes: choose(*sizes)._replace(ahead=True)):
        yield
    build._architecture.cache_clear()


@pytest.fixture(scope="session")
def make_network() -> MakeNetwork:
    """Return a function that makes a small convolutional network of seeded weights."""

    def make(seed: int = 0, prefix: str = "") -> onnx.ModelProto:
        return _network(np.random.default_rng(seed), prefix)

    return make


def _network(random: np.random.Generator, prefix: str) -> onnx.ModelProto:
    """Return 3 x 12 x 12 pixels to 10 classes: pads, strides, a batch norm, groups, a residual, pools."""

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)

    weights: dict[str, Any] = {
        "stem/w": normal(16, 3, 3, 3), "stem/b": normal(16),
        "bn/scale": 1 + normal(16), "bn/bias": normal(16),
        "bn/mean": normal(16), "bn/var": 1 + normal(16) ** 2,
        "depth/w": normal(16, 1, 3, 3), "group/w": normal(16, 8, 1, 1), "res/w": normal(16, 16, 3, 3),
        "scale": 1 + normal(16, 1, 1), "low": np.float32(0), "high": np.float32(6),
        "fc/w": normal(10, 32), "fc/b": normal(10),
    }  # fmt: skip
    name = {each: prefix + each for each in weights}
    nodes = [
        helper.make_node(
            "Conv", ["x", name["stem/w"], name["stem/b"]], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        helper.make_node(
            "BatchNormalization",
            ["c", *(name[f"bn/{each}"] for each in ("scale", "bias", "mean", "var"))],
            ["n"],
        ),
        helper.make_node("Clip", ["n", name["low"], name["high"]], ["r6"]),
        helper.make_node("Conv", ["r6", name["depth/w"]], ["d"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Conv", ["d", name["group/w"]], ["g"], group=2),
        helper.make_node("Mul", ["g", name["scale"]], ["m"]),
        helper.make_node("Conv", ["m", name["res/w"]], ["s"], pads=[1, 1, 1, 1]),
        helper.make_node("Sum", ["s", "r6", "d"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["relu"], ["q"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["p", "q"], ["pq"], axis=1),
        helper.make_node("GlobalAveragePool", ["pq"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", name["fc/w"], name["fc/b"]], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["y"], axis=1),
    ]
    for index, node in enumerate(nodes):
        node.name = f"{prefix}node/{index}"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 10])],
        [onnx.numpy_helper.from_array(np.asarray(array), name[each]) for each, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
