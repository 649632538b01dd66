"""Requests for a served model, drawn by a seed, with the answers of ONNX Runtime on the file.

Shapes come from what the server says of the model: its rows, and every dimension that is -1. Dimensions of
one name in the file get one length. Integers lie below the largest limit that ONNX Runtime accepts, so that
they read all of the tables that they index. What ONNX Runtime can't run is drawn again, and so is what it
computes otherwise in a batch than alone: there rounding decides the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mainspring.experiments.wild.reference import Arrays, Reference, compare

SHAPES = 5
"""Drawn shapes of a model with open dimensions."""
STRANGERS = 8
ROWS = (1, 2, 3)
"""Rows of requests, beside the most."""
TRIES = 200
LONGEST_S = 90.0
MOST_ELEMENTS = 1 << 20
SLOW_S = 1.0
"""A run of ONNX Runtime that takes longer is taken for too large: smaller inputs are drawn then."""
MOST_BYTES = 16 << 20
COPIES, FEW_COPIES = 4, 2
STEADY_SHARE = 0.25
LIMITS = (2, 10, 100, 1_000, 30_000)
"""Integers are drawn below one of these."""
WORDS = ("yes", "no", "cat", "", "Grüße", "東京", "a longer text with spaces")
_SCALES = (1.0, 0.125, 4.0, 1.0, 0.5, 2.0, 0.25)


class ServedTensor(msgspec.Struct, frozen=True):
    """An input as the server describes it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1 where it is open, also for the rows."""


class Task(NamedTuple):
    """Description of the input to draw."""

    path: str
    inputs: tuple[ServedTensor, ...]
    most_rows: int
    """0 for a model without an axis for rows."""
    dims: dict[str, tuple[int, ...]]
    """Lengths to choose from, by the name of an open dimension in the file or as ``INPUT:AXIS``."""
    values: dict[str, tuple[int, ...]]
    """Integers to choose from, by input."""
    below: Mapping[str, int] = MappingProxyType({})
    """Limits of integers that are not to be searched for, by input."""
    given: Mapping[str, tuple[float, ...]] = MappingProxyType({})
    axes: Mapping[str, int] = MappingProxyType({})
    seed: int = 0

    @property
    def is_open(self) -> bool:
        """True if a dimension besides the rows is open."""
        return any(self.open_axes(tensor) for tensor in self.inputs)

    def open_axes(self, tensor: ServedTensor) -> list[int]:
        """Return the axes of an input that are open besides the rows."""
        rows = self.axes.get(tensor.name, 0) if self.most_rows else -1
        return [axis for axis, length in enumerate(tensor.shape) if length == -1 and axis != rows]


class Case(NamedTuple):
    """A request and the answer to be expected."""

    rows: int
    """0 for a model without an axis for rows."""
    inputs: Arrays
    expected: Arrays

    @property
    def shapes(self) -> str:
        """The inputs' shapes, for a person."""
        return ", ".join(f"{name} {list(array.shape)}" for name, array in self.inputs.items())


class Cases(NamedTuple):
    """The requests of a model."""

    alone: list[Case]
    strangers: list[Case]


class Undrawable(Exception):
    """ONNX Runtime itself has no answer to compare with; the text says why."""


def draw(task: Task, folder: Path) -> Cases:
    """Return requests and their answers; raise `Undrawable`. ``folder`` is for files and may be reused."""
    try:
        drawer = Drawer(task, Reference(Path(task.path), folder, task.axes))
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
        raise Undrawable(f"ONNX Runtime can't open the file: {first_line(error)}") from None
    rows = few = wanted_rows(task.most_rows)
    if task.is_open:
        rows = (rows * SHAPES)[: max(SHAPES, len(rows))]
    if task.most_rows:
        # The file's own shape has to be served, whatever else is.
        rows = [*rows, *(each for each in [drawer.fixed_rows] if each > task.most_rows)]
    alone = [drawer.case(count) for count in rows]
    again = drawer.answer(alone[0].inputs, alone[0].rows)
    if not compare(again, alone[0].expected).same:
        raise Undrawable("ONNX Runtime's own answers differ from run to run")
    return Cases(alone, [drawer.case(few[number % len(few)]) for number in range(STRANGERS)])


def wanted_rows(most: int) -> list[int]:
    """Return the rows of requests for a model that takes so many at most; [0] for one without rows."""
    return sorted({each for each in (*ROWS, most) if each <= most}) or [0]


class Drawer:
    """Draws requests of one model."""

    def __init__(self, task: Task, reference: Reference) -> None:
        self._task = task
        self._reference = reference
        self._declared = {each.name: each for each in reference.inputs}
        self._random = np.random.default_rng(task.seed)
        self._limits = dict(task.below)
        self._until = time.monotonic() + LONGEST_S
        self._last_error = "nothing was tried"
        self._most_elements = MOST_ELEMENTS
        self._has_integers = any(_is_integer(each.datatype) for each in task.inputs)

    def case(self, rows: int) -> Case:
        """Return a request of so many rows that ONNX Runtime answers; raise `Undrawable`."""
        for lengths in self._lengths():
            shapes = {each.name: self._shape(each, rows, lengths) for each in self._task.inputs}
            elements = max(np.prod(shape, dtype=float) for shape in shapes.values())
            if lengths and elements > self._most_elements:
                continue
            smallest = {**dict.fromkeys(shapes, LIMITS[0]), **self._limits}
            if self._has_integers and self._tried(shapes, smallest, rows) is None:
                continue
            limits = self._searched(shapes, rows)
            for _ in range(5):
                inputs = self._values(shapes, limits)
                answer = self._answered(inputs, rows)
                if answer is not None:
                    return Case(rows, inputs, answer)
        raise Undrawable(f"ONNX Runtime ran no inputs that were drawn: {self._last_error}")

    @property
    def fixed_rows(self) -> int:
        """The length of the rows' axis of the first input in the file; 0 if it is open."""
        return self._reference.fixed_rows

    def answer(self, inputs: Arrays, rows: int) -> Arrays:
        """Return ONNX Runtime's answer; raise what it raises."""
        return self._reference.run_rows(inputs, rows) if rows else self._reference.run(inputs)

    def _lengths(self) -> Iterator[dict[str, int]]:
        keys = dict.fromkeys(
            self._key(each, axis) for each in self._task.inputs for axis in self._task.open_axes(each)
        )
        for number in range(TRIES):
            # Each request is tried once, however long those before it took.
            if number and time.monotonic() > self._until:
                self._last_error += f"; {LONGEST_S:g} s were over"
                return
            styles = self._style(number)
            yield {key: int(self._random.choice(self._task.dims.get(key, styles))) for key in keys}

    def _style(self, number: int) -> Sequence[int]:
        random = self._random
        match number % 4:
            case 0:
                return [int(2 ** random.uniform(3, 8)) for _ in range(8)]
            case 1:
                return [32 * int(each) for each in random.integers(1, 9, 8)]
            case 2:
                return [int(2 ** random.uniform(9, 14)) for _ in range(8)]
            case _:
                return [int(each) for each in random.integers(1, 12, 8)]

    def _key(self, tensor: ServedTensor, axis: int) -> str:
        declared = self._declared.get(tensor.name)
        dims = declared.dims if declared is not None else []
        name = dims[axis] if len(dims) == len(tensor.shape) else None
        own = f"{tensor.name}:{axis}"
        return name if isinstance(name, str) and (name != "?" or name in self._task.dims) else own

    def _shape(self, tensor: ServedTensor, rows: int, lengths: dict[str, int]) -> tuple[int, ...]:
        shape = list(tensor.shape)
        for axis in self._task.open_axes(tensor):
            shape[axis] = lengths[self._key(tensor, axis)]
        if self._task.most_rows:
            shape[self._reference.axis_of(tensor.name)] = rows
        return tuple(shape)

    def _searched(self, shapes: dict[str, tuple[int, ...]], rows: int) -> dict[str, int]:
        for tensor in self._task.inputs:
            if tensor.name in self._limits or not _is_integer(tensor.datatype):
                continue
            for limit in LIMITS:
                limits = {**dict.fromkeys(shapes, LIMITS[0]), **self._limits, tensor.name: limit}
                if limit > LIMITS[0] and self._tried(shapes, limits, rows) is None:
                    break
                self._limits[tensor.name] = limit
        return {**dict.fromkeys(shapes, LIMITS[0]), **self._limits}

    def _tried(self, shapes: dict[str, tuple[int, ...]], limits: dict[str, int], rows: int) -> Arrays | None:
        return self._answered(self._values(shapes, limits), rows)

    def _answered(self, inputs: Arrays, rows: int) -> Arrays | None:
        began = time.monotonic()
        try:
            answer = self.answer(inputs, rows)
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
            self._last_error = first_line(error)
            return None
        slow = time.monotonic() - began > SLOW_S
        if slow and self._task.is_open:
            self._most_elements = max(array.size for array in inputs.values()) // 2
        if any(array.nbytes > MOST_BYTES for array in answer.values()):
            self._last_error = f"an output has more than {MOST_BYTES} bytes"
            return None
        return answer if self._is_steady(inputs, answer, FEW_COPIES if slow else COPIES) else None

    def _is_steady(self, inputs: Arrays, answer: Arrays, copied: int) -> bool:
        """Return True if ONNX Runtime gives rows the same answers in a larger batch of their copies.

        Batches of other sizes take other kernels, which round otherwise.
        """
        if self._task.most_rows < 2 or self._reference.fixed_rows:
            return True
        axis_of, rows_of = self._reference.axis_of, self._reference.rows_of
        rows = next(array.shape[axis_of(name)] for name, array in inputs.items())
        repeated = {
            name: np.concatenate([array] * copied, axis=axis_of(name)) for name, array in inputs.items()
        }
        copies = self.answer(repeated, rows)
        first = {name: rows_of(name, array, range(rows)) for name, array in copies.items()}
        steady = compare(first, answer, share=STEADY_SHARE, by_rows=True).same
        self._last_error = self._last_error if steady else "its answers change with the size of the batch"
        return steady

    def _values(self, shapes: dict[str, tuple[int, ...]], limits: dict[str, int]) -> Arrays:
        return {
            each.name: self._value(each, shapes[each.name], limits[each.name]) for each in self._task.inputs
        }

    def _value(self, tensor: ServedTensor, shape: tuple[int, ...], limit: int) -> Any:
        given = self._task.given.get(tensor.name)
        if given is not None:
            return np.resize(np.array(given), shape).astype(dtype_of(tensor.datatype))
        among, axis = self._task.values.get(tensor.name, ()), self._reference.axis_of(tensor.name)
        rows_first = (*shape[axis : axis + 1], *shape[:axis], *shape[axis + 1 :])
        values = draw_values(self._random, tensor.datatype, rows_first, limit, among)
        return np.ascontiguousarray(np.moveaxis(values, 0, axis)) if axis else values


def draw_values(
    random: np.random.Generator,
    datatype: str,
    shape: tuple[int, ...],
    limit: int,
    among: Sequence[int] = (),
) -> Any:
    """Return an array of a datatype of the protocol.

    Integers lie below ``limit``, of which the largest is the first, or are ``among`` those given; floats of
    successive rows have unlike scales. BF16 is drawn in 32-bit floats that it can represent.
    """
    if datatype == "BYTES":
        words = random.choice(len(WORDS), shape)
        return np.vectorize(WORDS.__getitem__, otypes=[object])(words) if words.size else words.astype(object)
    if datatype == "BOOL":
        return np.asarray(random.integers(0, 2, shape), np.bool_)
    if _is_integer(datatype):
        dtype = dtype_of(datatype)
        if among:
            return np.asarray(random.choice(among, shape), dtype)
        most = min(limit, int(np.iinfo(dtype).max) + 1)
        integers = np.asarray(random.integers(0, most, shape))
        if integers.ndim and integers.size:
            integers.reshape(-1)[0] = most - 1
        return integers.astype(dtype)
    values = np.asarray(random.standard_normal(shape), np.float32)
    if shape:
        values *= np.resize(np.array(_SCALES, np.float32), shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    if datatype == "BF16":
        return np.asarray(values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(dtype_of(datatype))


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return numpy's type for one of numbers of the protocol."""
    return np.dtype(datatype.lower().replace("fp", "float"))


def first_line(error: Exception) -> str:
    """Return what an error says first."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_integer(datatype: str) -> bool:
    return datatype.startswith(("INT", "UINT"))
