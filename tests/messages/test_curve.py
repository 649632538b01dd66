"""How durations follow sizes between the ceilings that were profiled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.curve import Curve
from mainspring.messages.model import ModelSpec, Profile, Symbol, bucket_name

Ladders = tuple[tuple[int, ...], ...]


def curve(
    ladders: Ladders, durations: list[int], batch_sizes: tuple[int, ...] = (1,), *, at_ceilings: bool = False
) -> Curve:
    """Return a curve through durations of the buckets, the last symbol's ceilings first."""
    names = [bucket_name(ceilings) for ceilings in itertools.product(*ladders)]
    shaped = {name: dict.fromkeys(batch_sizes, ns) for name, ns in zip(names, durations, strict=True)}
    profile = Profile(dict.fromkeys(batch_sizes, durations[-1]), 0, shaped)
    symbols = tuple([Symbol(f"s{index}", ladder) for index, ladder in enumerate(ladders)])
    tensors = (), (), ()
    spec = ModelSpec(
        *("m", "", "", batch_sizes, 0, *tensors, {"cpu": profile}), symbols=symbols, at_ceilings=at_ceilings
    )
    return Curve(spec, profile)


@st.composite
def noisy(draw: st.DrawFn) -> tuple[Ladders, list[int]]:
    """Draw ladders of one or two symbols, and durations that follow no order at all."""
    ladder = st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)
    ladders = tuple(draw(st.lists(ladder, min_size=1, max_size=2)))
    count = len(list(itertools.product(*ladders)))
    return ladders, draw(st.lists(st.integers(0, 10**10), min_size=count, max_size=count))


def ceilings_of(ladders: Ladders, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([min(c for c in ladder if c >= size) for ladder, size in zip(ladders, sizes, strict=True)])


@given(noisy(), st.data())
def test_a_part_is_never_above_its_ceiling_nor_far_below(
    made: tuple[Ladders, list[int]], data: st.DataObject
) -> None:
    ladders, durations = made
    found = curve(ladders, durations)
    sizes = tuple([data.draw(st.integers(1, ladder[-1])) for ladder in ladders])
    part, whole = found.share(1, sizes)
    assert 1 <= part <= whole
    ratio = 1.0
    for size, ceiling in zip(sizes, ceilings_of(ladders, sizes), strict=True):
        ratio *= size / ceiling
    assert part >= ratio**2 * whole * (1 - 1e-9)


@given(noisy(), st.data())
def test_what_runs_at_ceilings_takes_what_was_measured_there(
    made: tuple[Ladders, list[int]], data: st.DataObject
) -> None:
    ladders, durations = made
    found = curve(ladders, durations, at_ceilings=True)
    sizes = tuple([data.draw(st.integers(1, ladder[-1])) for ladder in ladders])
    places = list(itertools.product(*ladders)).index(ceilings_of(ladders, sizes))
    assert found.share(1, sizes) == (max(1, durations[places]),) * 2


@given(noisy(), st.data())
def test_a_larger_size_of_a_bucket_is_never_a_smaller_part(
    made: tuple[Ladders, list[int]], data: st.DataObject
) -> None:
    ladders, durations = made
    found = curve(ladders, durations)
    sizes = tuple([data.draw(st.integers(1, ladder[-1])) for ladder in ladders])
    ceilings = ceilings_of(ladders, sizes)
    larger = tuple([data.draw(st.integers(*ends)) for ends in zip(sizes, ceilings, strict=True)])
    assert found.share(1, sizes)[0] <= found.share(1, larger)[0]
    assert found.share(1, sizes)[1] == found.share(1, larger)[1]


@given(noisy())
def test_at_its_ceilings_a_bucket_takes_all(made: tuple[Ladders, list[int]]) -> None:
    found = curve(*made)
    for ceilings in itertools.product(*made[0]):
        part, whole = found.share(1, ceilings)
        assert part == whole


@pytest.mark.parametrize(
    ("size", "part"), [(16, 1_000), (24, 1_200), (32, 1_400), (40, 1_700), (8, 800), (4, 700), (1, 625)]
)
def test_between_ceilings_and_below_the_first_the_line_goes_on(size: int, part: int) -> None:
    assert curve(((16, 32, 64),), [1_000, 1_400, 2_600]).share(1, (size,))[0] == part


def test_two_symbols_are_interpolated_one_after_the_other() -> None:
    found = curve(((10, 20), (100, 200)), [1_000, 1_500, 2_000, 2_600])
    assert found.share(1, (15, 150)) == (1_775, 2_600)
    assert found.share(1, (20, 150)) == (2_300, 2_600)


def test_a_ceiling_that_was_measured_too_fast_makes_nothing_near_it_a_small_part() -> None:
    found = curve(((16, 32, 64, 128),), [1_000, 1_400, 10, 3_800])
    assert found.share(1, (64,)) == (1_400, 1_400)
    part, whole = found.share(1, (65,))
    assert part * 128 >= whole * 65


@pytest.mark.parametrize(("last", "power"), [(3_900, 1), (17_000, 2)], ids=["slower", "as attention"])
def test_nothing_grows_faster_in_a_bucket_than_its_model_does(last: int, power: int) -> None:
    part, whole = curve(((16, 64),), [1_000, last]).share(1, (32,))
    assert part * 64**power >= whole * 32**power
    step = curve(((16, 32, 64),), [1_000, 1_000, last]).share(1, (33,))[0]
    assert step == max(-(-last * 33**power // 64**power), 1_000 + (last - 1_000) // 32)


def test_a_single_bucket_and_what_was_not_profiled_follow_no_size() -> None:
    assert curve(((64,),), [500]).share(1, (3,)) == (500, 500)
    assert curve(((16, 64),), [500, 900]).share(4, (3,)) == (1, 1)
    spec = ModelSpec("m", "", "", (1,), 0, (), (), (), {}, symbols=(Symbol("s", (16, 64)),))
    assert Curve(spec, Profile({1: 700}, 0)).share(1, (20,)) == (700, 700)
