"""Outputs whose sizes follow from values: which axes vary, and how large they can be.

Some operators make tensors whose sizes are known only after a run: NonZero, NonMaxSuppression, Unique,
Compress, and those whose shape is given by a computed value, such as TopK's k. Memory for outputs needs a
bound. For the first ones, TopK and Slice it follows from the shapes of what they read: their outputs are
taken to be as large as they can be, and ONNX's shape inference tells what follows, through operators whose
outputs only grow with their inputs. Where a size has no such bound the caller has to measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.reading.normalise import graphs_of, infer_shapes
from mainspring.compiler.sizes.work import skeleton_at, without_weights

Dims = tuple[int | None, ...]
"""A shape, None where a size is not known."""

MEASURED_BYTES = 1 << 20
"""Memory for an output whose size no rule bounds, unless it was seen larger than a part of that."""
MOST_BYTES = 16 << 20
"""Most memory for an output that varies, unless it follows from the sizes that a request chooses."""
_TIMES = 4
"""Ratio by which an output without a bound may be larger along an axis than it was seen."""
_MOST_TURNS = 32
"""Most repetitions of inference: one for each operator of the kind on a way through the model."""
_SHAPES = {"Shape", "Size"}
"""Operators whose results depend on the shapes of their inputs, not on values."""
_ALWAYS = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit", "Tokenizer"}
_BY_PARAMETERS = {
    "TopK": (1,),
    "Slice": (1, 2, 3, 4),
    "Range": (0, 1, 2),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Pad": (1,),
    "OneHot": (1,),
}
"""Inputs that decide the shape of an operator's output, by operator."""
_GROWING = {
    *("Identity", "Cast", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Gather", "GatherND"),
    *("GatherElements", "ScatterND", "ScatterElements", "MatMul", "Gemm", "Where", "Clip", "Softmax", "Relu"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Neg", "Abs", "Exp", "Log", "Sqrt", "Sigmoid"),
    *("Tanh", "Erf", "Floor", "Ceil", "Round", "Not", "And", "Or", "Xor", "Equal", "Greater", "Less", "Sign"),
    *("GreaterOrEqual", "LessOrEqual", "IsNaN", "IsInf", "LayerNormalization", "LogSoftmax", "Reciprocal"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin", "CumSum"),
}
"""Operators whose outputs are nowhere smaller where their inputs are larger."""

_Shapes = Mapping[str, Dims]
_Constants = Mapping[str, onnx.TensorProto]


class Varying:
    """The known facts about a model's outputs that vary."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """``model`` is a normalised one; its inputs' dimensions may be open."""
        self._skeleton = without_weights(model)
        graph = self._skeleton.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        deciding = _deciding(graph, {value.name for value in model.graph.input})
        self._deciding = {node.output[0] for node in deciding}
        self._tainted = _reached(graph, self._deciding)
        # Bounds that came through other operators say nothing.
        leaps = {
            node.output[0]
            for node in graph.node
            if {*node.input} & self._tainted
            and node.output[0] not in self._deciding
            and node.op_type not in _GROWING
        }
        leaps |= {node.output[0] for node in deciding if node.op_type not in _BOUNDS}
        self._unbounded = _reached(graph, leaps)

    def __bool__(self) -> bool:
        return bool(self._tainted & {value.name for value in self._skeleton.graph.output})

    def most(self, sizes: Mapping[str, int]) -> list[dict[int, int | None]]:
        """Return for each output the axes that vary, behind the first one, each with its bound if it has one.

        ``sizes`` are those of the open dimensions, by name.
        """
        model = skeleton_at(self._skeleton, sizes)
        exact, bounded = self._followed(model, largest=False), self._followed(model, largest=True)
        found: list[dict[int, int | None]] = []
        for value in model.graph.output:
            before, after = exact.get(value.name, ()), bounded.get(value.name, ())
            axes = [k for k, size in enumerate(before) if size is None and value.name in self._tainted]
            sound = value.name not in self._unbounded and len(after) == len(before)
            found.append({axis - 1: after[axis] if sound else None for axis in axes if axis})
        return found

    def _followed(self, model: onnx.ModelProto, *, largest: bool) -> _Shapes:
        """Return the shapes of the model's tensors; sizes that vary are the ``largest``, or unknown."""
        followed = onnx.ModelProto()
        followed.CopyFrom(model)
        told: dict[str, Dims] = {}
        for _ in range(_MOST_TURNS):
            shapes = _inferred(followed)
            before = len(told)
            for node in model.graph.node:
                if node.output[0] not in self._deciding or node.output[0] in told:
                    continue
                bound = _BOUNDS.get(node.op_type)
                results = None if bound is None else bound(node, shapes, self._constants)
                if results is None or (largest and any(None in dims for dims, _ in results)):
                    continue
                for name, (dims, varies) in zip(node.output, results, strict=False):
                    if name:
                        told[name] = tuple(
                            None if axis in varies and not largest else size for axis, size in enumerate(dims)
                        )
                        followed.graph.value_info.append(
                            helper.make_tensor_value_info(name, _ANY, told[name])
                        )
            if len(told) == before:
                return shapes
        return {}


_ANY = onnx.TensorProto.UNDEFINED
Results = list[tuple[Dims, frozenset[int]]]
"""The largest shape of each output of a node, and the axes along which it varies."""
Bound = Callable[[onnx.NodeProto, _Shapes, _Constants], Results | None]


def _product(dims: Dims) -> int | None:
    known = [size for size in dims if size is not None]
    return math.prod(known) if len(known) == len(dims) else None


def _of_nonzero(node: onnx.NodeProto, shapes: _Shapes, _constants: _Constants) -> Results | None:
    dims = shapes.get(node.input[0])
    return None if dims is None else [((len(dims), _product(dims)), frozenset({1}))]


def _of_unique(node: onnx.NodeProto, shapes: _Shapes, _constants: _Constants) -> Results | None:
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    axis = _attribute(node, "axis")
    count = _product(dims) if axis is None else dims[axis]
    unique = (count,) if axis is None else dims
    along, some = frozenset({0 if axis is None else axis % len(dims)}), frozenset({0})
    return [(unique, along), ((count,), some), ((count,), frozenset()), ((count,), some)]


def _of_compress(node: onnx.NodeProto, shapes: _Shapes, _constants: _Constants) -> Results | None:
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    axis = _attribute(node, "axis")
    if axis is None:
        return [((_product(dims),), frozenset({0}))]
    return [(dims, frozenset({axis % len(dims)}))]


def _of_top_k(node: onnx.NodeProto, shapes: _Shapes, _constants: _Constants) -> Results | None:
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    axis = _attribute(node, "axis")
    return [(dims, frozenset({(-1 if axis is None else axis) % len(dims)}))] * 2


def _of_slice(node: onnx.NodeProto, shapes: _Shapes, constants: _Constants) -> Results | None:
    dims = shapes.get(node.input[0])
    if dims is None:
        return None
    axes = constants.get(node.input[3]) if len(node.input) > 3 else None
    along = [*range(len(dims))] if axes is None else numpy_helper.to_array(axes).reshape(-1).tolist()
    return [(dims, frozenset(axis % len(dims) for axis in along))]


def _of_suppression(node: onnx.NodeProto, shapes: _Shapes, constants: _Constants) -> Results | None:
    scores = shapes.get(node.input[1])
    if scores is None or len(scores) != _SCORES_AXES:
        return None
    limit = constants.get(node.input[2]) if len(node.input) > 2 else None
    boxes = scores[2]
    if limit is not None and boxes is not None:
        boxes = max(0, min(boxes, int(numpy_helper.to_array(limit).reshape(-1)[0])))
    return [((_product((scores[0], scores[1], boxes)), 3), frozenset({0}))]


_SCORES_AXES = 3
"""Batch, class and box."""
_BOUNDS: Mapping[str, Bound] = {
    "NonZero": _of_nonzero,
    "NonMaxSuppression": _of_suppression,
    "Unique": _of_unique,
    "Compress": _of_compress,
    "TopK": _of_top_k,
    "Slice": _of_slice,
}


def _attribute(node: onnx.NodeProto, name: str) -> int | None:
    return next((each.i for each in node.attribute if each.name == name), None)


def _deciding(graph: onnx.GraphProto, inputs: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes of which values, not only shapes of ``inputs``, decide the shape of an output."""
    values = set(inputs)
    varying, found = set[str](), []
    for node in graph.node:
        read = {*node.input}
        parameters = {node.input[k] for k in _BY_PARAMETERS.get(node.op_type, ()) if k < len(node.input)}
        if parameters & values or (node.op_type in _ALWAYS and read & values):
            found.append(node)
            varying.update(node.output)
        if read & varying:
            varying.update(node.output)
        of_values = read & varying if node.op_type in _SHAPES else read & values
        if of_values or graphs_of(node):
            values.update(node.output)
    return found


def values_decide(model: onnx.ModelProto) -> bool:
    """Say whether values of a model's inputs decide the shape of some tensor in it."""
    return bool(_deciding(model.graph, {value.name for value in model.graph.input}))


def _reached(graph: onnx.GraphProto, names: set[str]) -> set[str]:
    """Return what follows from these values, with them."""
    found = set(names)
    for node in graph.node:
        if ({*node.input} | {*node.output}) & found:
            found.update(node.output)
    return found


def sized_by_values(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors whose sizes may follow from values, so that they may also be empty.

    They are behind operators that values decide the shape of, and behind control flow.
    """
    deciding = _deciding(graph, {value.name for value in graph.input})
    deciding += [node for node in graph.node if graphs_of(node) or "Sequence" in node.op_type]
    return _reached(graph, {name for node in deciding for name in node.output if name})


def _inferred(model: onnx.ModelProto) -> _Shapes:
    """Return the shapes that follow from those of the inputs."""
    try:
        inferred = infer_shapes(model, data_prop=True)
    except Exception:  # The onnx library raises any class for graphs that it can't follow.
        return {}
    values = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    found: dict[str, Dims] = {tensor.name: tuple(tensor.dims) for tensor in inferred.graph.initializer}
    for value in values:
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            found[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim
            )
    return found


def room(measured: Sequence[int], bounds: Mapping[int, int | None], item_bytes: int) -> tuple[int, ...]:
    """Return the largest shape that an output gets memory for.

    ``measured`` is the largest that was seen, ``bounds`` has each axis that varies, with None where nothing
    says how far: there it may be `_TIMES` times as large as it was seen, or `MEASURED_BYTES` if that is more.
    """
    dims = [size if bounds.get(axis) is None else bounds[axis] or 0 for axis, size in enumerate(measured)]
    unknown = [axis for axis, bound in bounds.items() if bound is None]
    if unknown:
        others = item_bytes * math.prod(max(size, 1) for axis, size in enumerate(dims) if axis not in unknown)
        share = math.floor((MEASURED_BYTES / others) ** (1 / len(unknown)))
        for axis in unknown:
            dims[axis] = max(_TIMES * measured[axis], share, 1)
    return tuple(dims)


def capped(
    shape: tuple[int, ...], measured: Sequence[int], axes: Sequence[int], item_bytes: int
) -> tuple[int, ...]:
    """Return a shape of at most `MOST_BYTES`, or of what was measured; the longest axes that vary shrink."""
    dims = list(shape)
    for longest in sorted(axes, key=lambda axis: shape[axis], reverse=True):
        size = item_bytes * math.prod(dims)
        if size > MOST_BYTES:
            dims[longest] = max(MOST_BYTES // (size // dims[longest]), measured[longest])
    return tuple(dims)
