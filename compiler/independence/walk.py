"""Follows the batch axis through a graph by each operator's rule, from inputs to outputs, into Scan's bodies.

An operator without a rule proves nothing. Either a turn of Scan is a row: then turns may share constants
alone. Or the rows are on another axis: then the body is followed, and what it shows holds for all turns if
the states are arranged behind it as before it. skl2onnx writes distances to the points that an estimator was
fitted on in the second way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from mainspring.compiler.independence import elementwise, layers, moves, products
from mainspring.compiler.independence.counting import MOST_ELEMENTS, count, number, shape_of, size_of
from mainspring.compiler.independence.products import follow_padded
from mainspring.compiler.independence.step import (
    Batch,
    Constant,
    Counted,
    Dim,
    Lost,
    NotProven,
    Numbered,
    Padded,
    Rows,
    Rule,
    Shape,
    Step,
    Value,
    axis_of,
    rows_at,
)
from mainspring.compiler.reading.normalise import SCAN_WITHOUT_BATCH, graphs_of

_ONE_SCALE = "has one scale for all rows of a batch"


def _mixes(why: str) -> Rule:
    def rule(_step: Step) -> list[Value]:
        raise NotProven(why)

    return rule


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_STANDARD: dict[str, Rule] = {
    **_all(
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu "
        "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu "
        "Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu",
        elementwise.first_input,
    ),
    **_all(
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual "
        "Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor",
        elementwise.aligned,
    ),
    **_all("QuantizeLinear DequantizeLinear", elementwise.scaled),
    "StringSplit": products.string_split,
    "TfIdfVectorizer": products.tf_idf,
    "StringConcat": elementwise.aligned,
    "RegexFullMatch": elementwise.first_input,
    "StringNormalizer": elementwise.texts,
    "Dropout": elementwise.dropout,
    "CastLike": elementwise.first_input,
    **_all("Softmax LogSoftmax Hardmax", elementwise.softmax),
    **_all("LayerNormalization RMSNormalization SimplifiedLayerNormalization", elementwise.from_axis),
    "LpNormalization": elementwise.along(-1, "normalises"),
    "CumSum": elementwise.along(0, "sums", 1),
    "CumProd": elementwise.along(0, "multiplies", 1),
    **_all(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
        elementwise.reduction,
    ),
    **_all("ArgMax ArgMin", elementwise.arg_reduction),
    "TopK": elementwise.top_k,
    "OneHot": elementwise.one_hot,
    "Trilu": elementwise.trilu,
    "MeanVarianceNormalization": elementwise.mean_variance,
    "BatchNormalization": elementwise.batch_normalization,
    "ReverseSequence": elementwise.reverse_sequence,
    "Reshape": moves.reshape,
    "Flatten": moves.flatten,
    "Transpose": moves.transpose,
    "Squeeze": moves.squeeze,
    "Unsqueeze": moves.unsqueeze,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "Concat": moves.concat,
    "Split": moves.split,
    "Slice": moves.slice_,
    "Pad": moves.pad,
    "Gather": moves.gather,
    "GatherElements": moves.gather_elements,
    "GatherND": moves.gather_nd,
    "ScatterElements": moves.scatter_elements,
    "ScatterND": moves.scatter_nd,
    "MatMul": products.matmul_at(0, 1),
    "MatMulInteger": products.matmul_at(0, 1),
    "QLinearMatMul": products.matmul_at(0, 3),
    "Gemm": products.gemm,
    "Einsum": products.einsum,
    "Attention": products.attention((0, 1, 2), masks=(6,), biases=(3,)),
    **_all("LSTM GRU RNN", products.recurrent),
    **_all(
        "Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool "
        "GlobalMaxPool QLinearConv SpaceToDepth",
        layers.layer(),
    ),
    **_all("AveragePool LpPool", layers.pool),
    "MaxPool": layers.max_pool,
    "GridSample": layers.layer(1),
    "DeformConv": layers.layer(2, 4),
    **_all("GroupNormalization InstanceNormalization LRN", layers.same_shape),
    **_all("Resize Upsample", layers.resize),
    "DynamicQuantizeLinear": _mixes(_ONE_SCALE),
    "NonZero": _mixes("lists places of the whole batch"),
    "Unique": _mixes("compares elements of the whole batch"),
    "Compress": _mixes("leaves out elements of the whole batch"),
    "NonMaxSuppression": _mixes("lists boxes of the whole batch"),
    "Range": _mixes("numbers the rows"),
}

_MICROSOFT: dict[str, Rule] = {
    **_all("BiasGelu FastGelu", elementwise.aligned),
    **_all("Gelu QuickGelu QLinearLeakyRelu QLinearSigmoid", elementwise.first_input),
    **_all("QLinearAdd QLinearMul", elementwise.operands(0, 3)),
    "Tokenizer": products.tokenizer,
    "QLinearWhere": elementwise.operands(0, 1, 4),
    **_all("QuantizeLinear DequantizeLinear", elementwise.scaled),
    "QLinearSoftmax": elementwise.softmax,
    "QLinearConcat": layers.concat_pairs,
    **_all("FusedConv NhwcFusedConv", layers.fused),
    **_all("QLinearConv QLinearAveragePool QLinearGlobalAveragePool NhwcMaxPool", layers.layer()),
    "FusedGemm": products.gemm,
    **_all("FusedMatMul TransposeMatMul", products.fused_matmul),
    "MatMulIntegerToFloat": products.matmul_at(0, 1),
    "QGemm": products.quantised_gemm,
    "MatMulNBits": products.packed_product,
    "Attention": products.attention((0,), masks=(3,), biases=(5,)),
    "MultiHeadAttention": products.attention((0, 1, 2), masks=(4,), biases=(5,)),
    "EmbedLayerNormalization": layers.embedding,
    "SkipLayerNormalization": layers.added_norm,
    "SkipSimplifiedLayerNormalization": layers.added_norm,
    **_all("DynamicQuantizeLSTM DynamicQuantizeMatMul QAttention", _mixes(_ONE_SCALE)),
}

_BLOCKED: dict[str, Rule] = {
    **_all("ReorderInput ReorderOutput", layers.reorder),
    "Conv": layers.fused,
    **_all("AveragePool GlobalAveragePool GlobalMaxPool MaxPool", layers.blocked_pool),
    "Upsample": layers.blocked_upsample,
}
"""ONNX Runtime's own, of channels in blocks."""

_ESTIMATORS: dict[str, Rule] = {
    **_all("TreeEnsembleClassifier LinearClassifier SVMClassifier", layers.estimator(1, 2)),
    **_all("TreeEnsembleRegressor TreeEnsemble LinearRegressor SVMRegressor", layers.estimator(2)),
    **_all("Binarizer Imputer Normalizer Scaler", layers.table_row),
    **_all("CategoryMapper LabelEncoder", elementwise.first_input),
    "ArrayFeatureExtractor": layers.columns,
    "FeatureVectorizer": layers.features,
    "OneHotEncoder": layers.one_hot_encoder,
}

_TABLE: Mapping[str, Mapping[str, Rule]] = {
    "": _STANDARD,
    "ai.onnx": _STANDARD,
    "ai.onnx.ml": _ESTIMATORS,
    "com.microsoft": _MICROSOFT,
    "com.microsoft.nchwc": _BLOCKED,
}


def rule_of(domain: str, operator: str) -> Rule | None:
    """Return an operator's rule; None if it has none."""
    return _TABLE.get(domain, {}).get(operator)


_CONTROL_FLOW = "is control flow"

Follow = Callable[[onnx.GraphProto, Mapping[str, Value]], Mapping[str, Value]]
"""Returns the facts about the values of a graph inside, by those that it begins with."""


def scan(step: Step, outside: Mapping[str, Value], follow: Follow) -> list[Value]:
    """Return a Scan's outputs; ``outside`` are the values that its body may read."""
    if step.node.op_type != "Scan" or step.node.domain or step.opset < SCAN_WITHOUT_BATCH:
        raise NotProven(_CONTROL_FLOW)
    body = step.attribute("body")
    cut = step.attribute("num_scan_inputs")
    states = len(body.input) - cut
    begin = [_plain(step.given(index)) for index in range(states)]
    axes = step.attribute("scan_input_axes", [0] * cut)
    slices = [_Slice(step.given(states + index), axis) for index, axis in enumerate(axes)]
    names = [value.name for value in body.input]
    facts = [*begin, *(each.inside for each in slices)]
    inside = follow(body, {**outside, **dict(zip(names, facts, strict=True))})
    ends = [_plain(inside[value.name]) for value in body.output]
    if any(each.by_row for each in slices):
        _check_alone(step, body, slices, [*begin, *(outside.get(name) for name in _seen(body))])
        turns: Dim = slices[0].turns
    else:
        if ends[:states] != begin:
            raise NotProven("leaves the next turn its rows arranged otherwise")
        turns = next((each.turns for each in slices if each.turns is not None), None)
    stacked = ends[states:]
    axes = step.attribute("scan_output_axes", [0] * len(stacked))
    of = slices[0].value if slices[0].by_row else None
    return [*begin, *(_put_together(end, axis, turns, of) for end, axis in zip(stacked, axes, strict=True))]


class _Slice:
    """An input of which each turn sees a slice."""

    def __init__(self, value: Value, axis: int) -> None:
        self.value = _plain(value)
        if self.value.shape is None:
            raise NotProven("takes its turns along an axis that isn't known")
        axis = axis_of(axis, len(self.value.shape))
        self.turns = self.value.shape[axis]
        self.by_row = isinstance(self.value, Rows) and self.value.axis == axis
        shape: Shape = (*self.value.shape[:axis], *self.value.shape[axis + 1 :])
        self.inside: Value = Constant(shape)
        if isinstance(self.value, Rows) and not self.by_row:
            self.inside = rows_at(shape, self.value.axis - (axis < self.value.axis), self.value)


def _plain(value: Value) -> Rows | Constant:
    """Return a value as it is in every turn: rows, or a constant of which only the shape stays."""
    if isinstance(value, Constant):
        return Constant(value.shape)
    if not isinstance(value, Rows):
        raise NotProven(_CONTROL_FLOW)
    return value


def _check_alone(
    step: Step, body: onnx.GraphProto, slices: Sequence[_Slice], shared: Sequence[Value | None]
) -> None:
    """Raise `NotProven` unless each turn computes on its own row and on constants."""
    whole = [each.value for each in slices if isinstance(each.value, Rows) and each.by_row]
    apart = len(whole) == len(slices) and all(each.same_slices(whole[0]) for each in whole)
    if not apart or not all(isinstance(value, Constant) for value in shared):
        raise NotProven("has rows in what all of its turns see")
    turned = [*step.attribute("scan_input_directions", []), *step.attribute("scan_output_directions", [])]
    if any(turned) or not _passed_on(body, len(body.input) - len(slices)):
        raise NotProven("has what one row leaves in the turn of the next")


def _passed_on(body: onnx.GraphProto, states: int) -> bool:
    """Say whether the first outputs are the first inputs."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for value, state in zip(body.output[:states], body.input[:states], strict=True):
        name = value.name
        while name in sources:
            name = sources[name]
        if name != state.name:
            return False
    return True


def _seen(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph inside reads from those around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in node.input if name and name not in own)
        for inner in graphs_of(node):
            yield from (name for name in _seen(inner) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def _put_together(end: Rows | Constant, axis: int, turns: Dim, by_row: Rows | Constant | None) -> Value:
    """Return the output that one slice of each turn makes."""
    if end.shape is None:
        raise NotProven("has outputs of a shape that can't be inferred")
    axis = axis_of(axis, len(end.shape) + 1)
    shape = (*end.shape[:axis], turns, *end.shape[axis:])
    if isinstance(by_row, Rows):
        return rows_at(shape, axis, by_row)
    return rows_at(shape, end.axis + (axis <= end.axis), end) if isinstance(end, Rows) else Constant(shape)


def why_rows_mix(model: onnx.ModelProto, weights: frozenset[str] = frozenset()) -> str:
    """Return why requests of different callers can't share a batch; empty if no row depends on another.

    Every input of ``model`` has the batch as its open first axis, except those named in ``weights``, which
    are constants. The text names the first node without a proof.
    """
    outputs = dict.fromkeys((output.name for output in model.graph.output), 0)
    return _why_not(follow(model, weights), outputs)


def why_places_mix(model: onnx.ModelProto, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> str:
    """Return why places along an axis depend on each other; empty if each follows from its own alone.

    ``inputs`` and ``outputs`` have the axis of each that has it; inputs that don't are constants for it.
    """
    return _why_not(follow(model, axes=inputs), outputs)


def _why_not(values: Mapping[str, Value], outputs: Mapping[str, int]) -> str:
    """Return why these axes of the outputs aren't those that were followed; empty if they are."""
    for name, axis in outputs.items():
        value = values.get(name)
        if isinstance(value, Lost):
            return value.reason
        if not isinstance(value, Rows) or (value.axis, value.outer, value.inner) != (axis, 1, 1):
            what = "the first axis" if axis == 0 else f"axis {axis}"
            return f"{what} of output {name!r} isn't proven to be the rows"
    return ""


def follow(
    model: onnx.ModelProto,
    weights: frozenset[str] = frozenset(),
    axes: Mapping[str, int] | None = None,
) -> dict[str, Value]:
    """Return the facts about each value of the graph, by its name; for ``weights`` see `why_rows_mix`.

    ``axes`` are those to follow, by input, instead of the first of each; other inputs are constants then.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opsets[""] = opsets.get("", opsets.get("ai.onnx", 1))
    own = {(function.domain, function.name) for function in model.functions}
    return _Walk(opsets, own).through(model.graph, _beginning(model.graph, weights, axes))


class _Walk(NamedTuple):
    opsets: Mapping[str, int]
    own: Collection[tuple[str, str]]
    """The model's own functions, by domain and name."""

    def through(self, graph: onnx.GraphProto, values: dict[str, Value]) -> dict[str, Value]:
        """Return the facts with those about the outputs of the graph's nodes."""
        for node in graph.node:
            found = _after(node, values, self)
            if (node.domain, node.op_type) in self.own:
                # A local function may have the name of an operator in the table.
                which = f"node {node.name!r} ({node.op_type})"
                why = f"{which} is a function of the model's own that isn't inlined"
                found = [Lost(why)] * len(node.output)
            values.update((name, value) for name, value in zip(node.output, found, strict=True) if name)
        return values

    def inside(self, graph: onnx.GraphProto, begin: Mapping[str, Value]) -> dict[str, Value]:
        """Return the facts about the values of a graph that a node runs; ``begin`` are those that it sees."""
        found = self.through(graph, {**begin, **_initializers(graph)})
        lost = next((value for value in found.values() if isinstance(value, Lost)), None)
        if lost is not None:
            raise NotProven(f"runs what isn't proven: {lost.reason}")
        return found


def _beginning(
    graph: onnx.GraphProto, weights: frozenset[str], axes: Mapping[str, int] | None
) -> dict[str, Value]:
    """Return the values that the nodes begin with."""
    values = _initializers(graph)
    for value in graph.input:
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in
                value.type.tensor_type.shape.dim]  # fmt: skip
        axis = 0 if axes is None else axes.get(value.name)
        if value.name in weights or (axis is None and value.name not in values):
            values[value.name] = Constant(tuple(dims))
        elif axis is not None and value.name not in values:
            values[value.name] = Rows((*dims[:axis], Batch(), *dims[axis + 1 :]), axis)
    return values


def _initializers(graph: onnx.GraphProto) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for tensor in graph.initializer:
        shape = tuple(tensor.dims)
        small = math.prod(shape) <= MOST_ELEMENTS and tensor.data_type != onnx.TensorProto.STRING
        values[tensor.name] = Constant(shape, numpy_helper.to_array(tensor) if small else None)
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = Constant(tuple(sparse.dims))
    return values


def _after(node: onnx.NodeProto, values: Mapping[str, Value], walk: _Walk) -> Sequence[Value]:
    """Return the facts about the node's outputs; never raises."""
    inputs = [values.get(name, Lost(f"{name!r} is not computed")) if name else None for name in node.input]
    lost = next((value for value in inputs if isinstance(value, Lost)), None)
    if lost is not None:
        return [lost] * len(node.output)
    domain = "" if node.domain == "ai.onnx" else node.domain
    step = Step(node, inputs, walk.opsets.get(domain, 1))
    try:
        found = scan(step, values, walk.inside) if graphs_of(node) else _followed(step, domain)
        if len(found) == len(node.output):
            return found
        why = "has other outputs than are known"
    except NotProven as error:
        why = str(error)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A graph that contradicts itself proves nothing.
        why = f"can't be followed ({type(error).__name__}: {error})"
    of = f" of {node.domain}" if domain else ""
    return [Lost(f"node {node.name!r} ({node.op_type}{of}) {why}")] * len(node.output)


def _followed(step: Step, domain: str) -> Sequence[Value]:
    """Return the outputs by the operator's rule; raise `NotProven`."""
    node = step.node
    if domain == "" and node.op_type == "Shape":
        return [shape_of(step)]
    if domain == "" and node.op_type == "Size":
        return [size_of(step)]
    given = [value for value in step.inputs if value is not None]
    if all(isinstance(value, Constant) for value in given):
        return _constants(step, domain)
    ends_with_rows = node.op_type == "Range" and any(isinstance(value, Counted) for value in given)
    if domain == "" and (ends_with_rows or any(isinstance(value, Numbered) for value in given)):
        return number(step)
    if any(isinstance(value, Padded) for value in given):
        return follow_padded(step)
    rule = rule_of(domain, node.op_type)
    if not any(isinstance(value, Rows) for value in given) and domain == "":
        return [count(step)]
    if rule is None:
        raise NotProven("isn't known to keep rows apart")
    return rule(step)


def _constants(step: Step, domain: str) -> list[Value]:
    """Return the result of constants alone: a constant, with its value if it may be a shape."""
    if domain == "" and all(value is None or _is_small(value) for value in step.inputs):
        try:
            return [count(step)]
        except (NotProven, AttributeError, LookupError, TypeError, ValueError):
            pass
    shapes = step.inferred()
    if shapes == [None] and rule_of(domain, step.node.op_type) is elementwise.aligned:
        # ONNX infers nothing where a type isn't known, such as that of And's operands.
        known = [value.shape for value in step.inputs if isinstance(value, Constant)]
        plain = [[dim for dim in shape or () if isinstance(dim, int)] for shape in known]
        if all(
            shape is not None and len(dims) == len(shape) for shape, dims in zip(known, plain, strict=True)
        ):
            shapes = [np.broadcast_shapes(*map(tuple, plain))]
    return [Constant(shape) for shape in shapes]


def _is_small(value: Value) -> bool:
    return isinstance(value, Constant | Counted) and (
        not isinstance(value, Constant) or (value.array is not None and value.array.size <= MOST_ELEMENTS)
    )
