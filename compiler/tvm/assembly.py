"""Making a launch plan of a line of calls and the kernels of its functions: every array gets its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
