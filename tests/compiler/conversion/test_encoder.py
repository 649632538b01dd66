"""Encoders become models that give a vector for each text."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.conversion.encoder import IDS, MASK, OUTPUT, TYPES, Pooling, pool

WIDTH = 4
TABLE = np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32)


def encoder(inputs: tuple[str, ...] = (IDS, MASK, TYPES), output: str = "last_hidden_state") -> Any:
    """A vector for each token by a table."""
    given = [helper.make_tensor_value_info(each, TensorProto.INT64, ["rows", "tokens"]) for each in inputs]
    ids = "both" if TYPES in inputs else IDS
    nodes = [helper.make_node("Add", [IDS, TYPES], [ids])] if TYPES in inputs else []
    nodes.append(helper.make_node("Gather", ["table", ids], [output]))
    hidden = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["rows", "tokens", WIDTH])
    graph = helper.make_graph(nodes, "net", given, [hidden], [numpy_helper.from_array(TABLE, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def pooled(how: Pooling, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    model = encoder()
    assert pool(model, how) == "tokens"
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [each.name for each in session.get_inputs()] == [IDS, MASK]
    (found,) = session.run([OUTPUT], {IDS: ids, MASK: mask})
    return np.asarray(found)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("mean", [TABLE[[1, 2, 3]].mean(axis=0), TABLE[[4, 5]].mean(axis=0)]),
        ("cls", [TABLE[1], TABLE[4]]),
        ("last", [TABLE[3], TABLE[5]]),
    ],
)
def test_what_fills_a_row_up_has_no_part_in_its_vector(how: Pooling, expected: Any) -> None:
    ids = np.array([[1, 2, 3], [4, 5, 9]])
    found = pooled(how, ids, np.array([[1, 1, 1], [1, 1, 0]]))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_model_that_pools_itself_keeps_its_pooling() -> None:
    model = encoder()
    most = helper.make_node("ReduceMax", ["last_hidden_state"], ["my_embedding"], axes=[1], keepdims=0)
    model.graph.node.append(most)
    own = helper.make_tensor_value_info("my_embedding", TensorProto.FLOAT, ["rows", WIDTH])
    model.graph.output.append(own)
    pool(model, "mean")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run([OUTPUT], {IDS: np.array([[1, 2]]), MASK: np.array([[1, 1]])})
    np.testing.assert_allclose(found, [TABLE[[1, 2]].max(axis=0)])


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((IDS,), "has the inputs input_ids and attention_mask"),
        ((IDS, MASK, "position_ids"), "not position_ids"),
    ],
)
def test_what_is_no_encoder_is_refused(inputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(CompileError, match=said):
        pool(encoder(inputs), "mean")
