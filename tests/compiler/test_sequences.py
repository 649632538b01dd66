"""Outputs that are sequences of tensors, served as one tensor each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.replaced_operators import without_sequences

Run = Callable[..., list[Any]]

SPLIT = "g (float[4,6] x) => (seq(float[4,2]) y) { y = SplitToSequence<axis=1>(x, n) }"


def build(graph: str, n: Any) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.array(n, np.int64), "n"))
    return model


def test_tensors_of_one_shape_are_stacked(store: Store, run_stored: Run, tmp_path: Path) -> None:
    model = build(SPLIT, 2)
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest
    assert [(each.name, each.shape) for each in manifest.outputs] == [("y", (3, 4, 2))]
    x = np.random.default_rng(1).standard_normal((4, 6), np.float32)
    (parts,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = run_stored(store, manifest, [x[None]])
    np.testing.assert_array_equal(found[0], np.stack(parts))


def test_a_sequence_that_a_node_reads_is_stacked_beside_that() -> None:
    graph = SPLIT.replace("y)", "y, int64 c)", 1).replace("}", " c = SequenceLength(y) }")
    model = build(graph, 2)
    stacked = without_sequences(model)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    found, count = onnxruntime.InferenceSession(stacked.SerializeToString()).run(None, {"x": x})
    assert (found.shape, int(count)) == ((3, 4, 2), 3)
    assert without_sequences(stacked) is stacked
    assert model.graph.output[0].type.HasField("sequence_type"), "what was given is unchanged"


@pytest.mark.parametrize(
    ("graph", "n", "remedy"),
    [
        (SPLIT.replace("[4,2]", "[4,Z]"), [1, 5], "these need one shape"),
        ("g (seq(float[2]) x) => (float[A,2] y) { y = ConcatFromSequence<axis=0,new_axis=1>(x) }", 1, "own"),
    ],
    ids=["different shapes", "an input"],
)
def test_what_can_be_no_tensor_is_refused_with_a_remedy(
    store: Store, tmp_path: Path, graph: str, n: Any, remedy: str
) -> None:
    onnx.save_model(build(graph, n), tmp_path / "m.onnx")
    with pytest.raises(CompileError, match=remedy):
        compile_file(tmp_path / "m.onnx", "m", store, (1, 2))
