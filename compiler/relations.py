"""Open dimensions of inputs that follow from others: ``past + seq``, or a ``total`` that has to be their sum.

Exporters write such a dimension as arithmetic on the others' names, or give it a name of its own. What a name
says is believed only if the model runs so, and does not otherwise; what it does not say is found by trying.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Sizes = Mapping[str, int]
"""Sizes by the name of an open dimension."""

_MOST_NAMES = 8
"""Most names among which a sum is searched."""
_TRIED = (32, 16, 48)
"""Sizes at which it is."""
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
    of: Callable[[Sizes], int]
    """Returns its size for the sizes of the others."""

    def added(self, sizes: Sizes) -> dict[str, int]:
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


def holds(relation: Relation, sizes: Sizes, runs: Callable[[Sizes], bool]) -> bool:
    """Return whether the model runs with the relation and not without, at these sizes of the others."""
    right = relation.added(sizes)
    return right[relation.name] >= 1 and runs(right) and not _runs_otherwise(relation, right, runs)


def sums(names: Sequence[str], most: Sizes, runs: Callable[[Sizes], bool]) -> list[Relation]:
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


def _sum(one: str, two: str, sizes: Sizes) -> int:
    return sizes[one] + sizes[two]


def _runs_otherwise(relation: Relation, right: Sizes, runs: Callable[[Sizes], bool]) -> bool:
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


def _value(tree: ast.expr, sizes: Sizes) -> int:
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
