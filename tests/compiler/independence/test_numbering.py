"""Numbers of rows by which each row picks its own elements: proven where they are, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from mainspring.compiler.independence.walk import why_rows_mix
from tests.compiler.independence.test_rules import graph, node

X: dict[str, list[int | str]] = {"x": ["n", 5]}
NUMBERS: dict[str, Any] = {
    "zero": np.array(0),
    "one": np.array(1),
    "first": np.array([0]),
    "second": np.array([1]),
    "last": np.array([-1]),
    "places": np.arange(5).reshape(1, 5, 1),
}


def picking(*columns: str, before: tuple[onnx.NodeProto, ...] = (), begin: str = "zero") -> onnx.ModelProto:
    """Pick ``x[row, place]`` for each row and place, the columns of indices in this order."""
    nodes = [
        node("Shape", "x", "count", start=0, end=1),
        node("Squeeze", "count first", "rows"),
        node("Range", f"{begin} rows one", "numbers"),
        node("Unsqueeze", "numbers second", "column"),
        node("Unsqueeze", "column last", "thin"),
        node("Max", "thin places", "both"),
        node("Shape", "both", "shape"),
        node("Expand", "thin shape", "own"),
        node("Expand", "places shape", "place"),
        *before,
        node("Concat", " ".join(columns), "indices", axis=-1),
        node("GatherND", "x indices"),
    ]
    return graph(nodes, X, **NUMBERS)


def test_each_row_picks_its_own_elements() -> None:
    model = picking("own", "place")
    assert why_rows_mix(model) == ""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for index, each in enumerate(model.graph.node):
        each.name = f"{index}"
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


@pytest.mark.parametrize(
    "model",
    [
        picking("place", "own"),
        picking("own", "own"),
        picking("own", "place", begin="one"),
        picking("other", "place", before=(node("Add", "own one", "other"),)),
        picking("other", "place", before=(node("Max", "own zero", "other"),)),
        picking("other", "place", before=(node("Neg", "own", "other"),)),
        graph(
            [
                node("Shape", "x", "count", start=0, end=1),
                node("Squeeze", "count first", "rows"),
                node("Range", "zero rows one", "y"),
            ],
            X,
            **NUMBERS,
        ),
        graph(
            [
                node("Shape", "x", "count", start=0, end=1),
                node("Squeeze", "count first", "rows"),
                node("Range", "zero rows one", "numbers"),
                node("Gather", "x numbers", axis=0),
            ],
            X,
            **NUMBERS,
        ),
    ],
)
def test_other_uses_of_the_numbers_are_not_proven(model: onnx.ModelProto) -> None:
    assert why_rows_mix(model)
