"""Single statements about operators: where the batch axis goes, and where rows mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.independence.walk import why_rows_mix

FLOAT = TensorProto.FLOAT


def graph(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    opset: int = 17,
    **weights: Any,
) -> onnx.ModelProto:
    """Return a model whose output is ``y``."""
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in
               (("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3))]  # fmt: skip
    return helper.make_model(made, opset_imports=imports, ir_version=8)


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    names = [name if name != "-" else "" for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), name=f"the_{operator}", **attributes)


def counting(*tokens: str) -> dict[str, Any]:
    """Return a TfIdfVectorizer's attributes that count tokens and pairs of the first."""
    return {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, len(tokens)],
        "ngram_indexes": [*range(len(tokens) + 1)],
        "pool_strings": [*tokens, tokens[0], tokens[0]],
    }


TOKENS = [
    node(
        "Tokenizer", "x", "t", domain="com.microsoft", mark=0, mincharnum=1, pad_value="#", tokenexp="[a-z]+"
    ),
    node("Flatten", "t", "f"),
]
X: dict[str, list[int | str]] = {"x": ["n", 4, 6]}
ONES = np.ones


@pytest.mark.parametrize(
    "model",
    [
        graph([node("Softmax", "x", axis=-1)], X),
        graph([node("MatMul", "x w")], X, w=ONES((6, 3), np.float32)),
        graph([node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t")], X),
        graph([node("Transpose", "x", "t", perm=[1, 0, 2]), node("ReduceMax", "t", axes=[0], keepdims=0)], X),
        graph(
            [
                node("Reshape", "x merged", "m"),
                node("MatMul", "m w", "p"),
                node("Relu", "p", "r"),
                node("Reshape", "r apart"),
            ],
            X,
            merged=[-1, 6],
            w=ONES((6, 3), np.float32),
            apart=[-1, 4, 3],
        ),
        graph([node("Gather", "w x")], {"x": ["n", 5]}, w=ONES((9, 3), np.float32)),
        graph([node("Slice", "x begin end axes")], X, begin=[0, 1], end=[2**63 - 1, 3], axes=[0, 2]),
        graph([node("Slice", "x begin end")], X, begin=[0, 0, 0], end=[10**9, 10**9, 10**9]),
        graph(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "rows"),
                node("Unsqueeze", "rows axes", "r"),
                node("Concat", "r rest", "whole", axis=0),
                node("Reshape", "x whole"),
            ],
            X,
            zero=np.int64(0),
            axes=[0],
            rest=[24],
        ),
        graph(
            [
                node("Shape", "x", "s"),
                node("Slice", "s zero one", "rows"),
                node("Concat", "rows rest", "whole", axis=0),
                node("Expand", "token whole", "tokens"),
                node("Concat", "tokens x", axis=1),
            ],
            X,
            zero=[0],
            one=[1],
            rest=[1, 6],
            token=ONES((1, 1, 6), np.float32),
        ),
        graph(
            [
                node("Transpose", "x", "t", perm=[1, 0, 2]),
                node("LSTM", "t w r", "- h"),
                node("Squeeze", "h axes"),
            ],
            X,
            w=ONES((1, 12, 6), np.float32),
            r=ONES((1, 12, 3), np.float32),
            axes=[0],
        ),
        graph([node("Einsum", "x x", equation="bij,bkj->bik")], X),
        graph([node("Scaler", "x", domain="ai.onnx.ml", offset=[0.0], scale=[2.0])], {"x": ["n", 4]}),
        graph([node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z")], X,
              s=np.float32(0.1), z=np.uint8(3)),
        graph([node("StringConcat", "x z")], {"x": ["n", 3], "z": ["n", 1]}, opset=20),
        graph([node("RegexFullMatch", "x", pattern="a+")], {"x": ["n", 3]}, opset=20),
        graph([node("StringNormalizer", "x", case_change_action="LOWER")], {"x": ["n"]}),
        graph([*TOKENS, node("TfIdfVectorizer", "f", **counting("cat", "dog"))], {"x": ["n", 1]}),
        graph([node("StringSplit", "x", "p -"), node("TfIdfVectorizer", "p", **counting("a"))], {"x": ["n"]},
              opset=20),
        graph([node("StringSplit", "x", "- y")], {"x": ["n", 3]}, opset=20),
    ],
    ids=lambda model: "-".join(each.op_type for each in model.graph.node),
)  # fmt: skip
def test_rows_stay_apart(model: onnx.ModelProto) -> None:
    assert why_rows_mix(model) == ""


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (graph([node("Softmax", "x", axis=0)], X), "(Softmax) normalises over the batch"),
        (graph([node("Softmax", "x", axis=0)], {"x": ["n", 4]}, opset=11), "normalises over the batch"),
        (graph([node("DynamicQuantizeLinear", "x", "y s z")], X), "one scale for all rows"),
        (graph([node("MatMul", "w x")], {"x": ["n", 6]}, w=ONES((2, 7), np.float32)), "sums over the batch"),
        (
            graph([node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t")], {"x": ["n", 6]}),
            "multiplies each row with the others",
        ),
        (graph([node("MatMul", "x z")], {"x": ["n", 4, 6], "z": ["n"]}), "multiplies a vector"),
        (
            graph([*TOKENS, node("TfIdfVectorizer", "f", **counting("cat", "#"))], {"x": ["n", 1]}),
            "counts '#', with which texts are padded",
        ),
        (
            graph([*TOKENS, node("TfIdfVectorizer", "f", **counting("cat"))], {"x": ["n", 2]}),
            "as wide as the longest text of the batch",
        ),
        (graph([*TOKENS, node("Identity", "f")], {"x": ["n", 1]}), "output 'y' isn't proven"),
        (graph([*TOKENS, node("Shape", "f")], {"x": ["n", 1]}), "asks for a shape that isn't known"),
        (graph([*TOKENS, node("StringConcat", "f f")], {"x": ["n", 1]}, opset=20), "longest text"),
        (
            graph([node("TfIdfVectorizer", "x", **counting("cat"))], {"x": ["n"]}),
            "takes its input for a single example",
        ),
        (graph([node("Add", "x z")], {"x": ["n", 4, 6], "z": ["n", 6]}), "combines different rows"),
        (graph([node("Add", "x w")], X, w=ONES((3, 1, 1), np.float32)), "depends on its place"),
        (graph([node("Transpose", "x", "t"), node("Softmax", "t", axis=2)], X), "normalises over the batch"),
        (graph([node("CumSum", "x axis")], X, axis=np.int64(0)), "sums over the batch"),
        (graph([node("ArgMax", "x")], X), "reduces over the batch"),
        (graph([node("TopK", "x k", "y i", axis=0)], X, k=[1]), "picks the largest over the batch"),
        (graph([node("Slice", "x begin end axes")], X, begin=[0], end=[1], axes=[0]), "along the batch"),
        (graph([node("Gather", "x i", axis=0)], X, i=[0]), "along the batch"),
        (graph([node("Reshape", "x shape")], X, shape=[2, -1, 6]), "takes rows apart"),
        (graph([node("Concat", "x x", axis=0)], X), "puts several into one along the batch"),
        (graph([node("Pad", "x pads")], X, pads=[1, 0, 0, 0, 0, 0]), "pads the batch"),
        (
            graph([node("BatchNormalization", "x s s s s", "y m v", training_mode=1)], X, s=ONES(4)),
            "statistics of the whole batch",
        ),
        (
            graph(
                [
                    node("Shape", "x", "s"),
                    node("Gather", "s zero", "rows"),
                    node("Cast", "rows", "count", to=FLOAT),
                    node("Div", "x count"),
                ],
                X,
                zero=np.int64(0),
            ),
            "depends on the number of rows",
        ),
        (
            graph(
                [
                    node("Shape", "x", "s"),
                    node("Gather", "s zero", "rows"),
                    node("Range", "zero rows one", "places"),
                    node("Gather", "w places"),
                ],
                X,
                zero=np.int64(0),
                one=np.int64(1),
                w=ONES((99, 3), np.float32),
            ),
            "number of rows",
        ),
        (graph([node("LSTM", "x w r")], X, w=ONES((1, 12, 6), np.float32), r=ONES((1, 12, 3), np.float32)),
         "where time belongs"),
        (graph([node("Einsum", "x x", equation="bij,kij->bk")], X), "multiplies each row with the others"),
        (graph([node("MeanVarianceNormalization", "x")], X), "normalises over the batch"),
        (graph([node("Squeeze", "x")], {"x": ["n", 1, 4]}), "where there is one row"),
        (graph([node("Attention", "x x x z")], {"x": ["n", 2, 5, 6], "z": ["n", 5]}, opset=23),
         "mask with the batch"),
        (
            graph([node("Shape", "x", "s", end=1), node("Slice", "x zero s one")], X, zero=[0], one=[1]),
            "size of a row depend on the number of rows",
        ),
        (
            graph(
                [node("Resize", "x - - sizes", keep_aspect_ratio_policy="not_larger")],
                {"x": ["n", 2, 4, 4]},
                opset=18,
                sizes=[1, 2, 8, 8],
            ),
            "resizes the batch",
        ),
        (
            graph([node("Resize", "x - scales", mode="linear")], X, scales=np.array([1, 1, 2], np.float32)),
            "interpolates between rows",
        ),
        (
            graph(
                [
                    node("Shape", "x", "s", end=1),
                    node("Cast", "s", "any", to=TensorProto.BOOL),
                    node("Cast", "any", "one", to=TensorProto.INT64),
                    node("Slice", "x zero one", "first"),
                    node("Sub", "x first"),
                ],
                X,
                zero=[0],
            ),
            "number of few bits",
        ),
        (
            graph(
                [
                    node("Shape", "x", "s", end=1),
                    node("Concat", "s s rest", "square", axis=0),
                    node("Reshape", "x square", "r"),
                    node("ReduceMax", "r", "m", axes=[2], keepdims=0),
                    node("ReduceMax", "m", axes=[1], keepdims=0),
                ],
                X,
                rest=[-1],
            ),
            "number of rows in it twice",
        ),
        (
            graph(
                [
                    node("Reshape", "x merged", "a"),
                    node("Transpose", "x", "t", perm=[1, 0, 2]),
                    node("Reshape", "t merged", "b"),
                    node("SkipLayerNormalization", "a b scale", "c", domain="com.microsoft"),
                    node("Reshape", "c apart"),
                ],
                X,
                merged=[-1, 1, 6],
                scale=ONES(6, np.float32),
                apart=[-1, 4, 6],
            ),
            "operands have the batch on different axes",
        ),
        (
            graph(
                [
                    node("Attention", "x w b", "a present", domain="com.microsoft", num_heads=2),
                    node("ReduceMax", "present", axes=[0], keepdims=0),
                ],
                X,
                w=ONES((6, 18), np.float32),
                b=ONES(18, np.float32),
            ),
            "in front of the batch",
        ),
        (
            graph(
                [
                    node("ReduceMean", "x", "mean", axes=[1], keepdims=1),
                    node("Einsum", "x mean", "e", equation="bij,bij->bi"),
                    node("Reshape", "e flat", "f"),
                    node("Shape", "x", "rows", end=1),
                    node("Slice", "f zero rows"),
                ],
                X,
                flat=[-1],
                zero=[0],
            ),
            "along the batch",
        ),
        (graph([node("StringConcat", "x z")], {"x": ["n", 3], "z": ["n"]}, opset=20),
         "combines different rows"),
        (graph([node("StringNormalizer", "x", stopwords=["the"])], {"x": ["n"]}), "texts of the whole batch"),
        (graph([node("StringNormalizer", "x")], {"x": ["n", 3]}), "takes one row at a time"),
        (graph([node("Gemm", "w w x")], {"x": ["n", 6]}, w=ONES((6, 6), np.float32)), "multiplies no rows"),
        (graph([node("Mystery", "x", domain="com.example")], X), "(Mystery of com.example) isn't known"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(each.op_type for each in value.graph.node),
)  # fmt: skip
def test_rows_mix(model: onnx.ModelProto, why: str) -> None:
    assert why in why_rows_mix(model)


def test_only_what_an_output_depends_on_counts() -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("Relu", "x")]
    assert why_rows_mix(graph(nodes, X)) == ""


def test_the_first_node_is_named() -> None:
    nodes = [node("ReduceMax", "x", "m", axes=[0]), node("Sub", "x m", "d"), node("Softmax", "d", axis=0)]
    assert why_rows_mix(graph(nodes, X)) == "node 'the_ReduceMax' (ReduceMax) reduces over the batch"


def test_a_function_with_the_name_of_an_operator_proves_nothing() -> None:
    body = [helper.make_node("ReduceMax", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])]
    model = graph([node("Swish", "x")], X)
    model.functions.append(
        helper.make_function("", "Swish", ["x"], ["y"], body, [helper.make_opsetid("", 16)])
    )
    assert "a function of the model's own" in why_rows_mix(model)
