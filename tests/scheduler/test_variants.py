"""The choice of a member: in time, and so that all are served with the highest total score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.scheduler.variants import DEAREST, FREE, Offer, Prices, exchanges, price_of

MS = 1_000_000
SLO_NS = 100 * MS


def offer(model: str, score: float, row_ms: float, wait_ms: float = 0.0) -> Offer:
    return Offer(model, score, round((wait_ms + row_ms) * MS), row_ms * MS, round(wait_ms * MS))


def three(wait_ms: float) -> list[Offer]:
    return [offer("a", 0.80, 3, wait_ms), offer("b", 0.75, 1, wait_ms), offer("c", 0.71, 0.5, wait_ms)]


def chosen(offers: list[Offer], due_ms: float | None = 100) -> str:
    found = Prices().choose(0, offers, None if due_ms is None else round(due_ms * MS))
    return "" if found is None else found.offer.model


def test_the_best_member_is_chosen_while_little_waits() -> None:
    assert chosen(three(0)) == "a"
    assert chosen(three(100 * FREE)) == "a"


def test_the_more_waits_the_smaller_the_member() -> None:
    found = [chosen(three(wait)) for wait in range(0, 98)]
    assert found == sorted(found)
    assert set(found) == {"a", "b", "c"}
    assert found[round(100 * DEAREST)] == "c"


def test_a_member_that_would_be_late_is_not_chosen() -> None:
    assert chosen(three(0), 2) == "b"
    assert chosen(three(0), 0.7) == "c"
    assert chosen(three(0), 0.3) == ""


def test_without_a_deadline_the_best_member_is_chosen() -> None:
    assert chosen(three(10_000), None) == "a"
    assert chosen([], None) == ""


def test_a_member_that_is_slower_and_worse_than_another_is_chosen_only_where_no_other_is_in_time() -> None:
    offers = [offer("a", 0.8, 1, 50), offer("b", 0.75, 2, 50), offer("c", 0.7, 0.5, 50)]
    assert "b" not in {chosen([each._replace(wait_ns=wait * MS) for each in offers]) for wait in range(100)}
    assert chosen([offer("a", 0.8, 1, 99.5), offer("b", 0.75, 2, 0)]) == "b"


def test_a_family_that_loses_little_by_a_smaller_member_gives_way_before_one_that_loses_much() -> None:
    prices = Prices()
    much, little = (
        [offer("a", 0.9, 2, 35), offer("b", 0.3, 1, 35)],
        [offer("x", 0.9, 2, 35), offer("y", 0.85, 1, 35)],
    )
    prices.choose(0, much, SLO_NS)
    first, second = prices.choose(0, much, SLO_NS), prices.choose(0, little, SLO_NS)
    assert first is not None
    assert second is not None
    assert (first.offer.model, second.offer.model) == ("a", "y")
    assert first.price == second.price


def test_exchanges_are_the_slopes_of_the_hull() -> None:
    assert exchanges([(3, 0.80), (1, 0.75), (0.5, 0.71)]) == pytest.approx([0.025, 0.08])
    assert exchanges([(3, 0.80), (2, 0.71), (1, 0.75)]) == pytest.approx([0.025])
    assert exchanges([(1, 0.8)]) == []
    assert price_of(0, 100, 1.0) == 0.0
    assert price_of(90, 0, 1.0) > 1.0


@st.composite
def families(draw: st.DrawFn) -> tuple[list[float], list[float], float]:
    """Draw members' scores and times of a row in ms, best and slowest first, and a load."""
    count = draw(st.integers(2, 5))
    scores = sorted(draw(st.lists(st.floats(0.1, 1.0), min_size=count, max_size=count, unique=True)))[::-1]
    times = draw(st.lists(st.floats(0.2, 3.0), min_size=count, max_size=count))
    return scores, times, draw(st.floats(0.0, 0.97))


def best_mean(scores: list[float], times: list[float], gap_ms: float) -> float:
    """Return the highest mean score at which a row every so many ms can be served, by the linear program."""
    optimize = pytest.importorskip("scipy.optimize")
    found = optimize.linprog(
        -np.array(scores), A_ub=[times], b_ub=[gap_ms], A_eq=[[1.0] * len(times)], b_eq=[1.0], bounds=(0, 1)
    )
    return -float(found.fun)


@given(families())
@settings(max_examples=20, deadline=None)
def test_all_are_served_in_time_at_the_highest_total_score(
    family: tuple[list[float], list[float], float],
) -> None:
    """Play a device that serves one row after the other, in order, under lasting overload."""
    scores, times, load = family
    gap_ms = min(times) + (max(times) - min(times)) * (1 - load) + 0.03 * min(times)
    prices, busy_ns, total, count = Prices(), 0.0, 0.0, 1000
    for index in range(count):
        now_ns = round(index * gap_ms * MS)
        wait_ns = max(0.0, busy_ns - now_ns)
        offers = [
            Offer(f"{at}", score, round(now_ns + wait_ns + time * MS), time * MS, round(wait_ns))
            for at, (score, time) in enumerate(zip(scores, times, strict=True))
        ]
        found = prices.choose(now_ns, offers, now_ns + SLO_NS)
        assert found is not None, f"nothing in time with {wait_ns / MS:.1f} ms before it"
        busy_ns = max(busy_ns, now_ns) + found.offer.row_ns
        total += found.offer.score
    assert total / count >= 0.99 * best_mean(scores, times, gap_ms)
