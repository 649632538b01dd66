"""ONNX's shape inference, without the operator on which it ends the process.

The onnx package (1.23) reads an attribute that a LabelEncoder of floats lacks, through a null pointer. For
inference it is a Cast: of the same shape, and of the type of its values.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, shape_inference

from mainspring.compiler.normalise import all_nodes

_VALUES = {
    "values_strings": TensorProto.STRING,
    "values_int64s": TensorProto.INT64,
    "values_floats": TensorProto.FLOAT,
}


def infer_shapes(model: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto:
    """Return the model with the shapes that follow from those of its inputs; raises what onnx raises."""
    if any(map(is_fatal, all_nodes(model.graph))):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        model = copy
        for node in filter(is_fatal, [*all_nodes(model.graph)]):
            kinds = [_VALUES[each.name] for each in node.attribute if each.name in _VALUES]
            to = kinds[0] if kinds else TensorProto.STRING
            node.CopyFrom(helper.make_node("Cast", node.input, node.output, name=node.name, to=to))
    return shape_inference.infer_shapes(model, data_prop=data_prop)


def is_fatal(node: onnx.NodeProto) -> bool:
    """Say whether inference of this node alone may end the process."""
    return node.op_type == "LabelEncoder" and node.domain == "ai.onnx.ml"
