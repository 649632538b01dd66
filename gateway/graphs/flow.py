"""One query of a graph: which step may begin with which tensors, and what the answer is. Pure.

Tensors are arrays with their rows in front. A step in which all rows take part gets the very array that its
source gave; one in which some do gets a copy of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.gateway.graphs.checking import REQUEST, Graph, Source, Step
from mainspring.messages.graphs import MOST_OWN_ROWS, Combine
from mainspring.messages.model import TensorSpec, slot_bytes

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]


class FlowError(ValueError):
    """A query that can't go on: what a step gave, and what is wrong with it."""


class Begin(NamedTuple):
    """A step that may begin."""

    step: int
    """Index of it in `Graph.steps`."""
    rows: int
    arrays: tuple[Array, ...]
    """For each input of its model, in their order."""
    lengths: Array | None = None
    """The length of each row, of a step whose rows have some."""


class _Values(NamedTuple):
    """What a step, or the request, gave."""

    rows: Rows
    """The rows that took part, ascending, of all that there are where it stands."""
    arrays: tuple[Array | None, ...]
    """For each output, of those rows; None where a missing step has no default."""


class Flow:
    """One query: `begin`, then `ended` or `missed` for each step that began, until `outstanding` is empty."""

    def __init__(self, graph: Graph, rows: int, arrays: Sequence[Array]) -> None:
        """Take a request's tensors, in the order of the graph's inputs."""
        self._graph = graph
        self._values: dict[int, _Values] = {REQUEST: _Values(np.arange(rows), tuple(arrays))}
        self._counts = {REQUEST: rows}
        """Rows of the request, and of each step that has rows of its own, as the index of it."""
        self._takes_part: dict[int, Rows] = {}
        """Rows of each step that has begun."""
        self.outstanding: set[int] = set()
        """Steps that have begun and not ended."""
        self.skipped: set[int] = set()
        """Steps that no row took part in."""
        self.missing: set[int] = set()
        """Steps without which the query went on."""

    def begin(self) -> list[Begin]:
        """Return the steps that may begin now, each once."""
        found = []
        for place, step in enumerate(self._graph.steps):
            known = place in self._values or place in self.outstanding
            if known or not all(each in self._values for each in step.after):
                continue
            rows = self._rows_of(place, step)
            if not len(rows):
                self.skipped.add(place)
                empty = [_full(each, 0, 0) for each in step.model.outputs]
                self._values[place] = _Values(rows, tuple(empty))
                continue
            self._takes_part[place] = rows
            self.outstanding.add(place)
            arrays = tuple(
                [self._given(step, *each, rows) for each in zip(step.takes, step.opened, strict=True)]
            )
            lengths = None if step.length is None else self._at(step.length, rows, step.rows_of).reshape(-1)
            found.append(Begin(place, len(rows), arrays, lengths))
        return found

    @property
    def given(self) -> dict[str, Array]:
        """Return the request's tensors by the names of the graph's inputs, rows in front."""
        arrays = self._values[REQUEST].arrays
        return {
            name: array
            for name, array in zip(self._graph.spec.inputs, arrays, strict=True)
            if array is not None
        }

    def leave_out(self, steps: Sequence[int]) -> None:
        """Have no row take part in some steps, before `begin`."""
        self.skipped.update(steps)
        for step in steps:
            none: tuple[None, ...] = (None,) * len(self._graph.steps[step].model.outputs)
            self._values[step] = _Values(np.arange(0), none)

    def output_of(self, source: Source) -> Array | None:
        """Return an output of a step that has ended; None if it is missing or was left out."""
        values = self._values.get(source.step)
        return None if values is None else values.arrays[source.tensor]

    def knows(self, step: int) -> bool:
        """Say whether a step has ended or fallen away."""
        return step in self._values

    def ended(self, step: int, arrays: Sequence[Array]) -> list[Begin]:
        """Take a step's outputs, of the rows that it began with; return the steps that may begin now."""
        self.outstanding.remove(step)
        self._values[step] = _Values(self._takes_part.pop(step), tuple(arrays))
        return self.begin()

    def missed(self, step: int) -> list[Begin]:
        """Go on without a step that has begun and is not required; return the steps that may begin now."""
        self.outstanding.remove(step)
        self.missing.add(step)
        rows, spec = self._takes_part.pop(step), self._graph.steps[step]
        defaults = spec.spec.default
        arrays = [
            _full(each, len(rows), defaults[each.name]) if each.name in defaults else None
            for each in spec.model.outputs
        ]
        self._values[step] = _Values(rows, tuple(arrays))
        return self.begin()

    def lacking(self, step: int) -> str:
        """Return what is wrong if an ensemble has to do without one more member; empty if enough are left."""
        spec, gone = self._graph.spec, {*self.missing, *self.skipped, step}
        for tensor, sources in self._graph.outputs if spec.combine is not None else ():
            left = sum([source.step not in gone for source in sources])
            if left < spec.least:
                return f"output {tensor.name!r} could have {left} of at least {spec.least} members"
        return ""

    def answer(self) -> list[Array]:
        """Return the graph's outputs, once nothing is outstanding; raise `FlowError` if one lacks rows, or an
        ensemble members."""
        if self._graph.spec.combine is not None:
            return self._members(self._graph.spec.combine)
        return [self._merged(tensor, sources) for tensor, sources in self._graph.outputs]

    def _members(self, how: Combine) -> list[Array]:
        """Return the outputs of an ensemble, of the members that are there."""
        found, least = [], self._graph.spec.least
        for tensor, sources in self._graph.outputs:
            arrays, weights = [], []
            for source in sources:
                array = self._values[source.step].arrays[source.tensor]
                if array is not None:
                    arrays.append(array)
                    weights.append(self._graph.steps[source.step].spec.weight)
            if len(arrays) < least:
                raise FlowError(f"output {tensor.name!r} has {len(arrays)} of at least {least} members")
            found.append(combined(how, arrays, weights))
        return found

    def _rows_of(self, place: int, step: Step) -> Rows:
        """Return the rows that take part in a step, and learn how many there are if it has its own."""
        own = step.rows_of == place
        if own:
            self._counts[place] = self._count_own(step)
        count = self._counts[step.rows_of]
        rows = np.arange(count)
        names = step.condition.names if step.condition is not None else frozenset()
        named = {name: self._named(name) for name in sorted(names)}
        for source in [*step.takes, *named.values(), *([step.length] if step.length else [])]:
            lifted = self._lifted(source, step.rows_of)
            if len(lifted) < count:
                rows = rows[np.isin(rows, lifted)]
        if step.condition is None or not len(rows):
            return rows
        tensors = {name: self._at(source, rows, step.rows_of) for name, source in named.items()}
        return rows[step.condition.rows(tensors, len(rows))]

    def _named(self, name: str) -> Source:
        """Return the source that a condition names."""
        step, dot, output = name.partition(".")
        if not dot:
            return Source(REQUEST, self._graph.spec.inputs.index(name))
        place = next(at for at, each in enumerate(self._graph.steps) if each.spec.name == step)
        outputs = [each.name for each in self._graph.steps[place].model.outputs]
        return Source(place, outputs.index(output))

    def _count_own(self, step: Step) -> int:
        """Return how many rows a step has of its own; raise `FlowError` where what it takes disagrees."""
        counts: dict[str, int] = {}
        for tensor, source, opened in zip(step.model.inputs, step.takes, step.opened, strict=True):
            values = self._values[source.step]
            array = values.arrays[source.tensor]
            if opened:
                counts[tensor.name] = array.shape[1] if array is not None and len(values.rows) else 0
        found = max(counts.values())
        if len({*counts.values()}) > 1:
            each = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise FlowError(f"step {step.spec.name!r}: its inputs have unlike numbers of rows: {each}")
        if found > MOST_OWN_ROWS:
            raise FlowError(f"step {step.spec.name!r} would have {found} rows, and may have {MOST_OWN_ROWS}")
        return found

    def _stands(self, source: Source) -> int:
        """Return whose rows a source has."""
        return REQUEST if source.step == REQUEST else self._graph.steps[source.step].rows_of

    def _lifted(self, source: Source, rows_of: int) -> Rows:
        """Return which rows of a step a source has something for."""
        values = self._values[source.step]
        rows = values.rows if values.arrays[source.tensor] is not None else values.rows[:0]
        if self._stands(source) == rows_of:
            return rows
        # The one row of the request stands for all of the step's own.
        return np.arange(self._counts[rows_of] if len(rows) else 0)

    def _at(self, source: Source, rows: Rows, rows_of: int) -> Array:
        """Return a source's values for some rows, all of which it has; one row if that stands for all."""
        values = self._values[source.step]
        array = values.arrays[source.tensor]
        assert array is not None, "rows of nothing"
        if self._stands(source) != rows_of or len(values.rows) == len(rows):
            return array
        found: Array = array[np.searchsorted(values.rows, rows)]
        return found

    def _given(self, step: Step, source: Source, opened: bool, rows: Rows) -> Array:
        """Return what a step's model is given of a source."""
        if not opened:
            return self._at(source, rows, step.rows_of)
        array = self._values[source.step].arrays[source.tensor]
        assert array is not None, "rows of nothing"
        own: Array = array[0]
        return own if len(rows) == len(own) else own[rows]

    def _merged(self, tensor: TensorSpec, sources: Sequence[Source]) -> Array:
        """Return an output: for each row the first of its sources that has it."""
        count = self._counts[self._stands(sources[0])]
        left = np.arange(count)
        parts: list[tuple[Rows, Array]] = []
        for source in sources:
            values = self._values.get(source.step)
            array = None if values is None else values.arrays[source.tensor]
            if values is None or array is None:
                continue
            if len(values.rows) == count and len(left) == count:
                return array
            here = np.isin(values.rows, left)
            parts.append((values.rows[here], array[here]))
            left = left[~np.isin(left, values.rows)]
            if not len(left):
                break
        if len(left):
            raise FlowError(f"output {tensor.name!r} has nothing for {len(left)} of {count} rows")
        shapes = {array.shape[1:] for rows, array in parts if len(rows)}
        if len(shapes) > 1:
            raise FlowError(f"output {tensor.name!r} would have rows of unlike shapes: {sorted(shapes)}")
        merged = np.empty(
            (count, *(shapes.pop() if shapes else tensor.shape)), parts[0][1].dtype if parts else None
        )
        for rows, array in parts:
            merged[rows] = array
        return merged


def _full(tensor: TensorSpec, rows: int, value: float | str) -> Array:
    """Return rows of one value."""
    filled = value.encode() if isinstance(value, str) else value
    if slot_bytes(tensor.dtype) is not None and not isinstance(value, str):
        filled = b""
    if tensor.dtype == "bfloat16":
        # Its bits are the upper half of a float32's.
        upper = np.array(filled, np.float32).view(np.uint32) >> 16
        return np.full((rows, *tensor.shape), upper, np.uint16)
    return np.full((rows, *tensor.shape), filled, np.dtype(tensor.dtype))


def combined(how: Combine, answers: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return one answer of an ensemble's members, of which at least one answered.

    ``mean`` and ``majority`` weigh each member; a tie goes to the value that the heavier, then the earlier
    member gave; ``concat`` puts the last axes behind one another.
    """
    if how == "first" or len(answers) == 1:
        return answers[0]
    if how == "concat":
        return np.concatenate(answers, axis=-1)
    if how == "mean":
        total = sum(weights)
        summed = sum(each.astype(np.float64) * weight for each, weight in zip(answers, weights, strict=True))
        return np.asarray(summed / total).astype(answers[0].dtype)
    return _majority(answers, weights)


def _majority(answers: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return element by element the value of most weight."""
    stacked = np.stack(answers)
    votes = np.stack(
        [
            sum((stacked[other] == stacked[place]) * weight for other, weight in enumerate(weights))
            for place in range(len(answers))
        ]
    )
    found: Array = np.take_along_axis(stacked, votes.argmax(axis=0)[None], axis=0)[0]
    return found
