"""Lowering an ONNX graph with Relax to functions of loops and a straight line of calls of them.

Weights are parameters of the model's function. TVM lifts computations that depend only on weights (a
transpose, another layout, a sum of a batch norm's numbers) into a function of their own, which ``build`` runs
once, offline.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import GraphTensor, IoTensor
from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.tvm.channels_last import channels_last
from mainspring.compiler.tvm.line import Line, read_line

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
