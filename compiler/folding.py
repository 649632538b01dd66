"""Control flow that is decided beforehand: an If whose condition follows from constants is folded."""

from __future__ import annotations

import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.stock import optimise_portably


def has_control_flow(model: onnx.ModelProto) -> bool:
    """Whether a node has a graph of its own."""
    return any(
        attribute.HasField("g") or attribute.graphs
        for node in model.graph.node
        for attribute in node.attribute
    )


def without_decided_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with constants folded if nothing of its control flow is left then, else as it is."""
    if not has_control_flow(model):
        return model
    try:
        folded = optimise_portably(model)
    except CompileError:
        return model
    return model if has_control_flow(folded) else folded
