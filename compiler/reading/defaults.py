"""Initializers that are inputs, too: defaults that a request may override (ONNX, from IR version 4 on).

Up to IR 3 every initializer had to be listed as an input, and some exporters still list all of them, which
makes no weight an argument. So what is listed counts as a default if the file has other initializers, which
it does not list; if not, only in a file that lists few, none of them as a weight of a layer. A default is
small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from mainspring.compiler.artifact.errors import AS_IT_IS, CompileError, NoRows
from mainspring.compiler.reading.contents import array_of
from mainspring.compiler.reading.normalise import all_nodes

MOST_BYTES = 64 << 10
"""Most bytes of a default."""
_OVERRIDABLE_IR = 4
_FEW = 8
_LAYERS = {
    *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "Gemm", "MatMul", "MatMulInteger", "Einsum"),
    *("QLinearMatMul", "LSTM", "GRU", "RNN", "BatchNormalization", "InstanceNormalization", "Attention"),
    *("LayerNormalization", "GroupNormalization", "PRelu", "QuantizeLinear", "DequantizeLinear", "Gather"),
    *("Reshape", "Slice", "Resize", "Upsample", "Pad", "Tile", "Expand", "Split", "Squeeze", "Unsqueeze"),
    *("ConstantOfShape", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"),
    *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "CenterCropPad", "DFT", "Range"),
}
"""Operators whose initializers are weights, or decide shapes."""

Defaults = Mapping[str, Any]
"""Arrays by the input's name."""
NO_DEFAULTS: Defaults = {}


def take_defaults(model: onnx.ModelProto, named: Collection[str] = ()) -> dict[str, Any]:
    """Make inputs without initializers of those that requests may override; return their values.

    ``named`` are inputs that the operator says are optional. Raises `CompileError` for one of another kind.
    """
    graph = model.graph
    listed = {value.name: value for value in graph.input}
    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.name in listed}
    for name in named:
        if name not in tensors:
            raise CompileError(
                f"input {name!r} is said to be optional, and the model has no default for it: that is an "
                "initializer of the same name"
            )
    chosen = {*named} | _overridable(model, tensors)
    for name in sorted(chosen):
        tensor = tensors[name]
        listed[name].type.tensor_type.elem_type = tensor.data_type
        listed[name].type.tensor_type.shape.Clear()
        for size in tensor.dims:
            listed[name].type.tensor_type.shape.dim.add().dim_value = size
        listed[name].type.tensor_type.shape.SetInParent()
    rest = [tensor for tensor in graph.initializer if tensor.name not in chosen]
    found = {name: _value(tensors[name]) for name in sorted(chosen)}
    del graph.initializer[:]
    graph.initializer.extend(rest)
    return found


def _value(tensor: onnx.TensorProto) -> Any:
    array = array_of(tensor)
    return array.astype(bytes) if array.dtype == object else array


def _overridable(model: onnx.ModelProto, listed: Mapping[str, onnx.TensorProto]) -> set[str]:
    """Return which listed initializers are defaults by the file itself."""
    if model.ir_version < _OVERRIDABLE_IR or not listed:
        return set()
    small = {name for name, tensor in listed.items() if _bytes(tensor) <= MOST_BYTES}
    if len(listed) < len(model.graph.initializer):
        return small
    weights = {name for node in all_nodes(model.graph) if node.op_type in _LAYERS for name in node.input}
    return set() if len(listed) > _FEW or weights & {*listed} else small


def _bytes(tensor: onnx.TensorProto) -> int:
    return int(tensor.ByteSize()) if tensor.data_type == TensorProto.STRING else 8 * math.prod(tensor.dims)


def check_whole(defaults: Defaults, *, whole: bool) -> None:
    """Raise `NoRows` if a model with defaults is to have rows: each request may have its own values."""
    if defaults and not whole:
        raise NoRows(
            f"input {next(iter(defaults))!r} has a default that each request may override, for all of its "
            f"rows, so requests can't share a run; {AS_IT_IS}"
        )


def as_bytes(array: Any, dtype: str) -> bytes:
    """Return a default as it stands in an input's memory."""
    from mainspring.messages.model import array_dtype

    return np.ascontiguousarray(array.astype(array_dtype(dtype))).tobytes()
