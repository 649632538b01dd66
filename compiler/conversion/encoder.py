"""An encoder of texts, as it was exported, becomes one whose output is a vector for each text.

Pooling is a part of the model, not of the gateway or of a model behind it: so it runs with the encoder, on
its device, and what leaves the worker is one vector, not one for each token (of 256 tokens a 256th).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError

Pooling = Literal["mean", "cls", "last"]
POOLINGS: Final[tuple[str, ...]] = get_args(Pooling)
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
OUTPUT = "sentence_embedding"
_LEAST_OPSET: Final = 13
_OURS = "mainspring.pooling."


def pool(model: onnx.ModelProto, how: Pooling) -> str:
    """Give an encoder one output, `OUTPUT`, float32 [rows, width], and the inputs `IDS` and `MASK` alone.

    ``how``: the mean of the tokens' vectors by the mask, the first token's, or that of the last that the mask
    has. A model that has such an output already, of two dimensions, keeps its own pooling. `TYPES` are 0.
    Returns the name of the dimension of the tokens. Raises `CompileError` for a model that is no encoder.
    """
    graph = model.graph
    weights = {each.name for each in graph.initializer}
    inputs = {each.name: each for each in graph.input if each.name not in weights}
    for name in (IDS, MASK):
        if name not in inputs:
            raise CompileError(f"an encoder has the inputs {IDS} and {MASK}; this has {', '.join(inputs)}")
    if more := [name for name in inputs if name not in (IDS, MASK, TYPES)]:
        raise CompileError(f"an encoder has the inputs {IDS}, {MASK} and perhaps {TYPES}, not {more[0]}")
    dims = [each.type.tensor_type.shape.dim for each in inputs.values()]
    if any(len(each) != 2 or not each[1].dim_param for each in dims):
        raise CompileError("inputs of an encoder are [rows, tokens], with a name for the tokens, left open")
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if opset < _LEAST_OPSET:
        raise CompileError(f"pooling needs opset {_LEAST_OPSET}, and the model has {opset}")
    added, nodes = _Nodes(), list(graph.node)
    before: list[onnx.NodeProto] = []
    if TYPES in inputs:
        before = [helper.make_node("Sub", [IDS, IDS], [TYPES])]
        if inputs[TYPES].type.tensor_type.elem_type != inputs[IDS].type.tensor_type.elem_type:
            raise CompileError(f"{TYPES} and {IDS} are of unlike types")
        graph.input.remove(inputs[TYPES])
    output, width = _hidden(graph.output)
    if len(output.type.tensor_type.shape.dim) == 3:
        _pool(added, output.name, how)
    elif output.name != OUTPUT:
        added.add("Identity", [output.name], OUTPUT)
    del graph.node[:], graph.output[:]
    graph.node.extend([*before, *nodes, *added.nodes])
    graph.initializer.extend(added.constants)
    rows, length = inputs[IDS].type.tensor_type.shape.dim
    shape = [rows.dim_param or rows.dim_value or "rows", width]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape))
    return str(length.dim_param)


class _Nodes:
    """Nodes that are put behind a graph's."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: object, dtype: type) -> str:
        """Return the name of a constant."""
        name = f"{_OURS}constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: int) -> str:
        """Return the name of a node's output."""
        name = output or f"{_OURS}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{_OURS}{kind}{len(self.nodes)}"))
        self.nodes[-1].attribute.extend([helper.make_attribute(*each) for each in attributes.items()])
        return name


def _hidden(outputs: Sequence[onnx.ValueInfoProto]) -> tuple[onnx.ValueInfoProto, int]:
    """Return the output that is pooled, or is so already, and its width; raise `CompileError` if there is
    none."""
    found = []
    for each in outputs:
        dims = each.type.tensor_type.shape.dim
        floats = each.type.tensor_type.elem_type == TensorProto.FLOAT
        if floats and len(dims) in (2, 3) and dims[-1].dim_value > 0:
            found.append((each, dims[-1].dim_value))
    # What the model pools itself comes first; of BERT's own pooler, which is none for embeddings, not.
    found.sort(key=lambda each: each[0].name == "pooler_output")
    pooled = [each for each in found if "embedding" in each[0].name]
    hidden = [each for each in found if len(each[0].type.tensor_type.shape.dim) == 3]
    if not (pooled or hidden):
        raise CompileError(
            "an encoder has an output of float32, [rows, tokens, width] or sentence_embedding [rows, width]; "
            f"this has {', '.join([each.name for each in outputs])}"
        )
    return (pooled or hidden)[0]


def _pool(added: _Nodes, hidden: str, how: Pooling) -> None:
    """Pool the tokens' vectors to `OUTPUT`."""
    second = added.constant([1], np.int64)
    if how == "cls":
        first = added.constant(0, np.int64)
        added.add("Gather", [hidden, first], OUTPUT, axis=1)
        return
    mask = added.add("Cast", [MASK], to=TensorProto.FLOAT)
    if how == "last":
        # The mask less itself one token on is 1 at the last token alone: padding is behind the tokens.
        ends, starts = added.constant([np.iinfo(np.int64).max], np.int64), added.constant([1], np.int64)
        rest = added.add("Slice", [mask, starts, ends, second])
        padded = added.add("Pad", [rest, added.constant([0, 0, 0, 1], np.int64)])
        mask = added.add("Sub", [mask, padded])
    column = added.add("Unsqueeze", [mask, added.constant([2], np.int64)])
    weighed = added.add("Mul", [hidden, column])
    summed = added.add("ReduceSum", [weighed, second], keepdims=0)
    count = added.add("ReduceSum", [mask, second], keepdims=1)
    least = added.add("Max", [count, added.constant([1e-9], np.float32)])
    added.add("Div", [summed, least], OUTPUT)
