"""Lowers an ONNX graph with Relax to functions of loops and a straight line of calls, with channels last.

ONNX Runtime's basic optimisations come first, and leave only operators of the standard; then ``split`` takes
the weights out. All names are canonical (TVM makes identifiers of names, and ``layer/0/weight`` is not one),
so models of one architecture are the same. Weights are parameters of the model's function. TVM lifts
computations that depend only on weights into a function that ``build`` runs once, offline.

Convolutions and pools work on rows of channels (NHWC, weights HWIO): the innermost loop runs over output
channels, whose weights and results are adjacent. Values keep this layout through everything that works
element by element, and are transposed back only for operators that this file does not know. (TVM's own
ConvertLayout stops at operators with five axes and transposes around what it does not know.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.frontend.onnx import from_onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import GraphTensor, IoTensor
from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.program.split import Split, split
from mainspring.compiler.reading.stock import optimise_portably
from mainspring.compiler.reference import Prepared
from mainspring.compiler.tvm.line import Line, read_line

_TO_LAST = (0, 2, 3, 1)

_TO_FIRST = (0, 3, 1, 2)

_OIHW_TO_HWIO = (2, 3, 1, 0)

_AXIS = (0, 3, 1, 2)
"""Index in NHWC of each axis of NCHW."""

_ELEMENTWISE = {
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.power"),
    *("relax.maximum", "relax.minimum", "relax.where", "relax.less", "relax.greater"),
    *("relax.less_equal", "relax.greater_equal", "relax.equal", "relax.not_equal"),
    *("relax.nn.relu", "relax.nn.leakyrelu", "relax.nn.gelu", "relax.nn.silu", "relax.nn.softplus"),
    *("relax.sigmoid", "relax.tanh", "relax.exp", "relax.log", "relax.sqrt", "relax.rsqrt", "relax.erf"),
    *("relax.abs", "relax.negative", "relax.clip", "relax.square", "relax.floor", "relax.ceil"),
}

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "relax.mean": op.mean,
    "relax.sum": op.sum,
    "relax.max": op.max,
}

_POOLS: dict[str, Callable[..., Any]] = {
    "relax.nn.max_pool2d": op.nn.max_pool2d,
    "relax.nn.avg_pool2d": op.nn.avg_pool2d,
}


def channels_last(module: Any) -> Any:
    """Return the module with the images of its function ``main`` in the new layout."""
    functions = module.functions.items()
    others = {variable: function for variable, function in functions if variable.name_hint != "main"}
    return _Rewriter(tvm.IRModule(others)).rewrite(module["main"])


class _Rewriter:
    """Rebuilds a function, binding by binding; it keeps each image's existing layouts."""

    def __init__(self, module: Any) -> None:
        self._builder = relax.BlockBuilder(module)
        self._first: dict[Any, Any] = {}
        """Value in the old layout of each variable of the old function."""
        self._last: dict[Any, Any] = {}
        """The same in the new layout."""

    def rewrite(self, function: Any) -> Any:
        """Return the module with the function rebuilt."""
        builder = self._builder
        for parameter in function.params:
            self._first[parameter] = parameter
        with builder.function("main", list(function.params), attrs=dict(function.attrs.items())):
            with builder.dataflow():
                for block in function.body.blocks:
                    for binding in block.bindings:
                        self._bind(binding.var, binding.value)
                result = builder.emit_output(self._rebuilt(function.body.body))
            builder.emit_func_output(result)
        return builder.get()

    def _bind(self, variable: Any, value: Any) -> None:
        if isinstance(value, relax.Call):
            image = self._image(value)
            if image is not None:
                self._last[variable] = self._builder.emit(image)
                return
        self._first[variable] = self._builder.emit(self._rebuilt(value))

    def _image(self, call: Any) -> Any | None:
        """Return the call in the new layout; None if it has to keep the old one."""
        name = getattr(call.op, "name", "")
        if name == "relax.nn.conv2d" and call.attrs.data_layout == "NCHW":
            return self._convolution(call)
        if not any(argument in self._last for argument in _leaves(call)):
            return None
        if name in _POOLS and call.attrs.layout == "NCHW":
            return _pool(call, self._in_last(call.args[0]))
        if name in _ELEMENTWISE and _rank(call) == 4:
            return self._elementwise(call)
        if name in _REDUCTIONS and call.attrs.keepdims and call.attrs.axis is not None and _rank(call) == 4:
            axes = [_AXIS[int(axis) % 4] for axis in call.attrs.axis]
            return _REDUCTIONS[name](self._in_last(call.args[0]), axes, keepdims=True)
        if name == "relax.concat" and _rank(call) == 4 and call.attrs.axis is not None:
            parts = [self._in_last(part) for part in call.args[0].fields]
            return op.concat(parts, _AXIS[int(call.attrs.axis) % 4])
        return None

    def _convolution(self, call: Any) -> Any:
        attrs = call.attrs
        return op.nn.conv2d(
            self._in_last(call.args[0]),
            op.permute_dims(self._in_first(call.args[1]), _OIHW_TO_HWIO),
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            groups=attrs.groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=attrs.out_dtype,
        )

    def _elementwise(self, call: Any) -> Any:
        """Return the call on operands of four axes, or of one number."""
        operands = []
        for argument in call.args:
            shape = _shape(argument)
            if len(shape) == 4:
                operands.append(self._in_last(argument))
            elif math.prod(shape) == 1 and len(shape) <= 1:
                operands.append(self._in_first(argument))
            else:
                whole = (*[1] * (4 - len(shape)), *shape)
                wide = self._builder.emit(op.reshape(self._in_first(argument), whole))
                operands.append(self._builder.emit(op.permute_dims(wide, _TO_LAST)))
        return relax.Call(call.op, operands, call.attrs)

    def _in_last(self, argument: Any) -> Any:
        """Return an operand of four axes in the new layout."""
        if argument not in self._last:
            self._last[argument] = self._builder.emit(op.permute_dims(self._in_first(argument), _TO_LAST))
        return self._last[argument]

    def _in_first(self, argument: Any) -> Any:
        """Return an operand in the old layout."""
        if not isinstance(argument, relax.Var):
            return self._rebuilt(argument)
        if argument not in self._first:
            last = self._last[argument]
            rows, height, width, channels = _shape(last)
            # A pixel's channels lie in the same order in both layouts.
            back = (
                op.reshape(last, (rows, channels, 1, 1))
                if height == width == 1
                else op.permute_dims(last, _TO_FIRST)
            )
            self._first[argument] = self._builder.emit(back)
        return self._first[argument]

    def _rebuilt(self, value: Any) -> Any:
        """Return an expression with its operands in the old layout."""
        match value:
            case relax.Var():
                return self._in_first(value)
            case relax.Tuple():
                return relax.Tuple([self._rebuilt(field) for field in value.fields])
            case relax.TupleGetItem():
                return relax.TupleGetItem(self._rebuilt(value.tuple_value), value.index)
            case relax.Call():
                operands = [self._rebuilt(argument) for argument in value.args]
                return relax.Call(value.op, operands, value.attrs, value.ty_args)
        return value


def _pool(call: Any, image: Any) -> Any:
    attrs = call.attrs
    return _POOLS[call.op.name](
        image,
        pool_size=attrs.pool_size,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        ceil_mode=attrs.ceil_mode,
        count_include_pad=attrs.count_include_pad,
        layout="NHWC",
        out_layout="NHWC",
    )


def _leaves(call: Any) -> list[Any]:
    """Return the call's operands, those of a tuple one by one."""
    found: list[Any] = []
    for argument in call.args:
        found.extend(argument.fields if isinstance(argument, relax.Tuple) else [argument])
    return found


def _rank(expression: Any) -> int | None:
    return int(expression.ty.ndim) if hasattr(expression.ty, "ndim") else None


def _shape(expression: Any) -> list[int]:
    return [int(dimension) for dimension in expression.ty.shape]


_LIFTED = "main_transform_params"

_PASSES = relax.transform

_EXTREMES = {"relax.less": relax.op.maximum, "relax.greater": relax.op.minimum}
"""The operator that equals choosing the bound where the value compares like this with it."""


class Lowered(NamedTuple):
    """A model at one of its shapes."""

    line: Line
    functions: dict[str, Any]
    """The functions of loops that the line calls, by name."""
    packing: Any
    """A Relax function from the model's weights to those that the line reads."""


def lower(graph: bytes, shape: Shape, inputs: Sequence[IoTensor], weights: Sequence[GraphTensor]) -> Lowered:
    """Lower ``graph``, which has its weights as inputs, for one shape; raise `CompileError`.

    ``inputs`` are those that a request brings, their shapes without the batch axis.
    """
    shapes = {tensor.name: [shape.batch_size, *tensor.at(shape.sizes)] for tensor in inputs}
    shapes |= {tensor.name: list(tensor.shape) for tensor in weights}
    dtypes = {tensor.name: tensor.dtype for tensor in (*inputs, *weights)}
    with tvm_errors():
        module = _imported(graph, shapes, dtypes)
        module = _in_order(module, [tensor.name for tensor in (*inputs, *weights)], len(inputs))
        module = _optimised(module)
        packing = module[_LIFTED]
        del module[_LIFTED]
        module = _fused(module)
        functions = {
            str(variable.name_hint): function
            for variable, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        views = frozenset(
            name for name, each in functions.items() if relax.analysis.has_reshape_pattern(each)
        )
        line = read_line(module["main"], len(inputs), views)
    called = {step.function: functions[step.function] for step in line.steps}
    return Lowered(line, called, packing)


@contextmanager
def tvm_errors() -> Iterator[None]:
    """Turn every error of TVM into a `CompileError` with the first line of TVM's text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CompileError:
        raise
    except Exception as error:  # TVM raises built-in errors, its own and bare RuntimeErrors.
        said = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise CompileError(
            f"TVM {tvm.__version__} can't compile the model: {said[:300]}; `--engine onnxruntime` can"
        ) from error


def _imported(graph: bytes, shapes: dict[str, list[int]], dtypes: dict[str, str]) -> tvm.IRModule:
    return from_onnx(onnx.load_from_string(graph), shape_dict=shapes, dtype_dict=dtypes)


def _in_order(module: tvm.IRModule, names: Sequence[str], inputs: int) -> tvm.IRModule:
    """Give the function its parameters in the order of ``names``; those after ``inputs`` are weights."""
    function = module["main"]
    by_name = {parameter.name: parameter for parameter in function.params}
    ordered = relax.Function(
        [by_name[name] for name in names], function.body, function.ret_ty, function.is_pure, function.attrs
    )
    module.update_func(module.get_global_var("main"), ordered.with_attr("num_input", inputs))
    return module


def _optimised(module: tvm.IRModule) -> tvm.IRModule:
    """Fold constants, choose the layout, lift computations that depend only on weights."""
    simplify = tvm.transform.Sequential(
        [
            _PASSES.DecomposeOpsForInference(),
            _PASSES.CanonicalizeBindings(),
            _PASSES.FoldConstant(),
            _PASSES.CanonicalizeBindings(),
            _PASSES.DeadCodeElimination(),
        ]
    )
    lift = tvm.transform.Sequential(
        [
            _PASSES.RemoveRedundantReshape(),
            _PASSES.EliminateCommonSubexpr(),
            _PASSES.CanonicalizeBindings(),
            _PASSES.DeadCodeElimination(),
            _PASSES.LiftTransformParams(),
        ]
    )
    with tvm.target.Target("llvm"):
        return lift(channels_last(simplify(_bounded(module))))


@relax.expr_functor.mutator
class _Bounds(relax.expr_functor.PyExprMutator):  # type: ignore[misc]
    """Makes a look-up with an index beyond the table take the last row, because no kernel can refuse a
    request.

    TVM's default reads past the table: other data, or a fault that would end the worker. Bounds of values
    become maxima and minima, which take one instruction for a vector.
    """

    def visit_call_(self, call: Any) -> Any:
        """Return the call with a bounded look-up."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name == "relax.take":
            return relax.op.take(call.args[0], call.args[1], call.attrs.axis, mode="clip")
        return self._extreme(call) if name == "relax.where" else call

    def _extreme(self, call: Any) -> Any:
        """Return the maximum or minimum that the choice of a bound is, as `graph` writes it."""
        chosen, bound, value = call.args
        compared = self.lookup_binding(chosen) if isinstance(chosen, relax.Var) else None
        extreme = _EXTREMES.get(getattr(getattr(compared, "op", None), "name", ""))
        if compared is None or extreme is None:
            return call
        left, right = compared.args
        return extreme(value, bound) if left.same_as(value) and right.same_as(bound) else call


def _bounded(module: tvm.IRModule) -> tvm.IRModule:
    mutator = _Bounds(module)
    module.update_func(module.get_global_var("main"), mutator.visit_expr(module["main"]))
    return module


def _fused(module: tvm.IRModule) -> tvm.IRModule:
    """Turn operators into loops, and fuse adjacent ones."""
    passes = tvm.transform.Sequential(
        [
            _PASSES.LegalizeOps(),
            _PASSES.AnnotateTIROpPattern(),
            _PASSES.FoldConstant(),
            _PASSES.FuseOps(),
            _PASSES.FuseTIR(),
            _PASSES.RewriteDataflowReshape(),
            _PASSES.ToNonDataflow(),
            _PASSES.RemovePurityChecking(),
        ]
    )
    with tvm.target.Target("llvm"):
        return passes(module)


_PARAMETERS = {
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "TopK": (1,),
    "OneHot": (1, 2),
    "Range": (0, 1, 2),
}
"""Inputs that are parameters of an operator, not its operands: kernels need them constant."""


def portable(prepared: Prepared) -> Split:
    """Return the model, split into graph and weights; raise `CompileError` if ONNX Runtime can't open it."""
    model = optimise_portably(prepared.content)
    _in_binary_operators(model.graph)
    return split(model, prepared.inputs, prepared.outputs, _structural(model.graph))


def _structural(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the initializers that stay in the graph: single numbers, and operators' parameters."""
    single = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) <= 1}
    parameters = {
        node.input[position]
        for node in graph.node
        for position in _PARAMETERS.get(node.op_type, ())
        if position < len(node.input) and node.input[position]
    }
    return frozenset(single | parameters)


def _in_binary_operators(graph: onnx.GraphProto) -> None:
    """Write Sum as Adds and Clip as comparisons: TVM would stack Sum's inputs, and does not fuse its Clip."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Sum" and len(node.input) > 1:
            nodes += _additions(node)
        elif node.op_type == "Clip":
            nodes += _comparisons(node, constants, graph)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _additions(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    value, nodes = node.input[0], []
    for position, other in enumerate(node.input[1:], 2):
        output = node.output[0] if position == len(node.input) else f"{node.output[0]}:{position}"
        nodes.append(helper.make_node("Add", [value, other], [output], f"{node.name}:{position}"))
        value = output
    return nodes


def _comparisons(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return the nodes for a Clip; the Clip itself if its bounds are unknown."""
    bounds = _bounds(node, constants, graph)
    value, nodes = node.input[0], []
    for position, (operator, bound) in enumerate(bounds):
        output = node.output[0] if position == len(bounds) - 1 else f"{node.output[0]}:{operator}"
        beyond = f"{output}:beyond"
        nodes.append(helper.make_node(operator, [value, bound], [beyond], beyond))
        nodes.append(helper.make_node("Where", [beyond, bound, value], [output], output))
        value = output
    return nodes or [node]


def _bounds(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], graph: onnx.GraphProto
) -> list[tuple[str, str]]:
    """Return a Clip's bounds as comparisons with constants; empty if a bound is unknown."""
    found = []
    for position, (operator, name) in enumerate((("Less", "min"), ("Greater", "max")), 1):
        attribute = next((each for each in node.attribute if each.name == name), None)
        if attribute is not None:
            bound = f"{node.output[0]}:{name}"
            graph.initializer.append(numpy_helper.from_array(np.array(attribute.f, np.float32), bound))
            found.append((operator, bound))
        elif position < len(node.input) and node.input[position]:
            tensor = constants.get(node.input[position])
            if tensor is None:
                return []
            found.append((operator, node.input[position]))
    return found
