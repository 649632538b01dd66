"""Sequences of maps among a model's outputs, which no protocol has, as the tensors that they are made from.

Converters of scikit-learn's classifiers end with a ZipMap by default: for each row a map from the label of
each class to its score. Its input is the same as one tensor, a row for each map, a column for each label.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

_DOMAIN = "ai.onnx.ml"


def without_maps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the scores in the place of ZipMaps' outputs, under their names.

    ``model`` itself is returned, unchanged, if it has none.
    """
    maps = {node.output[0]: node for node in model.graph.node if _is_zipmap(node)}
    outputs = {value.name for value in model.graph.output}
    # What another node reads, as in a sequence operator, stays a sequence.
    read = {name for node in model.graph.node for name in node.input}
    opened = {name: node for name, node in maps.items() if name in outputs and name not in read}
    if not opened:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    for node in graph.node:
        if _is_zipmap(node) and node.output[0] in opened:
            score, name = node.input[0], node.output[0]
            node.CopyFrom(
                helper.make_node("Identity", [score], [name], name=node.name or f"scores of {name}")
            )
    for value in graph.output:
        if value.name in opened:
            value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    return found


def _is_zipmap(node: onnx.NodeProto) -> bool:
    return node.op_type == "ZipMap" and node.domain == _DOMAIN
