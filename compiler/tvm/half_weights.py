"""Weights that lie in memory as FP16: which of a model's do, and functions of loops that read them so.

In FP16 the tensor cores round a product's weights anyway, so they are rounded once, when the model is
compiled: they take half the pages, a LOAD copies half the bytes, and kernels read half. Matrices and filters
do; vectors (biases, norms' scales) are small, added or multiplied in FP32, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, s_tir, tirx

from mainspring.compiler.artifact.manifest import FP16
from mainspring.compiler.tvm.line import Argument, Line, Step

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
