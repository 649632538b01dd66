"""Reads a lowered Relax function: a straight line of calls on values whose shapes are numbers, as plain data.

Anything else in the function (a branch, a shape that depends on values, a call into TVM's runtime) can't be
launched from a plan and is a `CompileError`. In FP16 matrices and filters lie in memory as FP16: tensor cores
round them anyway, they take half the pages and are read in half the time. Vectors stay in FP32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, s_tir, tirx
from tvm.ir import GenericConst

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import FP16

Kind = Literal["input", "weight", "constant", "result"]


class Value(NamedTuple):
    """An array that calls read or write."""

    kind: Kind
    number: int
    """Number of the input, weight, constant or result."""


class Argument(NamedTuple):
    """A value as one call sees it: its own shape, or that of a view of it."""

    value: Value
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Step(NamedTuple):
    """One call: the function's parameters are ``reads``, then ``writes``."""

    function: str
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]


class Line(NamedTuple):
    """A model at one of its shapes."""

    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]
    constants: tuple[npt.NDArray[np.generic], ...]
    """Arrays that are part of the computation, but not weights of the model."""


def read_line(function: Any, inputs: int, views: frozenset[str] = frozenset()) -> Line:
    """Return the line of a Relax function of ``inputs`` inputs, then weights; raise `CompileError`.

    Functions named in ``views`` only copy; they need not be called for a result.
    """
    return _Reader(function, inputs, views).read()


class _Reader:
    """Walks through the function's bindings in their order."""

    def __init__(self, function: Any, inputs: int, views: frozenset[str]) -> None:
        self._function = function
        self._views = views
        self._known: dict[Any, list[Argument]] = {}
        """The meaning of each variable: one argument, or those of a tuple."""
        self._steps: list[Step] = []
        self._constants: dict[str, tuple[int, npt.NDArray[np.generic]]] = {}
        self._results = 0
        for index, parameter in enumerate(function.params):
            value = Value("input", index) if index < inputs else Value("weight", index - inputs)
            self._known[parameter] = [_argument(value, parameter.ty)]

    def read(self) -> Line:
        """Return the line."""
        for block in self._function.body.blocks:
            for binding in block.bindings:
                self._known[binding.var] = self._value_of(binding.value)
        outputs = tuple(argument.value for argument in self._arguments(self._function.body.body))
        arrays = tuple(array for _, array in self._constants.values())
        return Line(tuple(self._steps), outputs, arrays)

    def _value_of(self, expression: Any) -> list[Argument]:
        match expression:
            case relax.Call() if _operator(expression) == "relax.call_tir":
                return self._call(expression)
            case relax.Call() if _operator(expression) == "relax.reshape":
                source = self._arguments(expression.args[0])[0]
                return [_argument(source.value, expression.ty)]
            case relax.Call():
                raise CompileError(
                    f"TVM left a call of {_operator(expression)} in the model, which needs its runtime"
                )
            case relax.If():
                raise CompileError("the model branches on a value, so no plan can say what is launched")
        return self._arguments(expression)

    def _call(self, call: Any) -> list[Argument]:
        """Record a call of a kernel function; return what it writes."""
        if len(call.args) > 2:
            raise CompileError("a kernel depends on a number that only a request knows")
        reads = [argument for part in call.args[1].fields for argument in self._arguments(part)]
        types = call.ty.fields if hasattr(call.ty, "fields") else [call.ty]
        if str(call.args[0].name_hint) in self._views and reads[0].value.kind == "result":
            return [_argument(reads[0].value, types[0])]
        writes = []
        for each in types:
            writes.append(_argument(Value("result", self._results), each))
            self._results += 1
        self._steps.append(Step(str(call.args[0].name_hint), tuple(reads), tuple(writes)))
        return writes

    def _arguments(self, expression: Any) -> list[Argument]:
        """Return the meaning of an expression without calls."""
        match expression:
            case GenericConst():
                return [self._constant(expression)]
            case relax.Tuple():
                return [argument for field in expression.fields for argument in self._arguments(field)]
            case relax.TupleGetItem():
                return [self._arguments(expression.tuple_value)[expression.index]]
            case relax.Var():
                return self._known[expression]
        raise CompileError(f"TVM left {type(expression).__name__} in the model, which no plan can hold")

    def _constant(self, constant: Any) -> Argument:
        """Return the argument of a constant; equal constants share one."""
        array = np.ascontiguousarray(constant.value.numpy())
        key = f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        index, _ = self._constants.setdefault(key, (len(self._constants), array))
        return _argument(Value("constant", index), constant.ty)


def _operator(call: Any) -> str:
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", None) or call.op)


def _argument(value: Value, kind: Any) -> Argument:
    """Return the value with the type that Relax inferred; raise `CompileError` if its shape is open."""
    try:
        shape = tuple(int(dimension) for dimension in kind.shape)
    except TypeError:
        raise CompileError(
            f"the shape of a value is not known before a request is ({kind}); the model's author can "
            "export it with fixed shapes besides the batch"
        ) from None
    return Argument(value, str(kind.dtype), shape)


Array = npt.NDArray[np.generic]

_SHORT, _LONG = "float16", "float32"


def halved(weights: Sequence[Array], precision: str) -> frozenset[int]:
    """Return the numbers of the weights that lie in memory as FP16 in a model of this precision.

    Not those with a number beyond FP16's range, which a product could still have in FP32.
    """
    if precision != FP16:
        return frozenset()
    return frozenset(number for number, array in enumerate(weights) if _is_matrix(array) and _fits(array))


def _is_matrix(array: Array) -> bool:
    return array.dtype == np.float32 and sum(extent > 1 for extent in array.shape) > 1


def _fits(array: Array) -> bool:
    return bool(np.abs(array).max(initial=0) <= np.finfo(np.float16).max)


def as_stored(weights: Sequence[Array], halves: frozenset[int]) -> tuple[Array, ...]:
    """Return the weights as they lie in memory; ties go to even."""
    return tuple(
        array.astype(np.float16) if number in halves else array for number, array in enumerate(weights)
    )


def reading_halves(
    line: Line, functions: Mapping[str, Any], halves: frozenset[int]
) -> tuple[Line, dict[str, Any]]:
    """Return a line whose steps read weights as they lie in memory, and the functions of its steps.

    A function that one step calls with such a weight and another without becomes two.
    """
    steps, made = [], {}
    for step in line.steps:
        places = [place for place, each in enumerate(step.reads) if _lies_so(each, halves)]
        name = "_half".join([step.function, *map(str, places)])
        if name not in made:
            made[name] = widened(functions[step.function], places)
        reads = tuple(
            each._replace(dtype=_SHORT) if place in places else each for place, each in enumerate(step.reads)
        )
        steps.append(Step(name, reads, step.writes))
    return line._replace(steps=tuple(steps)), made


def _lies_so(argument: Argument, halves: frozenset[int]) -> bool:
    return argument.value.kind == "weight" and argument.value.number in halves


def widened(function: Any, places: Iterable[int]) -> Any:
    """Return a function whose parameters at these places are FP16, and are FP32 in all that it computes."""
    parameters, root = list(function.params), function.body.block
    blocks, wide = [], []
    for place in places:
        before = parameters[place]
        parameters[place] = tirx.decl_buffer(before.ty.shape, _SHORT, before.name)
        wide.append(before)
        blocks.append(_widening(parameters[place], before))
    if not blocks:
        return function
    body = tirx.SeqStmt([*blocks, root.body])
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        [*root.alloc_buffers, *wide],
        root.match_buffers,
        root.annotations,
    )
    realize = s_tir.SBlockRealize(function.body.iter_values, function.body.predicate, block)
    return tirx.PrimFunc(parameters, realize, function.ret_type, function.attrs)


def _widening(short: Any, long: Any) -> Any:
    """Return loops that make FP32 numbers of an array."""
    extents = list(long.ty.shape)
    loops = [tirx.Var(f"i{axis}", str(extent.ty)) for axis, extent in enumerate(extents)]
    axes = [
        tirx.IterVar(
            ir.Range.from_min_extent(0, extent),
            tirx.Var(f"v_{loop.name}", str(extent.ty)),
            tirx.IterVar.DataPar,
        )
        for loop, extent in zip(loops, extents, strict=True)
    ]
    indices = [axis.var for axis in axes]
    here = [ir.Range.from_min_extent(index, 1) for index in indices]
    store = tirx.BufferStore(long, tirx.Cast(_LONG, tirx.BufferLoad(short, indices)), indices)
    reads, writes = tirx.BufferRegion(short, here), tirx.BufferRegion(long, here)
    body = s_tir.SBlockRealize(loops, True, s_tir.SBlock(axes, [reads], [writes], f"{long.name}_wide", store))
    for loop, extent in reversed([*zip(loops, extents, strict=True)]):
        body = tirx.For(loop, tirx.const(0, str(extent.ty)), extent, tirx.ForKind.SERIAL, body)
    return body
