"""Sequences of tensors among a model's outputs, which no protocol has, as tensors with an axis in front."""

from __future__ import annotations

import onnx
from onnx import helper

from mainspring.compiler.normalise import rename

STACKED = "the elements of "
"""Prefix of the names of the nodes that stack a sequence."""
INSTEAD = (
    "a sequence is served as one tensor with an axis in front for its elements, so these need one shape, and "
    "there has to be one: give each an output of its own (Split instead of SplitToSequence), or pad them"
)


def without_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its sequences of tensors stacked, under their names.

    ``model`` itself is returned, unchanged, if it has none.
    """
    stacked = [
        value.name
        for value in model.graph.output
        if value.type.sequence_type.elem_type.WhichOneof("value") == "tensor_type"
    ]
    if not stacked:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    inside = {name: f"{name}:elements" for name in stacked}
    rename(graph, inside)
    for value in graph.output:
        if value.name in inside:
            element = value.type.sequence_type.elem_type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, element, None))
    del graph.value_info[:]
    graph.node.extend(
        helper.make_node(
            "ConcatFromSequence", [inside[name]], [name], name=f"{STACKED}{name}", axis=0, new_axis=1
        )
        for name in stacked
    )
    return found
