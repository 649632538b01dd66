"""Weights as kernels read them: packed once, offline, into arrays that all shapes of a model share.

There is one weights file. Batch sizes always read the same arrays of it. Plans for other sizes of a model's
symbols may read some of their own beside these, such as the embeddings of their positions alone; large ones
that are laid out otherwise for each bucket are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm_ffi.structural import structural_equal, structural_hash

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.tvm.line import Argument, Line, Value

Array = npt.NDArray[np.generic]

_MORE = 0.25
"""Part of the weights that arrays of single buckets may take beside them."""
_FREE_BYTES = 1 << 20
"""Bytes that they may take at any rate."""


class Packing(NamedTuple):
    """The computation of the weights that a model's lines read from the model's own."""

    parts: tuple[tuple[Any, tuple[int, ...]], ...]
    """Relax functions of the weights, and which of the results of each are kept."""
    numbers: dict[Shape, tuple[int, ...]]
    """Indices, among all kept arrays, of the results of each shape's own function."""

    @property
    def total(self) -> int:
        """Return the number of arrays that are kept."""
        return sum(len(kept) for _, kept in self.parts)

    def pack(self, weights: Sequence[Array]) -> tuple[Array, ...]:
        """Return the arrays, computed on this machine's CPU."""
        found: list[Array] = []
        for function, kept in self.parts:
            packed = pack(function, weights)
            found += [packed[index] for index in kept]
        return tuple(found)

    def numbered(self, shape: Shape, line: Line) -> Line:
        """Return a shape's line with its weights numbered as the kept arrays are."""
        numbers = self.numbers[shape]

        def renumbered(argument: Argument) -> Argument:
            kind, number = argument.value
            return argument._replace(value=Value(kind, numbers[number])) if kind == "weight" else argument

        steps = tuple(step._replace(reads=tuple(map(renumbered, step.reads))) for step in line.steps)
        return line._replace(steps=steps)


def shared(packings: Mapping[Shape, Any]) -> Packing:
    """Return what packs the weights for the lines of all shapes, each array once.

    Raises `CompileError` if batch sizes don't read the same, and for too much that only some buckets read.
    """
    parts: list[tuple[Any, tuple[int, ...]]] = []
    numbers: dict[Shape, tuple[int, ...]] = {}
    known: dict[int, tuple[int, Any]] = {}
    """The number of each array and what computes it alone, by that function's hash."""
    for shape, packing in packings.items():
        same = next((each for each in numbers if _equal(packings[each], packing)), None)
        if same is not None:
            numbers[shape] = numbers[same]
            continue
        before = next((each for each in numbers if each.sizes == shape.sizes), None)
        if before is not None:
            raise CompileError(_otherwise(shape, before))
        found, kept = [], []
        for index in range(len(packing.ret_ty.fields)):
            alone = _alone(packing, index)
            number, other = known.setdefault(_hashed(alone), (len(known), alone))
            if other is alone:
                kept.append(index)
            elif not _equal(other, alone):
                raise CompileError(_otherwise(shape, next(iter(numbers))))
            found.append(number)
        numbers[shape] = tuple(found)
        parts.append((packing, tuple(kept)))
        _check_bytes(parts, shape, next(iter(numbers)))
    return Packing(tuple(parts), numbers)


def _check_bytes(parts: Sequence[tuple[Any, tuple[int, ...]]], shape: Shape, first: Shape) -> None:
    """Raise `CompileError` if what was added to the arrays of the first shape has become too much."""
    whole, *others = [sum(_bytes(function.ret_ty.fields[k]) for k in kept) for function, kept in parts]
    if sum(others) > whole * _MORE + _FREE_BYTES:
        raise CompileError(_otherwise(shape, first))


def _otherwise(shape: Shape, first: Shape) -> str:
    return (
        f"TVM packs the weights for {shape} otherwise than for {first}, but an artifact has one weights "
        "file; `--engine onnxruntime` compiles the model"
    )


def _alone(packing: Any, index: int) -> Any:
    """Return a function that computes but one of the results."""
    body, kind = packing.body, packing.ret_ty.fields[index]
    result = relax.SeqExpr(body.blocks, relax.TupleGetItem(body.body, index))
    function = relax.Function(packing.params, result, kind, packing.is_pure)
    module = tvm.IRModule({"pack": function.with_attr("global_symbol", "pack")})
    for simplify in (
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ):
        module = simplify(module)
    return module["pack"]


def _equal(one: Any, other: Any) -> bool:
    return bool(structural_equal(one, other, map_free_vars=True))


def _hashed(function: Any) -> int:
    return int(structural_hash(function, map_free_vars=True))


def _bytes(kind: Any) -> int:
    return math.prod(int(extent) for extent in kind.shape) * np.dtype(str(kind.dtype)).itemsize


def pack(packing: Any, weights: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results of the Relax function on the weights."""
    module = tvm.IRModule({"pack": packing.with_attr("global_symbol", "pack")})
    with tvm.target.Target("llvm"):
        module = relax.transform.LegalizeOps()(module)
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    packed = machine["pack"](tuple(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in weights))
    return tuple(np.ascontiguousarray(each.numpy()) for each in packed)
