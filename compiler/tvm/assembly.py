"""A launch plan of a line of calls and its functions' kernels: packed weights, and a place for every array.

There is one weights file, packed once, offline. Batch sizes always read the same arrays of it. Plans for
other sizes of a model's symbols may read some of their own beside these, such as the embeddings of their
positions alone; large ones that are laid out otherwise for each bucket are refused.
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
from mainspring.compiler.artifact.plan import WORKSPACE_ALIGNMENT_BYTES, Launch, LaunchPlan, Operand, Shape
from mainspring.compiler.tvm.kernels import Generated
from mainspring.compiler.tvm.line import Argument, Line, Step, Value


def assemble(shape: Shape, line: Line, generated: Generated, constants: tuple[int, ...]) -> LaunchPlan:
    """Return the plan of a shape's line whose functions' kernels are ``generated``.

    ``constants`` says, for each of the line's constants, which of the artifact's weights it is. Raises
    `CompileError` for outputs that no launch writes, or that are one array.
    """
    outputs = _outputs(line)
    lives = _lifetimes(line, generated, outputs)
    offsets, workspace_bytes = place([life for _, life in lives])
    places = {key: offset for (key, _), offset in zip(lives, offsets, strict=True)}
    launches: list[Launch] = []
    for position, step in enumerate(line.steps):
        operands = [
            _operand(argument, outputs, places, constants) for argument in (*step.reads, *step.writes)
        ]
        operands += _scratch_operands(position, step, generated, places)
        launches += [
            Launch(
                kernel=call.kernel,
                arguments=tuple(
                    _written(operands[index]) if index in call.writes else operands[index]
                    for index in call.arguments
                ),
                grid=call.grid,
                block=call.block,
                shared_bytes=call.shared_bytes,
            )
            for call in generated.calls[step.function]
        ]
    return LaunchPlan(shape.batch_size, workspace_bytes, tuple(launches), shape.sizes)


class _Key(NamedTuple):
    """An array with a place in the workspace: a result, or a step's scratch array."""

    kind: str
    number: int
    """Number of the result, or of the step."""
    part: int = 0


def _outputs(line: Line) -> dict[Value, int]:
    outputs: dict[Value, int] = {}
    for index, value in enumerate(line.outputs):
        if value.kind != "result" or value in outputs:
            raise CompileError(
                f"output {index} is an input, a weight or another output, so no kernel writes it; take it out"
            )
        outputs[value] = index
    return outputs


def _lifetimes(line: Line, generated: Generated, outputs: dict[Value, int]) -> list[tuple[_Key, Lifetime]]:
    """Return the lifetimes of scratch arrays and of all results except outputs."""
    last: dict[Value, int] = {}
    for position, step in enumerate(line.steps):
        for argument in (*step.reads, *step.writes):
            last[argument.value] = position
    lives: list[tuple[_Key, Lifetime]] = []
    for position, step in enumerate(line.steps):
        for argument in step.writes:
            if argument.value not in outputs:
                life = Lifetime(argument.size_bytes, position, last[argument.value])
                lives.append((_Key("result", argument.value.number), life))
        for part, scratch in enumerate(generated.scratch[step.function]):
            lives.append((_Key("scratch", position, part), Lifetime(scratch.size_bytes, position, position)))
    return lives


def _operand(
    argument: Argument, outputs: dict[Value, int], places: dict[_Key, int], constants: tuple[int, ...]
) -> Operand:
    value, size_bytes = argument.value, argument.size_bytes
    dtype, shape = argument.dtype, argument.shape
    if value in outputs:
        return Operand("output", outputs[value], 0, size_bytes, dtype, shape)
    match value.kind:
        case "input":
            return Operand("input", value.number, 0, size_bytes, dtype, shape)
        case "weight":
            return Operand("weights", value.number, 0, size_bytes, dtype, shape)
        case "constant":
            return Operand("weights", constants[value.number], 0, size_bytes, dtype, shape)
    offset = places[_Key("result", value.number)]
    return Operand("workspace", 0, offset, size_bytes, dtype, shape)


def _scratch_operands(
    position: int, step: Step, generated: Generated, places: dict[_Key, int]
) -> list[Operand]:
    return [
        Operand(
            "workspace",
            0,
            places[_Key("scratch", position, part)],
            scratch.size_bytes,
            scratch.dtype,
            scratch.shape,
        )
        for part, scratch in enumerate(generated.scratch[step.function])
    ]


def _written(operand: Operand) -> Operand:
    return Operand(
        operand.region,
        operand.index,
        operand.offset,
        operand.size_bytes,
        operand.dtype,
        operand.shape,
        writes=True,
    )


class Lifetime(NamedTuple):
    """The steps during which a result needs its place."""

    size_bytes: int
    first: int
    """The step that writes it."""
    last: int
    """The last step that reads it; ``first`` if nothing does."""


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each result, in their order, and the bytes that all of them need.

    Two results whose lifetimes share a step never overlap: a step may not write where it reads.
    """
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []
    """Begin, end and lifetime of each placed array, ascending."""
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].size_bytes, index))
    for index in order:
        life = lifetimes[index]
        size = max(1, -(-life.size_bytes // WORKSPACE_ALIGNMENT_BYTES)) * WORKSPACE_ALIGNMENT_BYTES
        begin = 0
        for other_begin, other_end, other in placed:
            if other.first > life.last or other.last < life.first:
                continue
            if other_begin >= begin + size:
                break
            begin = max(begin, other_end)
        offsets[index] = begin
        placed.append((begin, begin + size, life))
        placed.sort()
    return offsets, max((end for _, end, _ in placed), default=0)


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
