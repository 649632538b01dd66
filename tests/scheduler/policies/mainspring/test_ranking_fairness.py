"""The floor under each model's share of answers."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.cluster.models import Model
from mainspring.scheduler.policies.mainspring.constants import HIGHEST_PRICE, TURN_BOOST, TURN_WITHIN_NS
from mainspring.scheduler.policies.mainspring.ranking import Fairness
from mainspring.scheduler.policies.notes import model_note
from tests.scheduler.hand import MS, spec

NOW_NS = 100 * MS


def test_nobody_is_boosted_without_fairness() -> None:
    floor, model = Fairness(0.0), Model(spec("m"), 1)
    for _ in range(1000):
        assert not floor.missed(NOW_NS, model)
    floor.starved(NOW_NS, model)
    floor.asked(NOW_NS + TURN_WITHIN_NS, model_note(model))
    assert model_note(model).boost == 0.0


def test_a_model_that_few_ask_for_gets_a_turn_once_it_has_missed_a_request_for_long() -> None:
    floor, rare = Fairness(0.05), Model(spec("rare"), 1)
    note = model_note(rare)
    floor.asked(NOW_NS, model_note(rare))
    assert not floor.missed(NOW_NS, rare), "a single miss asks for nothing by itself"
    floor.asked(NOW_NS + TURN_WITHIN_NS // 2, model_note(rare))
    assert note.boost == pytest.approx(TURN_BOOST / 2)
    floor.missed(NOW_NS + TURN_WITHIN_NS // 2, rare)
    floor.asked(NOW_NS + 3 * TURN_WITHIN_NS, model_note(rare))
    assert note.boost == pytest.approx(TURN_BOOST), "no more than that, however long it waits"
    floor.answered(rare, 1)
    assert note.boost == 0.0
    floor.asked(NOW_NS + 9 * TURN_WITHIN_NS, model_note(rare))
    assert note.boost == 0.0, "its last request was answered"


def test_a_model_that_is_refused_on_arrival_for_want_of_its_weights_waits_for_its_turn_too() -> None:
    floor, absent = Fairness(0.05), Model(spec("absent"), 1)
    floor.starved(NOW_NS, absent)
    floor.asked(NOW_NS + TURN_WITHIN_NS, model_note(absent))
    assert model_note(absent).boost == pytest.approx(TURN_BOOST)
    assert floor.dropped == 0.0


def test_a_model_that_misses_rises_and_falls_again_when_it_is_answered() -> None:
    floor, dropped, other = Fairness(0.5), Model(spec("dropped"), 1), Model(spec("other"), 2)
    for _ in range(20):
        floor.answered(other, 16)
        floor.missed(NOW_NS, dropped)
    risen = model_note(dropped).boost
    assert 0.0 < risen <= HIGHEST_PRICE
    assert model_note(other).boost == 0.0
    for _ in range(2000):
        floor.answered(dropped, 4)
    assert model_note(dropped).boost < risen / 2


def test_the_floor_follows_what_all_get() -> None:
    floor, model = Fairness(0.5), Model(spec("m"), 1)
    for number in range(20_000):
        if number % 5:
            floor.answered(model, 1)
        else:
            floor.missed(NOW_NS, model)
    assert floor.dropped == pytest.approx(0.2, abs=0.05)
    assert floor.floor == pytest.approx(1 - floor.dropped / 0.5)


def test_there_is_a_floor_however_much_is_dropped() -> None:
    """Where nine of ten are dropped, "twice as large a share" would ask for nothing."""
    floor, model = Fairness(0.5), Model(spec("m"), 1)
    for number in range(20_000):
        if number % 10:
            floor.missed(NOW_NS, model)
        else:
            floor.answered(model, 1)
    assert floor.dropped == pytest.approx(0.9, abs=0.05)
    assert floor.floor == pytest.approx(0.5 * (1 - floor.dropped))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.6])
def test_who_gets_nothing_rises_within_a_few_hundred_misses(share: float) -> None:
    floor, starved, other = Fairness(0.45), Model(spec("starved"), 1), Model(spec("other"), 2)
    rng = np.random.default_rng(1)
    for _ in range(5_000):
        if rng.random() < share:
            floor.answered(other, 1)
        else:
            floor.missed(NOW_NS, other)
    misses = 0
    while model_note(starved).boost < 1.0:
        floor.missed(NOW_NS, starved)
        floor.answered(other, 1)
        misses += 1
    assert misses < 600


@pytest.mark.parametrize("fairness", [0.4, 0.7, 1.0])
def test_whoever_is_served_only_when_boosted_ends_at_the_floor(fairness: float) -> None:
    """A model that is dropped whenever its boost is below 1 is answered about as often as the floor asks."""
    floor, cheap, dear = Fairness(fairness), Model(spec("cheap"), 1), Model(spec("dear"), 2)
    rng = np.random.default_rng(3)
    answered = 0
    for number in range(40_000):
        if rng.random() < 0.7:
            floor.answered(cheap, 1)
        else:
            floor.missed(NOW_NS, cheap)
        if model_note(dear).boost > 1.0:
            floor.answered(dear, 1)
            answered += number >= 20_000
        else:
            floor.missed(NOW_NS, dear)
    assert answered / 20_000 == pytest.approx(floor.floor, abs=0.06)
