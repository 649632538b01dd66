"""Forms of dimensions, found from sizes at which a model was run: here functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainspring.compiler.sizes.forms import Range, Sizes, fit
from mainspring.messages.model import OpenDim, Product, Term

LENGTH = Range(1, 32, 512)
WIDE = Range(4000, 8192, 1 << 20)


def found(shape: Callable[..., tuple[int, ...]], *ranges: Range) -> tuple[OpenDim, ...] | int:
    """Fit the one output of a function, which may not be asked for other sizes than are in the ranges."""

    def tried(sizes: Sizes) -> list[tuple[int, ...]]:
        for size, each in zip(sizes, ranges, strict=True):
            assert each.least <= size <= each.limit
            assert (size - each.base) % each.step == 0
        return [shape(*sizes)]

    return fit(tried, ranges)[0]


@pytest.mark.parametrize(
    ("shape", "term", "scale"),
    [
        (lambda size: size, Term(0), 1),
        (lambda size: size + 1, Term(0, plus=1), 1),
        (lambda size: 2 * size, Term(0), 2),
        (lambda size: 2 * size + 1, Term(0, times=2, plus=1), 1),
        (lambda size: 3 * size // 2, Term(0, times=3, over=2), 1),
        (lambda size: 5 * ((size + 3) // 4), Term(0, plus=3, over=4), 5),
    ],
)
def test_a_dimension_follows_one_symbol(shape: Callable[[int], int], term: Term, scale: int) -> None:
    assert found(lambda size: (7, shape(size)), LENGTH) == (OpenDim(1, (term,), scale),)


def test_strides_one_after_the_other_are_one_division() -> None:
    dims = found(lambda size: (((size - 400) // 160 + 1 - 8) // 8,), WIDE)
    assert dims == (OpenDim(0, (Term(0, plus=-400 - 7 * 160, over=1280),)),)


def test_a_flattened_image_is_a_product() -> None:
    dims = found(lambda height, width: (12 * ((height + 1) // 2) * ((width + 3) // 4), 5), LENGTH, LENGTH)
    assert dims == (OpenDim(0, (Term(0, plus=1, over=2), Term(1, plus=3, over=4)), scale=12),)


@pytest.mark.parametrize(
    ("shape", "dim", "written"),
    [
        (lambda past, seq: past + seq, OpenDim(0, (Term(0),), others=(Product((Term(1),)),)), "past + seq"),
        (
            lambda past, seq: 2 * past + seq + 3,
            OpenDim(0, (Term(0),), 2, (Product((Term(1),)), Product((), 3))),
            "2 * past + seq + 3",
        ),
        (
            lambda height, width: height * width + 1,
            OpenDim(0, (Term(0), Term(1)), others=(Product((), 1),)),
            "past * seq + 1",
        ),
        (
            lambda height, width: (height // 16) * ((width + 15) // 16) + 2,
            OpenDim(0, (Term(0, over=16), Term(1, plus=15, over=16)), others=(Product((), 2),)),
            "(past // 16) * ((seq + 15) // 16) + 2",
        ),
        (
            lambda length, seq: 5 * (length // 16) + seq // 4,
            OpenDim(0, (Term(0, over=16),), 5, (Product((Term(1, over=4),)),)),
            "5 * (past // 16) + (seq // 4)",
        ),
    ],
)
def test_a_dimension_may_be_a_sum(shape: Callable[[int, int], int], dim: OpenDim, written: str) -> None:
    images = Range(16, 64, 1024)
    assert found(lambda one, two: (shape(one, two),), images, images) == (dim,)
    assert dim.written(["past", "seq"]) == written


def test_of_three_symbols_those_that_multiply_are_found() -> None:
    few = Range(1, 32, 128)
    dims = found(lambda height, seq, width: (height * width + seq + 1,), few, few, few)
    assert dims == (OpenDim(0, (Term(0), Term(2)), others=(Product((Term(1),)), Product((), 1))),)


def test_one_symbol_may_have_more_than_a_factor() -> None:
    assert found(lambda size: (3 * (size // 16) + 1,), Range(16, 64, 1024)) == (
        OpenDim(0, (Term(0, over=16),), 3, (Product((), 1),)),
    )


def test_steps_are_kept_to() -> None:
    tiled = Range(32, 64, 1024, 32)
    dims = found(lambda height, width: (height * width * 21 // 1024,), tiled, tiled)
    assert not isinstance(dims, int)
    assert [dim.of((96, 160)) for dim in dims] == [3 * 5 * 21]


def test_fixed_dimensions_have_no_form() -> None:
    assert found(lambda _: (3, 4), LENGTH) == ()


@pytest.mark.parametrize(
    "shape", [lambda one, two: (max(one, two),), lambda one, two: (one**2 + two,), lambda one, _: (one**2,)]
)
def test_what_fits_no_form_is_said_by_its_axis(shape: Callable[[int, int], tuple[int, ...]]) -> None:
    assert found(lambda one, two: (3, *shape(one, two)), LENGTH, LENGTH) == 1
