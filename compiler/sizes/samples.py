"""Random rows to try a model with, and single integers that decide which of its branches runs.

Rows are seeded, distinct, of different scales, of values that the model accepts. Integers may be indices: the
table that they index limits them, if the graph shows it; otherwise the largest that the model accepts is
searched for. So all of a small table is read. Branches may run at unlike sizes, so a model is tried with each
number that its graph compares a single integer with, where it does not run with others.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from mainspring.compiler.artifact.errors import AS_IT_IS, CannotRun, CompileError, NoRows
from mainspring.compiler.reading.normalise import all_nodes
from mainspring.messages.model import TensorSpec, array_dtype

Arrays = list[npt.NDArray[np.generic]]

_SEED = 20201104

WORDS = (
    b"a",
    b"Two words",
    b"",
    "Gr\u00fc\u00dfe \u2603".encode(),
    b"a longer text, of more than a few words",
)
"""Texts that are drawn where nothing says which the model knows."""

_LARGE = 1000
"""Integers below this are tried where no table sets a limit."""

_SMALL = 2
"""Every model has to accept integers below this: masks, token types."""

_LONGEST_TEXT = 256

_MOST_TEXTS = 64

_MOST_ELEMENTS = 1 << 20
"""Elements of an output up to which larger integers are tried that decide its shape."""

_SCALES = (1.0, 0.125, 4.0, 1.0, 0.5, 2.0, 0.25)
"""Scales of the rows of floats, in turn: a value computed from a whole batch depends on the largest."""

_SOON_S = 0.01

_FAR_LONGER = 4.0
"""Ratio to the time of a run with small floats, or to `_SOON_S`, beyond which no larger ones are drawn."""

PASSED_ON = {
    "Cast",
    "Identity",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Flatten",
    "Expand",
    "Slice",
}
"""Operators through which an input's values come to a table that they index, or to what they decide."""


def value_limits(
    inputs: Sequence[TensorSpec],
    rows: int,
    run: Callable[[Arrays], Sequence[npt.NDArray[np.generic]]],
    tables: dict[str, int] | None = None,
    *,
    whole: bool = False,
    texts: Sequence[bytes] = WORDS,
    drawn: Callable[..., Arrays] | None = None,
) -> list[int]:
    """Return the number that the values of each integer input stay below.

    ``run`` runs the model on some rows and raises `CompileError` if it can't; ``tables`` are the known
    sizes of the tables that integer inputs index, by the input's name. Where integers decide the shape of an
    output, larger ones are tried only as far as this is small; `NoRows` is raised then unless ``whole``.
    ``drawn`` draws rows as `draw` does.
    """

    def shapes(limits: Sequence[int]) -> list[tuple[int, ...]]:
        arrays = (drawn or draw)(inputs, limits, rows, texts)
        return [output.shape for output in run([array[:1] for array in arrays])]

    least, expected = _least(shapes, len(inputs))
    limits, deciding = [least] * len(inputs), set[int]()

    def accepted(index: int, limit: int) -> bool:
        try:
            found = shapes([*limits[:index], limit, *limits[index + 1 :]])
        except CompileError:
            return False
        if found == expected:
            return True
        if not whole:
            raise NoRows(
                f"the values of input {inputs[index].name!r} decide the shape of an output, so its rows may "
                f"differ; {AS_IT_IS}"
            )
        deciding.add(index)
        return max(map(math.prod, found)) <= _MOST_ELEMENTS

    for index, spec in enumerate(inputs):
        if array_dtype(spec.dtype).kind in "iu" and "mask" not in spec.name:
            most = min((tables or {}).get(spec.name, _LARGE), int(np.iinfo(spec.dtype).max) + 1)
            at_most = functools.partial(accepted, index)
            known = most > least and at_most(least + 1)
            if known and index in deciding:
                # Tried with much larger ones at once it could be as large as the memory.
                most = next((limit // 2 for limit in _doubled(most) if not at_most(limit)), most)
            limits[index] = _largest(at_most, most, least) if known else least
    return limits


Shapes = list[tuple[int, ...]]


def _least(shapes: Callable[[Sequence[int]], Shapes], inputs: int) -> tuple[int, Shapes]:
    """Return the smallest limit that is tried, and the outputs' shapes with it."""
    try:
        return _SMALL, shapes([_SMALL] * inputs)
    except CannotRun:
        # Indices of another input that has but one element are 0.
        return 1, shapes([1] * inputs)


def smallest_limits(inputs: Sequence[TensorSpec]) -> list[int]:
    """Return limits of integers that every model accepts."""
    return [_SMALL] * len(inputs)


def index_tables(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the entries of the smallest table that an input's values index, by the input's name."""
    sizes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in PASSED_ON and node.input and node.input[0] in origin:
            origin.update((name, origin[node.input[0]]) for name in node.output)
        if node.op_type == "Gather" and node.input[1] in origin and sizes.get(node.input[0]):
            dims, name = sizes[node.input[0]], origin[node.input[1]]
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            found[name] = min(found.get(name, dims[axis]), dims[axis])
    return {name: max(size, _SMALL) for name, size in found.items()}


def known_texts(graph: onnx.GraphProto) -> list[bytes]:
    """Return the texts among the attributes and constants of a graph's nodes."""
    found = dict[bytes, None]()
    for node in graph.node:
        for attribute in node.attribute:
            found |= dict.fromkeys(attribute.strings)
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:
            found |= dict.fromkeys(tensor.string_data)
    return [text for text in found if text.isascii() and len(text) <= _LONGEST_TEXT][:_MOST_TEXTS]


def _doubled(most: int) -> Iterator[int]:
    """Yield powers of two, and at last ``most``."""
    limit = 2 * _SMALL
    while limit < most:
        yield limit
        limit *= 2
    yield most


def _largest(accepts: Callable[[int], bool], most: int, least: int) -> int:
    """Return the largest limit up to ``most`` that is accepted; ``least`` always is."""
    if most <= least or accepts(most):
        return max(most, 1)
    good, bad = least, most
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if accepts(middle) else (good, middle)
    return good


def largest_scale(run: Callable[[float], object]) -> float:
    """Return the largest scale of floats at which a run does not take far longer than with small ones.

    A model whose values decide how much there is to compute, as durations of sounds do, may grow with them
    exponentially: no request has such values, and no machine would end. ``run`` runs it with floats up to a
    scale, and raises `CompileError` if it can't.
    """
    found, first_s = max(_SCALES), 0.0
    for scale in sorted({*_SCALES}):
        begin_ns = time.thread_time_ns()
        try:
            run(scale)
        except CompileError:
            return found
        seconds = (time.thread_time_ns() - begin_ns) / 1e9
        first_s = first_s or max(seconds, _SOON_S)
        if seconds > _FAR_LONGER * first_s:
            return found
        found = scale
    return found


def draw(
    inputs: Sequence[TensorSpec],
    limits: Sequence[int],
    rows: int,
    texts: Sequence[bytes] = WORDS,
    most_scale: float = max(_SCALES),
) -> Arrays:
    """Return ``rows`` random rows; the first of integers begins and ends with the largest below its limit.

    A model may look up what stands in the last place of a sequence alone. Floats have scales up to
    ``most_scale``.
    """
    random = np.random.default_rng(_SEED)
    scales = np.minimum(np.resize(np.array(_SCALES, np.float32), rows), np.float32(most_scale))
    arrays: Arrays = []
    for spec, limit in zip(inputs, limits, strict=True):
        dtype, shape = array_dtype(spec.dtype), (rows, *spec.shape)
        if dtype.kind == "S":
            arrays.append(random.choice(np.array(texts, dtype), shape))
            continue
        if dtype.kind not in "biu":
            values = random.standard_normal(shape, np.float32)
            arrays.append((values * scales.reshape(-1, *[1] * len(spec.shape))).astype(dtype))
            continue
        integers = random.integers(0, _SMALL if dtype.kind == "b" else limit, shape)
        if integers.size and limit > 1 and dtype.kind != "b":
            integers[:1].reshape(-1)[[0, -1]] = limit - 1
        arrays.append(integers.astype(dtype))
    return arrays


Run = Callable[[Arrays], Arrays]

_AROUND = {
    "Equal": (0,),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), (-1, 0, 1)),
}
"""Numbers beside a constant that have answers of their own, relative to it, by comparison."""

_MOST_WAYS = 15


class Choices:
    """The values that single integers may need to have for a model to run."""

    def __init__(self, inputs: Sequence[TensorSpec], numbers: Mapping[str, Sequence[int]]) -> None:
        """``numbers`` are those that inputs are compared with, by name; only single elements count."""
        known = [
            [None, *numbers.get(spec.name, ())]
            if math.prod(spec.shape) == 1 and array_dtype(spec.dtype).kind in "biu"
            else [None]
            for spec in inputs
        ]
        found = (
            {index: number for index, number in enumerate(each) if number is not None}
            for each in itertools.product(*known)
        )
        self.ways = tuple(itertools.islice((way for way in found if way), _MOST_WAYS))
        """Numbers by the input's index."""

    def first(self, run: Run, arrays: Arrays) -> Arrays:
        """Return the outputs for these inputs, or else for the first numbers with which the model runs.

        Raises what ``run`` raises for the inputs themselves, a `CompileError`, if it runs with none.
        """
        try:
            return run(arrays)
        except CompileError:
            for way in self.ways:
                if self._runs(run, arrays, way):
                    return run(_put(arrays, way))
            raise

    def spread(self, run: Run, arrays: Arrays) -> Arrays:
        """Return the rows with each of the numbers with which the model runs, in turns."""
        if not self.ways:
            return arrays
        single = [array[:1] for array in arrays]
        running = [way for way in ({}, *self.ways) if self._runs(run, single, way)] or [{}]
        rows = [
            _put([array[row : row + 1] for array in arrays], running[row % len(running)])
            for row in range(len(arrays[0]))
        ]
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    @staticmethod
    def _runs(run: Run, arrays: Arrays, way: Mapping[int, int]) -> bool:
        try:
            run(_put(arrays, way))
        except CompileError:
            return False
        return True


def compared_numbers(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the whole numbers that inputs are compared with, by name; 0 and 1 if one decides by itself."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list(all_nodes(graph))
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, dict[int, None]] = {}
    for node in nodes:
        known = [origin[name] for name in node.input if name in origin]
        if not known:
            continue
        if node.op_type in PASSED_ON and node.input[0] in origin:
            origin.update((name, known[0]) for name in node.output)
        elif node.op_type == "If":
            found.setdefault(known[0], {}).update({0: None, 1: None})
        elif node.op_type in _AROUND and len(known) == 1:
            for number in _numbers(constants, node):
                near = {number + step: None for step in _AROUND[node.op_type]}
                found.setdefault(known[0], {}).update(near)
    return {name: [*numbers] for name, numbers in found.items()}


def _numbers(constants: Mapping[str, onnx.TensorProto], node: onnx.NodeProto) -> list[int]:
    """Return the one number that a comparison is with; none if it is not known or not whole."""
    tensors = [constants[name] for name in node.input if name in constants]
    if not tensors or math.prod(tensors[0].dims) != 1 or tensors[0].data_type == onnx.TensorProto.STRING:
        return []
    number = float(numpy_helper.to_array(tensors[0]).reshape(-1)[0])
    return [int(number)] if number.is_integer() else []


def _put(arrays: Arrays, way: Mapping[int, int]) -> Arrays:
    return [np.full_like(array, way[index]) if index in way else array for index, array in enumerate(arrays)]
