"""The symbols of a model: which of its dimensions are open besides the batch, and which sizes they may have.

Open dimensions of one name are one symbol; one without a name is named after its input and axis. What a
symbol may be is found by running the original: from a small size on, doubled while it runs, within bounded
time and memory. Symbols that can't change one without the other are one; one that only runs at a single size
is a fixed dimension.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import psutil

from mainspring.compiler.artifact.errors import AS_IT_IS, CompileError, NoRows
from mainspring.compiler.forms import Range
from mainspring.messages.model import MOST_BUCKETS, OpenDim, Symbol, TensorSpec, Term

Sizes = tuple[int, ...]

LONGEST_S = 0.25
"""CPU time of one row up to which larger sizes are looked for; ``--max`` allows more."""
MOST_IO_BYTES = 128 << 20
"""Inputs and outputs of the largest batch up to which larger sizes are looked for."""
MOST_WORKSPACE_BYTES = 2 << 30
"""Memory for its activations, likewise."""
_MOST_SIZE = 1 << 20
"""The largest size that is looked for."""
_FIRST = (32, 48, 64, 16, 128, 224, 320, 512, 1024, 8, 256, 4, 640, 2048, 4096, 16384, 2, 3, 1)
"""Sizes to begin with: the first at which the model runs, with all symbols equal, is the base."""
_TINY = 3
"""How many of them are too small to show anything, and the last to be tried."""
_SINGLE = 10
"""With how many of them each symbol is tried at 1."""
_SMALLEST_CEILING = 16
"""Sizes up to this are one bucket: they hardly differ in time."""
_PARTS = (4, 2, 1)
"""Ceilings between a power of two and the next, the finest that the number of buckets allows."""


class OpenAxis(NamedTuple):
    """An open dimension of an input."""

    input: int
    axis: int
    """Without the batch axis."""
    name: str


class Found(NamedTuple):
    """The symbols of a model, and its inputs with these."""

    symbols: tuple[Symbol, ...]
    ranges: tuple[Range, ...]
    """Of each symbol."""
    inputs: tuple[TensorSpec, ...]
    dims: dict[str, int]
    """By the name of an open dimension: the index of its symbol; or the negative of its one size."""

    def fixed_at(self, sizes: Sizes) -> dict[str, int]:
        """Return the size of every open dimension, by its name, for one size of each symbol."""
        return {name: -index if index < 0 else sizes[index] for name, index in self.dims.items()}


def check_limits(model: onnx.ModelProto, most: Mapping[str, int]) -> None:
    """Raise `NoRows` if a limit is given for an input's first axis, which is not a number of rows then."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_param in most:
            raise NoRows(
                f"the first axis of input {value.name!r} is {dims[0].dim_param!r}, to which `--max` gives a "
                f"limit, so it isn't the batch; or {AS_IT_IS}"
            )


def name_open_dims(model: onnx.ModelProto, *, whole: bool) -> None:
    """Give each input's open dimensions a name; raise `CompileError` if the batch's name is one of another.

    If ``whole``, the first axis is not a batch.
    """
    batches = set[str]()
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if not whole and len(dims) and dims[0].dim_param:
            batches.add(dims[0].dim_param)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 and not whole:
                continue
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}.{axis}"
            if dim.dim_param in batches:
                raise CompileError(
                    f"dimension {axis} of input {value.name!r} is the number of rows ({dim.dim_param}); rows "
                    "can't share a run of such a model; fix the dimension with `--shape`"
                )


def open_axes(model: onnx.ModelProto) -> list[OpenAxis]:
    """Return the open dimensions behind the first axis of each input."""
    return [
        OpenAxis(index, axis, dim.dim_param)
        for index, value in enumerate(model.graph.input)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim[1:])
        if not dim.HasField("dim_value")
    ]


class Tried(NamedTuple):
    """A run of one row of the original model."""

    shapes: tuple[tuple[int, ...], ...]
    """Of its outputs, without the batch."""
    output_bytes: int
    seconds: float
    """CPU time."""
    grown_bytes: int
    """By how much the process had grown since the first run."""


class Trials:
    """Runs of one row at different sizes, each made once."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        axes: Sequence[OpenAxis],
        run: Callable[[Sequence[TensorSpec]], Sequence[npt.NDArray[np.generic]]],
        rows: int,
    ) -> None:
        """``run`` runs one row of inputs of these shapes; it raises `CompileError` if the model can't.

        ``rows``: of the largest batch.
        """
        self._rows = rows
        self._process = psutil.Process()
        self._first_bytes = self._process.memory_info().rss
        self._inputs = inputs
        self._axes = axes
        self._run = run
        self._known: dict[tuple[tuple[str, int], ...], Tried | None] = {}
        self.error = ""
        """Why the first run that failed did."""

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
        """Return the inputs of fixed shapes, for a size of each open dimension."""
        shapes = [list(spec.shape) for spec in self._inputs]
        for index, axis, name in self._axes:
            shapes[index][axis] = sizes[name]
        return tuple(
            TensorSpec(spec.name, spec.dtype, tuple(shape))
            for spec, shape in zip(self._inputs, shapes, strict=True)
        )

    def at(self, sizes: Mapping[str, int]) -> Tried | None:
        """Return the run at these sizes; None if it fails."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            begin_ns = time.thread_time_ns()
            try:
                outputs = self._run(self.inputs_at(sizes))
                seconds = (time.thread_time_ns() - begin_ns) / 1e9
                shapes = tuple(output.shape[1:] for output in outputs)
                grown = self._process.memory_info().rss - self._first_bytes
                self._known[key] = Tried(shapes, sum(each.nbytes for each in outputs), seconds, grown)
            except CompileError as error:
                self.error = self.error or str(error)
                self._known[key] = None
        return self._known[key]

    def affords(self, sizes: Mapping[str, int], times: float = 1.0) -> bool:
        """Whether a batch that is ``times`` as large as at these sizes would fit, as far as it is known."""
        found = self._known.get(tuple(sorted(sizes.items())))
        io_bytes = sum(spec.row_bytes for spec in self.inputs_at(sizes))
        if found is not None:
            io_bytes += found.output_bytes
        workspace = found.grown_bytes if found is not None else 0
        return (
            io_bytes * self._rows * times <= MOST_IO_BYTES
            and workspace * self._rows * times <= MOST_WORKSPACE_BYTES
        )


def find_symbols(trials: Trials, axes: Sequence[OpenAxis], most: Mapping[str, int]) -> Found:
    """Return the symbols of open dimensions; ``most`` are limits that are given, by name.

    Raises `CompileError` if the model runs at no size that is tried, or not up to a limit.
    """
    names = list(dict.fromkeys(axis.name for axis in axes))
    unknown = [name for name in most if name not in names]
    if unknown:
        raise CompileError(
            f"the model has no open dimension {unknown[0]!r} (it has {', '.join(names) or 'none'}); "
            "give `--max` one of these"
        )
    return _Search(trials, names, most).found(axes)


class _Search:
    """Looks for the sizes at which a model runs."""

    def __init__(self, trials: Trials, names: list[str], most: Mapping[str, int]) -> None:
        self._trials = trials
        self._names = names
        self._most = most
        self._base = self._runs_first()

    def found(self, axes: Sequence[OpenAxis]) -> Found:
        """Return what is found."""
        groups, fixed = self._groups()
        ranges = [self._range(group) for group in groups]
        limits = self._corner(groups, [each.limit for each in ranges])
        ranges = [each._replace(limit=limit) for each, limit in zip(ranges, limits, strict=True)]
        shares = max(1, math.floor(MOST_BUCKETS ** (1 / max(len(groups), 1))))
        symbols = tuple(
            Symbol(group[0], ladder(each, shares), each.least)
            for group, each in zip(groups, ranges, strict=True)
        )
        dims = {name: index for index, group in enumerate(groups) for name in group}
        dims |= {name: -self._base[name] for name in fixed}
        inputs = self._trials.inputs_at(self._with(groups, [each.limit for each in ranges]))
        opened: list[list[OpenDim]] = [[] for _ in inputs]
        for index, axis, name in axes:
            if dims[name] >= 0:
                opened[index].append(OpenDim(axis, (Term(dims[name]),)))
        specs = tuple(
            TensorSpec(spec.name, spec.dtype, spec.shape, tuple(dims))
            for spec, dims in zip(inputs, opened, strict=True)
        )
        return Found(symbols, tuple(ranges), specs, dims)

    def _runs_first(self) -> dict[str, int]:
        """Return sizes at which the model runs: equal ones, but for limits that are smaller."""
        equal = [dict.fromkeys(self._names, size) for size in _FIRST]
        # One of them may be a batch that is always 1.
        single = [sizes | {name: 1} for name in self._names for sizes in equal[:_SINGLE]]
        for wanted in (*equal[:-_TINY], *single, *equal[-_TINY:]):
            sizes = {name: min(size, self._most.get(name, size)) for name, size in wanted.items()}
            if self._runs(sizes):
                return sizes
        raise CompileError(
            f"the model runs at none of the sizes that were tried for {', '.join(self._names)}: "
            f"{self._trials.error}; give its dimensions with `--shape`"
        )

    def _runs(self, sizes: Mapping[str, int]) -> bool:
        return self._trials.affords(sizes) and self._trials.at(sizes) is not None

    def _with(self, groups: Sequence[Sequence[str]], sizes: Sequence[int]) -> dict[str, int]:
        """Return the base with these sizes for the groups."""
        changed = {name: size for group, size in zip(groups, sizes, strict=True) for name in group}
        return self._base | changed

    def _moves(self, group: Sequence[str]) -> bool:
        """Whether the model runs at another size of these dimensions, the same for all."""
        base = max(self._base[name] for name in group)
        others = (2 * base, base // 2, 3 * base // 2, base + 1, 4 * base)
        return any(size not in (1, base) and self._runs(self._with([group], [size])) for size in others)

    def _groups(self) -> tuple[list[list[str]], list[str]]:
        """Return the dimensions that change together, and those that don't change."""
        groups = [[name] for name in self._names if self._moves([name])]
        stuck = [name for name in self._names if [name] not in groups]
        fixed: list[str] = []
        while stuck:
            first = stuck.pop(0)
            together = next(
                ([first, *group] for group in ([other] for other in stuck) if self._moves([first, *group])),
                [first, *stuck] if stuck and self._moves([first, *stuck]) else [],
            )
            if together:
                # Others that have to follow this one are found with it.
                more = [name for name in stuck if name not in together and not self._moves([name])]
                together += [name for name in more if self._moves([*together, name])]
                groups.append([name for name in self._names if name in together])
                stuck = [name for name in stuck if name not in together]
            else:
                fixed.append(first)
        return sorted(groups, key=lambda group: self._names.index(group[0])), fixed

    def _range(self, group: list[str]) -> Range:
        """Return the sizes at which the model runs, with the other dimensions at the base."""
        base = max(self._base[name] for name in group)

        def runs(size: int) -> bool:
            return size >= 1 and self._runs(self._with([group], [size]))

        given = [self._most[name] for name in group if name in self._most]

        def beside(step: int) -> int:
            # Downwards a size may run by chance, because the model pads it to the base.
            return base + step if base + step <= min(given, default=_MOST_SIZE) else base - step

        step = base
        while step > 1 and step % 2 == 0 and runs(beside(step // 2)):
            step //= 2
        if step > 1 and runs(beside(1)):
            step = 1
        least = base
        while least > step and runs(_rounded(least // 2, base, step)):
            least = _rounded(least // 2, base, step)
        least = self._between(runs, least, _rounded(least // 2, base, step), step)
        if given:
            limit = self._given(group, base, min(given), step)
        else:
            limit = self._largest(group, base, step, runs)
        return Range(least, base, limit, step)

    def _given(self, group: list[str], base: int, limit: int, step: int) -> int:
        limit = base + (limit - base) // step * step
        self._trials.error = ""
        if self._trials.at(self._with([group], [limit])) is None:
            raise CompileError(
                f"the model does not run with {group[0]} = {limit}: {self._trials.error}; "
                "give `--max` a smaller number"
            )
        return limit

    def _largest(self, group: list[str], base: int, step: int, runs: Callable[[int], bool]) -> int:
        good = base
        while good * 2 <= _MOST_SIZE:
            tried = self._trials.at(self._with([group], [good]))
            affords = self._trials.affords(self._with([group], [good]), 2.0)
            if tried is None or tried.seconds * 2 > LONGEST_S or not affords:
                return good
            twice = base + (good * 2 - base) // step * step
            if not runs(twice):
                return self._between(runs, good, twice, step)
            good = twice
        return good

    def _between(self, runs: Callable[[int], bool], good: int, bad: int, step: int) -> int:
        """Return the size nearest to ``bad`` that runs, where ``good`` does."""
        if bad == good or runs(bad):
            return bad if runs(bad) else good
        while abs(bad - good) > step:
            middle = (
                good + (bad - good) // (2 * step) * step
                if bad > good
                else (good - (good - bad) // (2 * step) * step)
            )
            if middle == good:
                break
            good, bad = (middle, bad) if runs(middle) else (good, middle)
        return good

    def _corner(self, groups: Sequence[Sequence[str]], limits: list[int]) -> list[int]:
        """Return the limits, lowered until the model runs with all symbols at theirs."""
        bases = [max(self._base[name] for name in group) for group in groups]
        given = {index for index, group in enumerate(groups) if {*group} & {*self._most}}
        while len(groups) > 1 and not self._runs_soon(groups, limits, bases):
            free = [index for index in range(len(groups)) if limits[index] > bases[index]]
            free = [index for index in free if index not in given]
            if not free:
                break
            worst = max(free, key=lambda index: limits[index] / bases[index])
            limits[worst] = max(bases[worst], limits[worst] // 2 // bases[worst] * bases[worst])
        self._trials.error = ""
        if self._trials.at(self._with(groups, limits)) is None:
            sizes = zip(groups, limits, strict=True)
            raise CompileError(
                f"the model does not run with {', '.join(f'{group[0]} = {size}' for group, size in sizes)}: "
                f"{self._trials.error}; give `--max` smaller numbers"
            )
        return limits

    def _runs_soon(
        self, groups: Sequence[Sequence[str]], limits: Sequence[int], bases: Sequence[int]
    ) -> bool:
        """Whether the model runs with all symbols at these limits, within the time and memory for one row."""
        sizes = self._with(groups, limits)
        if not self._trials.affords(sizes):
            return False
        # From a run with one symbol at its limit: a shorter one has more that does not grow.
        expected = []
        for index, group in enumerate(groups):
            alone = self._trials.at(self._with([group], [limits[index]]))
            others = [limit / base for limit, base in zip(limits, bases, strict=True)]
            if alone is not None:
                expected.append(alone.seconds * math.prod(others) / others[index])
        if not expected or min(expected) > 2 * LONGEST_S:
            return False
        tried = self._trials.at(sizes)
        return tried is not None and tried.seconds <= 2 * LONGEST_S and self._trials.affords(sizes)


def _rounded(size: int, base: int, step: int) -> int:
    """Return the nearest size at or above this one that is a number of steps from the base."""
    return base - (base - size) // step * step


def ladder(sizes: Range, most: int) -> tuple[int, ...]:
    """Return at most ``most`` ceilings up to the limit: powers of two, and as many between as there is room.

    Each is a number of steps from the base.
    """
    for parts in _PARTS:
        found = _ceilings(sizes, parts)
        if len(found) <= most:
            return found
    return found[-most:]


def _ceilings(sizes: Range, parts: int) -> tuple[int, ...]:
    found = set[int]()
    power = 1
    while power < sizes.limit:
        for part in range(parts):
            size = power + power * part // parts
            ceiling = sizes.base - (sizes.base - size) // sizes.step * sizes.step
            if max(sizes.least, _SMALLEST_CEILING) <= ceiling < sizes.limit:
                found.add(ceiling)
        power *= 2
    return (*sorted(found), sizes.limit)
