"""A classifier's maps of scores become a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, parser

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.reading.replaced_operators import without_maps

Run = Callable[..., list[Any]]


def classifier(end: str = "", output: str = "seq(map(int64, float)) p") -> onnx.ModelProto:
    """Return a linear classifier of three classes as converters write it."""
    coefficients = ", ".join(f"{0.1 * (k - 4):.1f}" for k in range(12))
    model: onnx.ModelProto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[N,4] x) => (int64[N] label, {output}) {{
            label, raw = ai.onnx.ml.LinearClassifier<coefficients=[{coefficients}],
                intercepts=[0.1,-0.1,0.0], classlabels_ints=[3,5,8], post_transform="SOFTMAX">(x)
            p = ai.onnx.ml.ZipMap<classlabels_int64s=[3,5,8]>(raw) {end}
        }}"""
    )
    return model


def test_scores_are_a_tensor_under_the_maps_name(store: Store, run_stored: Run) -> None:
    model = classifier()
    manifest = compile_model(model, "m", store, (1, 2, 4), Source("onnx", "m.onnx")).manifest
    assert [(each.name, each.dtype, each.shape) for each in manifest.outputs] == [
        ("label", "int64", ()),
        ("p", "float32", (3,)),
    ]
    assert not manifest.unshared
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    label, scores = run_stored(store, manifest, [x])
    expected, maps = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(label, expected)
    np.testing.assert_allclose(scores, [list(each.values()) for each in maps], rtol=1e-6)


def test_a_model_without_maps_is_left_alone() -> None:
    model = classifier()
    opened = without_maps(model)
    assert opened is not model
    assert model.graph.output[1].type.HasField("sequence_type"), "what was given is unchanged"
    assert opened.graph.output[1].type.tensor_type.elem_type == TensorProto.FLOAT
    assert without_maps(opened) is opened


def test_maps_that_a_node_reads_stay(store: Store) -> None:
    model = classifier("n = SequenceLength(p)", "int64 n")
    assert without_maps(model) is model
    with pytest.raises(CompileError):
        compile_model(model, "m", store, (1, 2), Source("onnx", "m.onnx"))
