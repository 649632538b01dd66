"""The facts about a tensor while the batch axis is followed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class NotProven(Exception):
    """Rows influence each other at this node, or nothing shows that they don't; the text follows its name."""


@dataclass(frozen=True)
class Batch:
    """A multiple of the number of rows: a dimension, or a number computed from dimensions.

    Arithmetic with it gives another multiple or a plain number; anything else is `NotProven`.
    """

    times: int = 1

    def __add__(self, other: Any) -> Any:
        """Add another multiple; a sum with a plain number is `NotProven`."""
        if isinstance(other, Batch):
            return _multiple(self.times + other.times)
        return self if other == 0 else _unfollowed()

    def __sub__(self, other: Any) -> Any:
        """Subtract."""
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        """Subtract from a plain number."""
        return self * -1 + other

    def __mul__(self, other: Any) -> Any:
        """Multiply by a plain number; the square of the number of rows is `NotProven`."""
        if isinstance(other, Batch):
            return _unfollowed()
        product = self.times * other
        return _multiple(int(product)) if product == int(product) else _unfollowed()

    def __floordiv__(self, other: Any) -> Any:
        """Divide without a remainder."""
        divisor = other.times if isinstance(other, Batch) else other
        if not divisor or self.times % divisor:
            return _unfollowed()
        return self.times // divisor if isinstance(other, Batch) else _multiple(int(self.times // divisor))

    def __rfloordiv__(self, other: Any) -> Any:
        """Divide a plain number by a multiple: zero stays zero."""
        return 0 if other == 0 else _unfollowed()

    __radd__ = __add__
    __rmul__ = __mul__
    __truediv__ = __floordiv__
    __rtruediv__ = __rfloordiv__


def _multiple(times: int) -> Batch | int:
    return Batch(times) if times else 0


def _unfollowed() -> Any:
    raise NotProven("computes with the number of rows what can't be followed")


Dim = int | Batch | None
"""A dimension; None if it is the same for every batch but unknown."""
Shape = tuple[Dim, ...]
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Constant:
    """A value that is the same for all inputs and any number of rows."""

    shape: Shape | None = None
    """None if even the rank is unknown."""
    array: Numbers | None = None
    """The value of a small constant."""


@dataclass(frozen=True)
class Counted:
    """A tensor of numbers that follow from the number of rows alone: shapes, and results of shapes."""

    items: Numbers
    """Elements are ``int`` and `Batch`; None for one that is the same for every batch but unknown."""


@dataclass(frozen=True)
class Rows:
    """Each slice along ``axis`` is a function of one row, the same function for every row and batch.

    The axis has ``outer * rows * inner`` slices: of row ``i`` those at ``(o * rows + i) * inner + j``.
    """

    shape: Shape
    axis: int = 0
    outer: int = 1
    inner: int = 1

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dim(self) -> Batch:
        """Size of the batch axis."""
        return Batch(self.outer * self.inner)

    def same_slices(self, other: Rows) -> bool:
        """Return whether slices of the same number belong to the same row in both."""
        return (self.outer, self.inner) == (other.outer, other.inner)


@dataclass(frozen=True)
class Numbered:
    """Numbers of rows: each element of slice ``i`` along ``axis``, which has one slice a row, is ``i``."""

    shape: Shape
    axis: int
    column: int | None = None
    """Column that has the numbers, if the last axis holds columns; the others follow from the row."""
    exact: bool = True
    """True if elements are as said; if not, they follow from the numbers, and only the shape is known."""


@dataclass(frozen=True)
class Padded:
    """Lists of tokens, the last axis: those of row ``i`` along the first axis, behind them padding.

    How much of that there is depends on all rows.
    """

    dims: Shape
    """Sizes of the axes before the last one; the first of them is the batch."""
    pad: str

    @property
    def texts(self) -> int | None:
        """The number of lists of a row; None if it is unknown."""
        return product(self.dims[1:])


@dataclass(frozen=True)
class Lost:
    """A value of which nothing is proven; the text names the first such node on the way and its reason."""

    reason: str


Value = Constant | Counted | Rows | Numbered | Padded | Lost


def rows_at(shape: Shape, axis: int, like: Rows) -> Rows:
    """Return a value of this shape whose slices along ``axis`` are arranged as those of ``like``."""
    dims = list(shape)
    dims[axis] = like.dim
    return Rows(tuple(dims), axis, like.outer, like.inner)


def counted(items: Any) -> Value:
    """Return numbers as a constant, or as `Counted` if one of them grows with the rows.

    None stands for a number that is the same for every batch but unknown.
    """
    array = np.asarray(items, dtype=object)
    if any(isinstance(item, Batch) for item in array.reshape(-1)):
        return Counted(array)
    if any(item is None for item in array.reshape(-1)):
        return Constant(array.shape)
    kinds = {type(item) for item in array.reshape(-1)}
    dtype = np.float64 if float in kinds else bool if kinds == {bool} else np.int64
    return Constant(array.shape, array.astype(dtype))


def product(shape: Shape) -> int | None:
    """Return the product of dimensions without the batch; None if one of them is unknown."""
    known = [dim for dim in shape if isinstance(dim, int)]
    return math.prod(known) if len(known) == len(shape) else None
