"""Finds how an output's dimensions follow from the sizes of a model's symbols, and their buckets' ceilings.

A dimension is ``scale`` times a product of terms ``(times * size + plus) // over`` (`OpenDim` in
``messages/model.py``): what convolutions with strides, pooling, flattening, scaling up, padding and
concatenation give, also one after the other. Or it is a sum of such products: what is put behind something of
another size, or a token for the class before a flattened image. A form is taken if it holds at every size
that was tried, and at further ones for which it was not fitted. ``plus`` is found by bisection: by sizes at
which two candidates differ.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mainspring.messages.model import OpenDim, Product, Term

Sizes = tuple[int, ...]

Tried = Callable[[Sizes], Sequence[tuple[int, ...]] | None]
"""Returns the outputs' shapes at a size of each symbol; None if the model does not run there."""

_SEED = 20201104

_MOST_OVER = 4096
"""Largest divisor of a term: the product of the strides on a way through the model."""

_MOST_TIMES = 16
"""Largest factor beside a divisor, and largest divisor beside a factor: scaling by 3/2 and the like."""

_PARTS = 6
"""Parts that the sizes below others are divided into; a form is tried at each."""

_FURTHER = 3
"""Further sizes at which a form has to hold."""


class Range(NamedTuple):
    """The sizes of one symbol at which the model runs."""

    least: int
    base: int
    """A small one, at which the other symbols are varied."""
    limit: int
    step: int = 1
    """Sizes are ``base`` plus a multiple of this."""

    def at(self, index: int) -> int:
        """Return the size ``index`` steps beyond ``base``, or the nearest one in the range."""
        fewest, most = self.indices
        return self.base + min(max(index, fewest), most) * self.step

    def from_share(self, share: float) -> Range:
        """Return the range without the sizes below this part of the base, which is a new one above 1."""
        if share > 1:
            base = self.base + math.floor(self.base * (share - 1)) // self.step * self.step
            return self._replace(least=base, base=base)
        least = self.base - math.floor(self.base * (1 - share)) // self.step * self.step
        return self._replace(least=max(self.least, least))

    @property
    def indices(self) -> tuple[int, int]:
        """The indices of the least size and of the limit."""
        return -((self.base - self.least) // self.step), (self.limit - self.base) // self.step


def fit(tried: Tried, ranges: Sequence[Range]) -> list[tuple[OpenDim, ...] | int]:
    """Return the open dimensions of each output; for one that fits no form, the axis that does not.

    The model runs at the base, at the least and at the limits of all symbols.
    """
    found: list[tuple[OpenDim, ...] | int] = []
    base = tuple(each.base for each in ranges)
    shapes = tried(base)
    assert shapes is not None, "the base was tried before"
    for output, shape in enumerate(shapes):
        dims: list[OpenDim] = []
        for axis in range(len(shape)):
            found_axis = _Axis(tried, ranges, output, axis)
            dim = found_axis.dim() or found_axis.sum()
            if dim is None:
                found.append(axis)
                break
            dims += [dim] if dim.terms else []
        else:
            found.append(tuple(dims))
    return found


def at_smaller(
    forms: Sequence[tuple[OpenDim, ...]], tried: Tried, ranges: Sequence[Range], smaller: Sequence[Range]
) -> list[tuple[OpenDim, ...]] | None:
    """Return forms of ``ranges`` that hold in ``smaller`` ranges, too, where each dimension is no less than
    at their least sizes; None if they don't."""
    shapes = [(sizes, shape) for sizes in _below(ranges, smaller) if (shape := tried(sizes)) is not None]
    base = tried(tuple(each.base for each in ranges))
    assert base is not None, "the base was tried before"
    found: list[tuple[OpenDim, ...]] = []
    for output, form in enumerate(forms):
        if any(len(shape[output]) != len(base[output]) for _, shape in shapes):
            return None
        known = {dim.axis: dim for dim in form}
        kept: list[OpenDim] = []
        for axis, at_base in enumerate(base[output]):
            values = [(sizes, shape[output][axis]) for sizes, shape in shapes]
            dim = known.get(axis) or OpenDim(axis, (), at_base)
            if any(dim.of(sizes) != value for sizes, value in values):
                dim = msgspec.structs.replace(dim, least=values[0][1])
            if any(dim.of(sizes) != value for sizes, value in values):
                return None
            kept += [dim] if dim.terms else []
        found.append(tuple(kept))
    return found


def _below(ranges: Sequence[Range], smaller: Sequence[Range]) -> Iterator[Sizes]:
    """Yield the least of the ``smaller`` ranges, and sizes on the way to the others' least."""
    yield tuple(each.least for each in smaller)
    for index, (range_, whole) in enumerate(zip(ranges, smaller, strict=True)):
        steps = (range_.least - whole.least) // whole.step
        for share in range(_PARTS + 1):
            size = whole.least + max(0, steps - 1) * share // _PARTS * whole.step
            for others in (ranges, smaller):
                yield tuple(size if at == index else each.least for at, each in enumerate(others))


class _Axis:
    """One dimension of one output."""

    def __init__(
        self,
        tried: Tried,
        ranges: Sequence[Range],
        output: int,
        axis: int,
        symbols: Sequence[int] | None = None,
        less: int = 0,
    ) -> None:
        """Take off ``less`` from its value; only these ``symbols`` change, the others stay at their base."""
        self._symbols = range(len(ranges)) if symbols is None else symbols
        self._less = less
        self._tried = tried
        self._ranges = ranges
        self._output = output
        self._axis = axis
        self._base = tuple(each.base for each in ranges)
        self._random = random.Random(_SEED)

    def dim(self) -> OpenDim | None:
        """Return its form as one product, without terms if it is always the same; None if it has none."""
        at_base = self._value(self._base)
        if at_base is None:
            return None
        terms: list[Term] = []
        for symbol in self._symbols:
            samples = self._samples(symbol)
            if len({*samples.values()}) == 1:
                continue
            term = self._term(symbol, samples)
            if term is None:
                return None
            terms.append(term)
        product = math.prod(term.of(self._base) for term in terms)
        if not product or at_base % product:
            return None
        dim = OpenDim(self._axis, tuple(terms), at_base // product)
        return dim if self._holds(dim) else None

    def sum(self) -> OpenDim | None:
        """Return its form as a sum of products, each of symbols that multiply each other; None for none."""
        at_base = self._value(self._base)
        products: list[Product] = []
        for group in self._groups():
            less = self._constant(group)
            part = None if less is None else self._part(group, less).dim()
            if part is None or not part.terms:
                return None
            products.append(_plain(Product(part.terms, part.scale)))
        if at_base is None or not products:
            return None
        rest = at_base - sum([each.of(self._base) for each in products])
        others = [*products[1:], *([Product((), rest)] if rest else [])]
        dim = OpenDim(self._axis, products[0].terms, products[0].scale, tuple(others))
        return dim if self._holds(dim) else None

    def _part(self, group: Sequence[int], less: int) -> _Axis:
        return _Axis(self._tried, self._ranges, self._output, self._axis, group, less)

    def _groups(self) -> list[list[int]]:
        """Return the symbols that change it, those together of which one changes what another does."""
        groups = [[symbol] for symbol in self._symbols if len({*self._samples(symbol).values()}) > 1]
        for one, two in itertools.combinations([each[0] for each in groups], 2):
            first, second = (next(group for group in groups if each in group) for each in (one, two))
            values = self._square(one, two)
            if first is not second and values is not None and values[0] + values[3] != values[1] + values[2]:
                groups.remove(second)
                first += second
        return groups

    def _square(self, one: int, two: int) -> tuple[int, int, int, int] | None:
        """Return its values where neither, the one, the other and both of two symbols are larger."""
        sizes = []
        for larger in ((), (one,), (two,), (one, two)):
            doubled = [each.at(each.base // each.step) for each in self._ranges]
            at = zip(self._base, doubled, strict=True)
            sizes.append(tuple(more if k in larger else base for k, (base, more) in enumerate(at)))
        values = [value for each in sizes if (value := self._value(each)) is not None]
        return (values[0], values[1], values[2], values[3]) if len(values) == len(sizes) else None

    def _constant(self, group: Sequence[int]) -> int | None:
        """Return what is added to the product of a group; None if there is no such number."""
        if len(group) == 1:
            values = sorted({*self._samples(group[0]).values()})
            return values[0] % math.gcd(*[each - values[0] for each in values[1:]])
        for one, two in itertools.combinations(group, 2):
            neither, first, second, both = self._square(one, two) or (0, 0, 0, 0)
            # (neither - x) * (both - x) = (first - x) * (second - x)
            by = neither + both - first - second
            if by:
                found, left = divmod(neither * both - first * second, by)
                return None if left else found
        return None

    def _value(self, sizes: Sizes) -> int | None:
        shapes = self._tried(sizes)
        shape = () if shapes is None else shapes[self._output]
        return shape[self._axis] - self._less if self._axis < len(shape) else None

    def _alone(self, symbol: int, size: int) -> int | None:
        return self._value((*self._base[:symbol], size, *self._base[symbol + 1 :]))

    def _samples(self, symbol: int) -> dict[int, int]:
        """Return its values at some sizes of one symbol."""
        each = self._ranges[symbol]
        first, last = each.indices
        indices = (first, -3, -1, 0, 1, 2, 3, 5, 8, last // 2, last)
        values = {size: self._alone(symbol, size) for size in map(each.at, indices)}
        return {size: value for size, value in values.items() if value is not None}

    def _term(self, symbol: int, samples: dict[int, int]) -> Term | None:
        """Return a term of which the values are a multiple: the simplest with the largest factor."""
        whole = math.gcd(*samples.values())
        for factor in [each for each in range(whole, 0, -1) if whole % each == 0]:
            for times, over in _slopes({size: value // factor for size, value in samples.items()}):
                term = self._bisected(symbol, factor, times, over, samples)
                if term is not None:
                    return term
        return None

    def _bisected(
        self, symbol: int, factor: int, times: int, over: int, samples: dict[int, int]
    ) -> Term | None:
        """Return the term of this slope, if there is one; sizes that were tried on the way are added."""
        low, high = _pluses(times, over, factor, samples)
        while low < high:
            middle = (low + high + 1) // 2
            size = self._telling(symbol, Term(symbol, times, middle, over), 0, samples)
            value = None if size is None else self._alone(symbol, size)
            if size is None or value is None:
                break
            samples[size] = value
            low, high = _pluses(times, over, factor, samples)
        if low > high:
            return None
        term = Term(symbol, times, low, over)
        each = self._ranges[symbol]
        # Where the value changes far from the base, a slope that is almost right shows.
        for anchor in (each.indices[1] // 3, each.indices[1] // 2):
            size = self._telling(symbol, term, anchor, samples)
            for other in () if size is None else (size, max(size - each.step, each.least)):
                value = self._alone(symbol, other)
                if value is not None:
                    samples[other] = value
        held = all(factor * term.of((*self._base[:symbol], size)) == value for size, value in samples.items())
        return term if held else None

    def _telling(self, symbol: int, term: Term, anchor: int, samples: dict[int, int]) -> int | None:
        """Return a size, near an index, at which one less in ``plus`` changes the value, or None."""
        each = self._ranges[symbol]
        for index in range(term.over):
            for way in (anchor + index, anchor - index):
                size = each.at(way)
                if (term.times * size + term.plus) % term.over == 0 and size not in samples:
                    return size
        return None

    def _moved(self, sizes: Sizes) -> Sizes:
        """Return the base with these sizes of its own symbols."""
        return tuple(size if k in self._symbols else self._base[k] for k, size in enumerate(sizes))

    def _holds(self, dim: OpenDim) -> bool:
        """Return whether the form holds at the least sizes, at the limits, and at some others between."""
        corners = [tuple(each.least for each in self._ranges), tuple(each.limit for each in self._ranges)]
        others = [
            tuple(
                each.at(self._random.randint(each.indices[0], each.indices[1] // 4)) for each in self._ranges
            )
            for _ in range(_FURTHER if len(self._ranges) > 1 else 0)
        ]
        found = [(sizes, self._value(sizes)) for sizes in map(self._moved, (*corners, *others))]
        return all(value is None or dim.of(sizes) == value for sizes, value in found)


def _plain(product: Product) -> Product:
    """Return a product without what its one term adds at all sizes, for that belongs to the rest."""
    if len(product.terms) > 1:
        return product
    term = product.terms[0]
    return Product((msgspec.structs.replace(term, plus=term.plus % term.over),), product.scale)


def _pluses(times: int, over: int, factor: int, samples: dict[int, int]) -> tuple[int, int]:
    """Return the least and the largest ``plus`` that give these values."""
    first = [over * (value // factor) - times * size for size, value in samples.items()]
    return max(first), min(first) + over - 1


def _slopes(samples: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield each ``times`` and ``over`` that may give these values, the simplest first."""
    first, last = min(samples), max(samples)
    slope, error = (samples[last] - samples[first]) / (last - first), 1 / (last - first)

    def near(times: int, over: int) -> bool:
        low, high = _pluses(times, over, 1, samples)
        return abs(times / over - slope) <= error and low <= high

    for times in range(max(1, math.floor(slope)), math.ceil(slope) + 1):
        if near(times, 1):
            yield times, 1
    for over in range(2, _MOST_OVER + 1):
        if near(1, over):
            yield 1, over
    for over in range(2, _MOST_TIMES + 1):
        for times in range(2, _MOST_TIMES * over + 1):
            if math.gcd(times, over) == 1 and near(times, over):
                yield times, over


_SMALLEST_CEILING = 16
"""Sizes up to this are one bucket: they hardly differ in time."""

_LADDER_PARTS = (4, 2, 1)
"""Ceilings between a power of two and the next, the finest that the number of buckets allows."""


def ladder(sizes: Range, most: int) -> tuple[int, ...]:
    """Return at most ``most`` ceilings up to the limit: powers of two, and as many between as there is room.

    Each is a number of steps from the base.
    """
    for parts in _LADDER_PARTS:
        found = _ceilings(sizes, parts)
        if len(found) <= most:
            return found
    return found[-most:]


def short_ladder(sizes: Range, most: int) -> tuple[int, ...]:
    """Return at most ``most`` ceilings up to the limit, for what is compiled for each of them.

    They are powers of two, or of four, and so on: what is padded to one is at least that part of it.
    """
    found = _ceilings(sizes, _LADDER_PARTS[-1])
    return found[:: -math.ceil(len(found) / most)][::-1]


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
