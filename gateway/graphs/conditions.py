"""The language of a step's ``when``: which rows take part in it. Pure.

An expression is parsed by `ast` and evaluated by numpy for all rows at once; nothing of it runs as Python.
It knows names (``find.boxes``: an output of a step; ``image``: an input of the graph), numbers, texts,
``True`` and ``False``, comparisons, arithmetic, ``and``, ``or``, ``not``, an index, and the functions of
`FUNCTIONS`. Its result is one truth for each row. A number is true unless it is 0 or NaN, and a comparison
with NaN is false.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.messages.choices import did_you_mean

MOST_CHARACTERS: Final = 1_000
MOST_NODES: Final = 200

Array = npt.NDArray[Any]
Evaluate = Callable[[Mapping[str, Array]], Array]


class ConditionError(ValueError):
    """An expression that makes no sense: what is wrong, in which column, and what would be right."""


class Kind(NamedTuple):
    """The type of a value of each row."""

    text: bool
    """Whether its elements are texts; else they are numbers or truths."""
    shape: tuple[int | None, ...]
    """Shape of one row; None where the size differs by row or request."""

    def __str__(self) -> str:
        """Return it as a person reads it: ``[?, 4]``."""
        return f"[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


class Tensor(NamedTuple):
    """What an expression may name: an input of the graph, or an output of a step."""

    dtype: str
    """As `messages.model.TensorSpec.dtype`."""
    shape: tuple[int | None, ...]
    """Shape of one row."""


class _Typed(NamedTuple):
    """A part of an expression, checked."""

    kind: Kind
    evaluate: Evaluate
    constant: float | str | None = None


class Condition:
    """An expression that passed: which tensors it names, and which rows it is true for."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor]) -> None:
        """Parse and check an expression; raise `ConditionError` if it makes no sense.

        ``tensors``: what it may name, by name.
        """
        self.text = text
        parser = _Parser(text, tensors)
        self._evaluate = parser.parse()
        self.names = frozenset(parser.names)
        """The tensors that it names."""

    def rows(self, tensors: Mapping[str, Array], rows: int) -> npt.NDArray[np.bool_]:
        """Return for each of ``rows`` rows whether it takes part; each of ``tensors`` has the rows in front.

        Raises `ConditionError` where open dimensions of two tensors do not fit each other.
        """
        try:
            with np.errstate(all="ignore"):
                found = _truth(self._evaluate(tensors))
        except ValueError as error:
            raise ConditionError(f"{self.text!r}: {error}") from None
        return np.broadcast_to(found, (rows,)).copy()


def _truth(values: Array) -> Array:
    """Return which values are true: those that are neither 0 nor NaN."""
    return values if values.dtype == np.bool_ else np.not_equal(values, 0) & np.equal(values, values)


def _flat(values: Array) -> Array:
    """Return the elements of each row."""
    return values.reshape(len(values), -1)


def _softmax(values: Array) -> Array:
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    found: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return found


FUNCTIONS: Final[Mapping[str, tuple[str, Callable[[Array], Array]]]] = {
    "max": ("the largest element of a row", lambda values: _flat(values).max(axis=1)),
    "min": ("the smallest element of a row", lambda values: _flat(values).min(axis=1)),
    "argmax": ("the place of a row's largest element", lambda values: _flat(values).argmax(axis=1)),
    "mean": ("the mean of a row's elements", lambda values: _flat(values).mean(axis=1)),
    "sum": ("the sum of a row's elements", lambda values: _flat(values).sum(axis=1)),
    "count": (
        "the number of a row's elements that are true",
        lambda values: _flat(_truth(values)).sum(axis=1),
    ),
    "softmax": ("the softmax of a row along its last axis", _softmax),
}
"""Functions of one argument: what each returns. ``top(x, k)`` is the k-th largest element of a row."""
_EMPTY: Final = {"max", "min", "argmax", "mean", "top"}
"""Functions that have no result for a row without elements: they return NaN for it."""
_SHAPED: Final = {"softmax"}

_COMPARISONS: Final[Mapping[type, Callable[[Array, Array], Array]]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_ARITHMETIC: Final[Mapping[type, Callable[[Array, Array], Array]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_KNOWN: Final = "comparisons, + - * / // %, and, or, not, an index, " + ", ".join([*FUNCTIONS, "top"])


class _Parser:
    """One expression on its way to a function of tensors."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor]) -> None:
        self._text = text
        self._tensors = tensors
        self.names: set[str] = set()

    def parse(self) -> Evaluate:
        """Return what evaluates the expression."""
        if len(self._text) > MOST_CHARACTERS:
            raise ConditionError(f"it has {len(self._text)} characters, and may have {MOST_CHARACTERS}")
        try:
            tree = ast.parse(self._text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # At the end of the text Python's own column is that of an empty line behind it.
            line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
            column = column if line == 1 and column > 1 else len(self._text.rstrip()) + 1
            what = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
            raise ConditionError(f"column {column}: {what}") from None
        if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
            raise ConditionError(f"it has more than {MOST_NODES} parts: split it over steps")
        typed = self._typed(tree.body)
        if typed.kind.text:
            raise self._error(tree.body, "it is a text, not a truth: compare it with one")
        if typed.kind.shape:
            raise self._error(
                tree.body,
                f"it has a value of shape {typed.kind} for each row, not one: use max(), count() or an index",
            )
        return typed.evaluate

    def _error(self, node: ast.AST, what: str) -> ConditionError:
        # Python counts columns in bytes of UTF-8.
        line = self._text.strip().encode()[: getattr(node, "col_offset", 0)]
        before = len(self._text) - len(self._text.lstrip())
        return ConditionError(f"column {before + len(line.decode(errors='ignore')) + 1}: {what}")

    def _typed(self, node: ast.expr) -> _Typed:
        match node:
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._named(node, name)
            case ast.Attribute(value=ast.Name(id=step), attr=output):
                return self._named(node, f"{step}.{output}")
            case ast.BoolOp(op=op, values=values):
                return self._all_or_any(values, np.logical_and if isinstance(op, ast.And) else np.logical_or)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                a, b = self._number(left), self._number(right)
                return self._both(node, a, b, _ARITHMETIC[type(op)])
            case ast.Compare():
                return self._comparison(node)
            case ast.Subscript(value=value, slice=index):
                return self._element(self._typed(value), index)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._called(node, name, arguments)
        raise self._error(node, f"{ast.unparse(node)[:40]!r} is not known here; known are {_KNOWN}")

    def _constant(self, node: ast.expr, value: object) -> _Typed:
        if isinstance(value, bool | int | float):
            try:
                number = float(value)
            except OverflowError:
                raise self._error(node, "a number is too large") from None
            held = np.array([number])
            return _Typed(Kind(False, ()), lambda _: held, number)
        if isinstance(value, str):
            text = np.array([value.encode()], dtype=object)
            return _Typed(Kind(True, ()), lambda _: text, value)
        raise self._error(node, f"{value!r} is neither a number nor a text")

    def _named(self, node: ast.expr, name: str) -> _Typed:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._error(
                node, f"there is no {name!r} here{did_you_mean(name, self._tensors, self._choice())}"
            )
        self.names.add(name)
        if tensor.dtype == "str" or tensor.dtype.startswith("S"):
            return _Typed(Kind(True, tensor.shape), lambda tensors: _texts(tensors[name]))
        return _Typed(Kind(False, tensor.shape), lambda tensors: _numbers(tensors[name]))

    def _choice(self) -> str:
        return "known are " + ", ".join(sorted(self._tensors)[:8]) if self._tensors else "no tensor is known"

    def _number(self, node: ast.expr) -> _Typed:
        typed = self._typed(node)
        if typed.kind.text:
            raise self._error(node, "it is a text; only == and != take texts")
        return typed

    def _all_or_any(self, values: list[ast.expr], join: Callable[[Array, Array], Array]) -> _Typed:
        typed = self._truth_of(values[0])
        for node in values[1:]:
            typed = self._both(node, typed, self._truth_of(node), join)
        return typed

    def _truth_of(self, node: ast.expr) -> _Typed:
        typed = self._number(node)
        evaluate = typed.evaluate
        return _Typed(typed.kind, lambda tensors: _truth(evaluate(tensors)))

    def _unary(self, node: ast.expr, op: ast.unaryop, operand: ast.expr) -> _Typed:
        if isinstance(op, ast.Not):
            evaluate = (typed := self._truth_of(operand)).evaluate
            return _Typed(typed.kind, lambda tensors: np.logical_not(evaluate(tensors)))
        if isinstance(op, ast.USub | ast.UAdd):
            evaluate = (typed := self._number(operand)).evaluate
            sign = -1.0 if isinstance(op, ast.USub) else 1.0
            constant = sign * typed.constant if isinstance(typed.constant, float) else None
            return _Typed(typed.kind, lambda tensors: sign * evaluate(tensors), constant)
        raise self._error(node, f"'~' is not known here; known are {_KNOWN}")

    def _comparison(self, node: ast.Compare) -> _Typed:
        found: _Typed | None = None
        left = self._typed(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            compare = _COMPARISONS.get(type(op))
            if compare is None:
                raise self._error(right_node, "compare with <, <=, >, >=, == or !=")
            right = self._typed(right_node)
            if left.kind.text is not right.kind.text:
                raise self._error(right_node, "a text is compared with a number")
            if left.kind.text and not isinstance(op, ast.Eq | ast.NotEq):
                raise self._error(right_node, "texts are compared with == and != only")
            each = self._both(right_node, left, right, _without_nan(compare))
            found = each if found is None else self._both(right_node, found, each, np.logical_and)
            left = right
        assert found is not None, "a comparison has two sides"
        return found

    def _both(self, node: ast.expr, a: _Typed, b: _Typed, join: Callable[[Array, Array], Array]) -> _Typed:
        """Return what joins two values element by element; one may have a single element for each row."""
        shapes = a.kind.shape, b.kind.shape
        if all(shapes) and not _alike(*shapes):
            raise self._error(node, f"shapes {a.kind} and {b.kind} of a row do not fit each other")
        first, second = a.evaluate, b.evaluate
        wide = max(map(len, shapes))

        def evaluate(tensors: Mapping[str, Array]) -> Array:
            left, right = first(tensors), second(tensors)
            return join(_widened(left, wide), _widened(right, wide))

        return _Typed(Kind(False, shapes[0] or shapes[1]), evaluate)

    def _element(self, typed: _Typed, index: ast.expr) -> _Typed:
        """Return an element of each row, or a part of it: ``x[2]``, ``x[0, -1]``."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        places = []
        for axis, part in enumerate(parts):
            constant = self._typed(part).constant
            if not isinstance(constant, float) or not constant.is_integer():
                raise self._error(part, "an index has to be a whole number")
            if axis >= len(typed.kind.shape):
                raise self._error(part, f"a row of shape {typed.kind} has no axis {axis}")
            size, place = typed.kind.shape[axis], int(constant)
            if size is not None and not -size <= place < size:
                raise self._error(part, f"{place} is outside of axis {axis} of shape {typed.kind}")
            places.append(place)
        evaluate, missing = typed.evaluate, b"" if typed.kind.text else np.nan
        return _Typed(
            Kind(typed.kind.text, typed.kind.shape[len(places) :]),
            lambda tensors: _at(evaluate(tensors), places, missing),
        )

    def _called(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> _Typed:
        known = [*FUNCTIONS, "top"]
        if name not in known:
            raise self._error(node, f"there is no function {name!r}{did_you_mean(name, known, _KNOWN)}")
        wanted = 2 if name == "top" else 1
        if len(arguments) != wanted:
            raise self._error(
                node, f"{name}() takes {wanted} argument{'s' * (wanted > 1)}, not {len(arguments)}"
            )
        typed = self._number(arguments[0])
        if not typed.kind.shape:
            raise self._error(arguments[0], f"{name}() takes a tensor of a row, and this is a single value")
        function = self._top(arguments[1], typed.kind) if name == "top" else FUNCTIONS[name][1]
        evaluate, may_be_empty = typed.evaluate, name in _EMPTY

        def called(tensors: Mapping[str, Array]) -> Array:
            values = evaluate(tensors)
            return np.full(len(values), np.nan) if may_be_empty and not values[:1].size else function(values)

        return _Typed(Kind(False, typed.kind.shape if name in _SHAPED else ()), called)

    def _top(self, node: ast.expr, kind: Kind) -> Callable[[Array], Array]:
        constant = self._typed(node).constant
        if not isinstance(constant, float) or not constant.is_integer() or constant < 1:
            raise self._error(node, "top(x, k) takes a whole number of at least 1: 1 is the largest element")
        place = int(constant)
        most = None if None in kind.shape else int(np.prod([size or 0 for size in kind.shape]))
        if most is not None and place > most:
            raise self._error(node, f"a row of shape {kind} has no {place} elements")

        def top(values: Array) -> Array:
            flat = _flat(values)
            if flat.shape[1] < place:
                return np.full(len(flat), np.nan)
            return np.partition(flat, flat.shape[1] - place, axis=1)[:, flat.shape[1] - place]

        return top


def _numbers(values: Array) -> Array:
    """Return a tensor's elements as numbers that do not wrap; integers beyond 2**53 are rounded."""
    return values.astype(np.float64)


def _texts(values: Array) -> Array:
    """Return a tensor's texts as bytes, which end before their padding."""
    return values.astype(object) if values.dtype.kind == "S" else values


def _without_nan(compare: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a comparison that is false for NaN, ``!=`` too."""
    if compare is not np.not_equal:
        return compare
    return lambda a, b: np.not_equal(a, b) & np.equal(a, a) & np.equal(b, b)


def _alike(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def _widened(values: Array, axes: int) -> Array:
    """Return values with as many axes behind that of the rows."""
    return values.reshape(*values.shape, *(1,) * (axes + 1 - values.ndim))


def _at(values: Array, places: list[int], missing: object) -> Array:
    """Return an element of each row; where an open dimension is too short, ``missing``."""
    fits = all(-size <= place < size for size, place in zip(values.shape[1:], places, strict=False))
    if fits:
        index: tuple[Any, ...] = (slice(None), *places)
        return np.asarray(values[index])
    return np.full((len(values), *values.shape[1 + len(places) :]), missing)
