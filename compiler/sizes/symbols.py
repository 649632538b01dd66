"""The symbols of a model: which of its dimensions are open besides the batch, and which sizes they may have.

Open dimensions of one name are one symbol; one without a name is named after its input and axis. What a
symbol may be is found by running the original: from a small size on, doubled while it runs, within bounded
work and memory. Symbols that can't change one without the other are one; one that only runs at a single size
is a fixed dimension. One that has to be what follows from others (``past + seq``, a ``total`` that is their
sum) is none: what a name says is believed only if the model runs so, and does not otherwise.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mainspring.compiler.artifact.errors import CompileError, NoRows
from mainspring.compiler.reading.normalise import OpenAxis
from mainspring.compiler.sizes.forms import Range, fit, ladder
from mainspring.compiler.sizes.trials import COMMON, Trials
from mainspring.messages.model import MOST_BUCKETS, OpenDim, Symbol, TensorSpec, Term

NamedSizes = Mapping[str, int]
"""NamedSizes by the name of an open dimension."""

_MOST_NAMES = 8
"""Most names among which a sum is searched."""

_TRIED = (32, 16, 48)
"""NamedSizes at which it is."""

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


class Relation(NamedTuple):
    """A dimension that follows from others."""

    name: str
    others: tuple[str, ...]
    of: Callable[[NamedSizes], int]
    """Returns its size for the sizes of the others."""

    def added(self, sizes: NamedSizes) -> dict[str, int]:
        """Return the sizes with its own."""
        return {**sizes, self.name: self.of(sizes)}


def written(names: Sequence[str]) -> list[Relation]:
    """Return the names that are arithmetic on other names, none of which is so itself."""
    parsed = {name: tree for name in names if (tree := _parsed(name)) is not None}
    plain = {name for name in names if name not in parsed}
    found = []
    for name, tree in parsed.items():
        others = tuple(dict.fromkeys(each.id for each in ast.walk(tree) if isinstance(each, ast.Name)))
        if others and {*others} <= plain:
            found.append(Relation(name, others, functools.partial(_value, tree)))
    return found


def holds(relation: Relation, sizes: NamedSizes, runs: Callable[[NamedSizes], bool]) -> bool:
    """Return whether the model runs with the relation and not without, at these sizes of the others."""
    right = relation.added(sizes)
    return right[relation.name] >= 1 and runs(right) and not _runs_otherwise(relation, right, runs)


def sums(names: Sequence[str], most: NamedSizes, runs: Callable[[NamedSizes], bool]) -> list[Relation]:
    """Return the dimension that has to be the sum of two others, if there is one; ``most`` are limits."""
    if not 3 <= len(names) <= _MOST_NAMES:
        return []
    for name in names:
        others = [each for each in names if each != name]
        for (one, two), size in itertools.product(itertools.combinations(others, 2), _TRIED):
            relation = Relation(name, (one, two), functools.partial(_sum, one, two))
            equal = {each: min(size, most.get(each, size)) for each in names}
            if not runs(relation.added(equal)):
                continue
            if not holds(relation, equal, runs):
                break
            unlike = [{**equal, each: max(1, equal[each] // 2)} for each in (one, two)]
            if all(runs(relation.added(sizes)) for sizes in unlike):
                return [relation]
    return []


def _sum(one: str, two: str, sizes: NamedSizes) -> int:
    return sizes[one] + sizes[two]


def _runs_otherwise(relation: Relation, right: NamedSizes, runs: Callable[[NamedSizes], bool]) -> bool:
    size = right[relation.name]
    return any(runs({**right, relation.name: other}) for other in (size + 1, size + 16) if other != size)


def _parsed(name: str) -> ast.expr | None:
    """Return arithmetic on names and numbers; None for anything else, a lone name among it."""
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if isinstance(tree, ast.BinOp) and _is_arithmetic(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATORS and _is_arithmetic(tree.left) and _is_arithmetic(tree.right)
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


def _value(tree: ast.expr, sizes: NamedSizes) -> int:
    """Return its value; 0, which no dimension has, where it divides by 0."""
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, sizes), _value(tree.right, sizes)
        if isinstance(tree.op, ast.Div | ast.FloorDiv) and right == 0:
            return 0
        return _OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    assert isinstance(tree, ast.Constant), "nothing else is parsed"
    return int(str(tree.value))


Sizes = tuple[int, ...]

_MOST_SIZE = 1 << 20
"""The largest size that is looked for."""

_FIRST = (32, 48, 64, 16, 128, 224, 320, 512, 1024, 8, 256, 4, 640, 2048, 4096, 16384, 2, 3, 1)
"""Sizes to begin with: the first at which the model runs, with all symbols equal, is the base."""

_LOWERED = (1_344, 1_280, 1_024, 640, 512)
"""Sizes that a limit is lowered to before its half."""

_TINY = 3
"""Number of these sizes that are too small to show anything: the last to be tried."""

_ROWS = "batch"
"""Name of dimensions that are rows, of a model for which they are dimensions like others."""

_SINGLE = 10
"""Number of these sizes with which each symbol is tried at 1."""


class Found(NamedTuple):
    """The symbols of a model, and its inputs with these."""

    symbols: tuple[Symbol, ...]
    ranges: tuple[Range, ...]
    """Range of each symbol."""
    inputs: tuple[TensorSpec, ...]
    dims: dict[str, int]
    """Index of an open dimension's symbol, or the negative of its one size, by its name."""
    relations: tuple[Relation, ...] = ()
    """The other open dimensions."""

    def fixed_at(self, sizes: Sizes) -> dict[str, int]:
        """Return the size of every open dimension, by its name, for one size of each symbol."""
        fixed = {name: -index if index < 0 else sizes[index] for name, index in self.dims.items()}
        for relation in self.relations:
            fixed = relation.added(fixed)
        return fixed


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
        self._most = most
        self._names = names
        """Names of dimensions that follow from no others."""
        self._relations: list[Relation] = []
        """Relations of the other dimensions."""
        self._base = self._runs_first(names)
        for each in self._relations:
            if each.name in most:
                raise CompileError(
                    f"dimension {each.name!r} follows from {' and '.join(each.others)}; give `--max` these"
                )

    def found(self, axes: Sequence[OpenAxis]) -> Found:
        """Return what is found."""
        groups, fixed = self._groups()
        ranges = [self._range(group) for group in groups]
        limits = self._corner(groups, [each.limit for each in ranges])
        ranges = [each._replace(limit=limit) for each, limit in zip(ranges, limits, strict=True)]
        shares = max(1, math.floor(MOST_BUCKETS ** (1 / max(len(groups), 1))))
        symbols = tuple(
            Symbol(group[0], ladder(each, shares), each.least, each.step)
            for group, each in zip(groups, ranges, strict=True)
        )
        dims = {name: index for index, group in enumerate(groups) for name in group}
        dims |= {name: -self._base[name] for name in fixed}
        constant = [each for each in self._relations if {*each.others} <= {*fixed}]
        dims |= {each.name: -self._base[each.name] for each in constant}
        relations = tuple([each for each in self._relations if each not in constant])
        found = Found(symbols, tuple(ranges), (), dims, relations)
        forms = {name: (Term(index),) for name, index in dims.items() if index >= 0}
        opened = {name: OpenDim(0, terms) for name, terms in forms.items()} | _follow(found)
        inputs = self._trials.inputs_at(self._with(groups, [each.limit for each in ranges]))
        of_inputs: list[list[OpenDim]] = [[] for _ in inputs]
        for index, axis, name in axes:
            if name in opened:
                of_inputs[index].append(msgspec.structs.replace(opened[name], axis=axis))
        specs = tuple(
            TensorSpec(spec.name, spec.dtype, spec.shape, tuple(dims))
            for spec, dims in zip(inputs, of_inputs, strict=True)
        )
        return found._replace(inputs=specs)

    def _runs_first(self, names: list[str]) -> dict[str, int]:
        """Return sizes at which the model runs; settle which of the dimensions follow from others."""
        for relations in (written(names), sums(names, self._most, self._runs)):
            self._settle(names, relations)
            base = next(filter(self._runs, self._firsts()), None) if relations else None
            believed = [each for each in relations if base is not None and holds(each, base, self._runs)]
            if base is not None and believed:
                self._settle(names, believed)
                return base
        self._settle(names, [])
        base = next(filter(self._runs, self._firsts()), None)
        if base is None:
            raise NoRows(
                f"the model runs at none of the sizes that were tried for {', '.join(names)}: "
                f"{self._trials.error}; give its dimensions with `--shape`"
            )
        return base

    def _settle(self, names: list[str], relations: list[Relation]) -> None:
        """Take it that these dimensions follow from the others."""
        follow = {each.name for each in relations}
        self._relations, self._names = relations, [name for name in names if name not in follow]

    def _firsts(self) -> Iterator[dict[str, int]]:
        """Yield sizes to begin with: equal ones, but for smaller limits and what follows from others."""
        # Requests that run alone are of one row mostly: other dimensions may be as large as that allows.
        rows = {name for name in self._names if _ROWS in name.lower()} if len(self._names) > 1 else set()
        equal = [{name: 1 if name in rows else size for name in self._names} for size in _FIRST]
        # One of them may be a batch that is always 1.
        single = [sizes | {name: 1} for name in self._names for sizes in equal[:_SINGLE]]
        for wanted in (*equal[:-_TINY], *single, *equal[-_TINY:]):
            yield self._all({name: min(size, self._most.get(name, size)) for name, size in wanted.items()})

    def _all(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return the sizes with those that follow from them."""
        for relation in self._relations:
            sizes = relation.added(sizes)
        return sizes

    def _runs(self, sizes: Mapping[str, int]) -> bool:
        return min(sizes.values()) >= 1 and self._trials.affords(sizes) and self._trials.at(sizes) is not None

    def _with(self, groups: Sequence[Sequence[str]], sizes: Sequence[int]) -> dict[str, int]:
        """Return the base with these sizes for the groups, and what follows from them."""
        changed = {name: size for group, size in zip(groups, sizes, strict=True) for name in group}
        return self._all(self._base | changed)

    def _moves(self, group: Sequence[str]) -> bool:
        """Return whether the model runs at another size of these dimensions, the same for all."""
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
        self._trials.check_room(self._with([group], [limit]))
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
            twice = base + (good * 2 - base) // step * step
            if not self._trials.grows(self._with([group], [good]), self._with([group], [twice])):
                return self._common_between(group, good, twice, step, runs)
            if not runs(twice):
                return self._between(runs, good, twice, step)
            good = twice
        return good

    def _common_between(
        self, group: list[str], good: int, bad: int, step: int, runs: Callable[[int], bool]
    ) -> int:
        """Return the largest common size between one that runs and one that costs too much, or the former."""
        for common, _ in reversed(COMMON):
            size = good + (common - good) // step * step
            if good < size < bad:
                beside = self._with([group], [good]), self._with([group], [size])
                if self._trials.grows(*beside) and runs(size):
                    return size
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
            half = limits[worst] // 2
            between = [size for size in _LOWERED if half < size < limits[worst]]
            size = max([half, *between]) // bases[worst] * bases[worst]
            limits[worst] = max(bases[worst], size)
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
        """Return whether the model runs with all symbols at these limits, within the work and memory for one
        row."""
        larger = [limit / base for limit, base in zip(limits, bases, strict=True)]
        alone = [
            (self._with([group], [limit]), math.prod(larger) / more)
            for group, limit, more in zip(groups, limits, larger, strict=True)
        ]
        return self._trials.corner(self._with(groups, limits), alone)


def _follow(found: Found) -> dict[str, OpenDim]:
    """Return how the dimensions that follow from others do so from the symbols, by name.

    Raises `CompileError` for one of no known form.
    """
    names = [each.name for each in found.relations]
    if not names or not found.symbols:
        return {}

    def tried(sizes: Sizes) -> list[tuple[int, ...]]:
        fixed = found.fixed_at(sizes)
        return [(fixed[name],) for name in names]

    forms = dict(zip(names, fit(tried, found.ranges), strict=True))
    for name, form in forms.items():
        if isinstance(form, int):
            raise CompileError(
                f"dimension {name!r} follows from {', '.join(symbol.name for symbol in found.symbols)} in no "
                "form that is known beforehand; fix the inputs' dimensions with `--shape`"
            )
    return {name: form[0] for name, form in forms.items() if not isinstance(form, int) and form}


def _rounded(size: int, base: int, step: int) -> int:
    """Return the nearest size at or above this one that is a number of steps from the base."""
    return base - (base - size) // step * step
