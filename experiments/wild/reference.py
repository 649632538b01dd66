"""ONNX Runtime on a file as it lies: what every served answer is compared with.

It knows nothing of the compiler. Tensors of bfloat16, which numpy lacks, are 32-bit floats outside the model,
as they are for Triton's clients; a sequence of maps, ZipMap's output, is a tensor with a row for each map,
and one of tensors is these stacked. A StringNormalizer that names no locale has C.UTF-8, for ONNX's own
default is not installed everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

RELATIVE = 1e-3
"""Part of each element by which it may differ."""
SCALE = 1e-4
"""Part of the output's largest magnitude: elements near zero are sums that cancel."""
FLOOR = 2.4e-7
"""A difference that is never too large: two steps of a 32-bit float at 1."""
HALF = 2e-2
"""Both parts for 16-bit floats."""


class Comparison(NamedTuple):
    """Comparison of an answer with the expected one."""

    largest: float = 0.0
    """The largest absolute difference of floats; infinity where only one of two is NaN or infinite."""
    problem: str = ""
    with_rows: str = ""
    """An output that has an axis of one row, which ONNX Runtime's does not have; empty if none does."""

    @property
    def same(self) -> bool:
        """True if nothing differs by more than it may."""
        return not self.problem


def compare(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    half: frozenset[str] = frozenset(),
    share: float = 1.0,
    *,
    by_rows: bool = False,
) -> Comparison:
    """Compare all outputs by name, allowing for this ``share`` of the tolerance.

    If ``by_rows``, the model takes batches: then each output has a first axis for the rows, also where a
    Squeeze without axes of the file takes that of one row away. Those in ``half`` were computed in 16 bits
    though their arrays have 32.
    """
    largest, with_rows = 0.0, ""
    for name, wanted in expected.items():
        right = wanted
        if name not in found:
            return Comparison(largest, f"there is no output {name!r}; there are {', '.join(found)}")
        if by_rows and found[name].shape == (1, *right.shape):
            with_rows, right = with_rows or name, right[None]
        each = _compare(found[name], right, name in half, share)
        largest = max(largest, each.largest)
        if each.problem:
            return Comparison(largest, f"output {name!r}: {each.problem}")
    return Comparison(largest, "", with_rows)


def _compare(found: Any, expected: Any, half: bool, share: float) -> Comparison:
    if found.shape != expected.shape:
        return Comparison(problem=f"shape {list(found.shape)} instead of {list(expected.shape)}")
    if expected.dtype.kind in "OUS":
        return _compare_texts(found, expected)
    if found.dtype != expected.dtype:
        return Comparison(problem=f"{found.dtype} instead of {expected.dtype}")
    if expected.dtype.kind != "f":
        wrong = np.argwhere(found != expected)
        return Comparison(problem=_at(wrong[0], found, expected)) if len(wrong) else Comparison()
    part, scale = (HALF, HALF) if half or expected.dtype.itemsize == 2 else (RELATIVE, SCALE)
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(equal, 0.0, np.nan_to_num(difference, nan=np.inf))
    magnitude = np.abs(np.where(np.isfinite(theirs), theirs, 0.0))
    allowed = share * np.maximum(part * magnitude + scale * magnitude.max(initial=0.0), FLOOR)
    largest = float(difference.max(initial=0.0))
    wrong = np.argwhere(difference > allowed)
    return Comparison(largest, _at(wrong[0], found, expected) if len(wrong) else "")


def _compare_texts(found: Any, expected: Any) -> Comparison:
    pairs = zip(found.reshape(-1).tolist(), expected.reshape(-1).tolist(), strict=True)
    for index, (ours, theirs) in enumerate(pairs):
        if _encoded(ours) != _encoded(theirs):
            return Comparison(problem=f"element {index} is {ours!r} instead of {theirs!r}")
    return Comparison()


def _encoded(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _at(index: Any, found: Any, expected: Any) -> str:
    place = tuple(int(axis) for axis in index)
    return f"element {list(place)} is {found[place]} instead of {expected[place]}"


Arrays = dict[str, Any]
"""Tensors by name, as numpy arrays."""

_FATAL_ONLY = 4
_FLOATS = ("float", "double", "float16")


class Declared:
    """An input or output as the file declares it."""

    def __init__(self, name: str, kind: str, shape: list[Any]) -> None:
        self.name = name
        self.kind = kind
        """The element type, such as ``float`` or ``int64``."""
        self.dims: list[int | str | None] = [
            each if not isinstance(each, int) or each >= 0 else None for each in shape
        ]
        """A length, the name of an open dimension, or None for an open one without a name."""

    @property
    def is_float(self) -> bool:
        """True if its values are floating point numbers."""
        return self.kind in _FLOATS


class Reference:
    """A session on a file; raises whatever ONNX Runtime raises."""

    def __init__(self, path: Path, folder: Path, axes: Mapping[str, int] = MappingProxyType({})) -> None:
        """``folder`` is for a copy of the file, where it has tensors of bfloat16 or lacks a locale.

        ``axes`` are those that have the rows, of inputs and outputs that don't have them in front.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._axes = axes
        self._session = onnxruntime.InferenceSession(
            str(_runnable(path, folder)), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [_declared(each) for each in self._session.get_inputs()]
        self.outputs = [_declared(each) for each in self._session.get_outputs()]

    @property
    def fixed_rows(self) -> int:
        """The length of the rows' axis of the first input that has axes; 0 if it is open."""
        found = next((each.dims[self.axis_of(each.name)] for each in self.inputs if each.dims), None)
        return found if isinstance(found, int) else 0

    def run(self, inputs: Arrays) -> Arrays:
        """Return all outputs of one run."""
        outputs = self._session.run(None, inputs)
        named = zip(self.outputs, outputs, strict=True)
        return {each.name: _tensor(output) for each, output in named}

    def run_rows(self, inputs: Arrays, rows: int) -> Arrays:
        """Return the outputs of ``rows`` rows.

        Where the file fixes the batch, to another number of them than ``rows``, each row is run in a batch of
        copies of itself: rows are served together only if none depends on another.
        """
        first = self.fixed_rows
        if first in (0, rows):
            return self.run(inputs)
        single = []
        for row in range(rows):
            copies = {
                name: self.rows_of(name, array, [row]).repeat(first, axis=self.axis_of(name))
                for name, array in inputs.items()
            }
            single.append({name: self.rows_of(name, each, [0]) for name, each in self.run(copies).items()})
        return {
            name: np.concatenate([each[name] for each in single], axis=self.axis_of(name))
            for name in single[0]
        }

    def axis_of(self, name: str) -> int:
        """Return which axis of a tensor has the rows."""
        return self._axes.get(name, 0)

    def rows_of(self, name: str, array: Any, rows: Sequence[int]) -> Any:
        """Return some rows of a tensor."""
        return np.take(array, rows, axis=self.axis_of(name))


def _declared(value: Any) -> Declared:
    kind = str(value.type).removeprefix("tensor(").removesuffix(")")
    return Declared(value.name, kind, list(value.shape))


def _tensor(output: Any) -> Any:
    if isinstance(output, list) and output and isinstance(output[0], dict):
        # A ZipMap's scores are 32-bit floats, which ONNX Runtime gives as Python's.
        return np.array([list(each.values()) for each in output], np.float32)
    if isinstance(output, list):
        return np.stack(output)
    return np.asarray(output)


def _runnable(path: Path, folder: Path) -> Path:
    model = onnx.load(path, load_external_data=False)
    changed = [_widen(model.graph), _give_locale(model.graph)]
    if not any(changed):
        return path
    target = folder / "runnable.onnx"
    target.write_bytes(model.SerializeToString())
    return target


def _give_locale(graph: onnx.GraphProto) -> bool:
    lacking = [
        node
        for node in graph.node
        if node.op_type == "StringNormalizer" and not any(each.name == "locale" for each in node.attribute)
    ]
    for node in lacking:
        node.attribute.append(helper.make_attribute("locale", "C.UTF-8"))
    return bool(lacking)


def _widen(graph: onnx.GraphProto) -> bool:
    narrow = {
        value.name: value
        for value in (*graph.input, *graph.output)
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16
    }
    if not narrow:
        return False
    inside = {name: f"{name}.narrow" for name in narrow}
    for node in graph.node:
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    before = [
        helper.make_node("Cast", [value.name], [inside[value.name]], to=TensorProto.BFLOAT16)
        for value in graph.input
        if value.name in narrow
    ]
    after = [
        helper.make_node("Cast", [inside[value.name]], [value.name], to=TensorProto.FLOAT)
        for value in graph.output
        if value.name in narrow
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in narrow.values():
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return True
