"""A floor under each model's share of answers: a model that is dropped too often rises in rank.

A policy that maximises the number of answers drops the models whose requests take longest, all of them; even
among models that are alike it drops the same ones repeatedly where clients retry at once. The floor prevents
that. With a share ``s`` of all requests answered it is ``1 - (1 - s) / fairness``: no model misses more than
``1 / fairness`` times as large a share of its requests as all models together do. Where many requests are
dropped this asks for little or nothing; then the floor is ``fairness * s``: no model's share of answers is
less than that part of the share of all.

Each model has a price: a missed request raises it and an answered one lowers it, so that both balance at the
floor (a subgradient step on the dual of "most answers, with a floor for each model"). The price boosts the
model's rank. It is 0 for a model above its floor, and for all models while nothing is dropped. The lower the
floor, the more misses come to one answer: steps up are smaller then and steps down larger, so that a price
settles within the same number of batches at any floor.

A low floor costs little, but asks for no answer to a model of few requests, whose price would come too late.
So a model that has missed requests since its last answer gets a *turn* as well: a boost that grows with that
time, to at most `TURN_BOOST`. Turns come to those who have waited longest, where that costs least: among
batches that are nearly as dense, or on devices that have nothing denser to run or to load.
"""

from __future__ import annotations

import math

from mainspring.cluster.models import Model
from mainspring.scheduler.policies.mainspring.constants import (
    ANSWERED_WEIGHT,
    HIGHEST_PRICE,
    LOWEST_FLOOR,
    PRICE_STEP,
    TURN_BOOST,
    TURN_WITHIN_NS,
    UNBOOSTED_PRICE,
)
from mainspring.scheduler.policies.notes import ModelNote, model_note


def floor_of(answered: float, fairness: float) -> float:
    """Return the least share of its requests that a model should have answered if all together have a share.

    Below 0 where nothing need be. ``fairness`` is greater than 0.
    """
    return max(1.0 - (1.0 - answered) / fairness, fairness * answered)


def set_boost(note: ModelNote) -> None:
    """Set a model's boost to what follows from its weight, its turn and its price."""
    note.boost = note.weight_nats + note.turn + max(0.0, note.price - UNBOOSTED_PRICE)


class Fairness:
    """Keeps the boosts of all models (`ModelNote.boost`)."""

    def __init__(self, fairness: float) -> None:
        """``fairness`` from 0, no floor, to 1, equal shares for all."""
        self._fairness = fairness
        self._answered = 1.0
        self._floor = 1.0 if fairness else 0.0
        self._up = self._down = 0.0
        self._update()

    @property
    def floor(self) -> float:
        """The share of its requests that every model should have answered."""
        return self._floor

    @property
    def dropped(self) -> float:
        """The share of all requests that were dropped lately."""
        return 1.0 - self._answered

    def answered(self, model: Model, requests: int) -> None:
        """Enter requests that were dispatched."""
        self._answered += (1.0 - self._answered) * min(1.0, ANSWERED_WEIGHT * requests)
        self._update()
        note = model_note(model)
        note.starved_ns = 0
        if note.turn or note.price:
            note.turn = 0.0
            note.price = max(0.0, note.price - self._down * requests)
            set_boost(note)

    def asked(self, now_ns: int, model: Model) -> None:
        """Boost a model that gets a request by the time for which it was starved."""
        note = model_note(model)
        if note.starved_ns:
            waited = (now_ns - note.starved_ns) / TURN_WITHIN_NS
            note.turn = TURN_BOOST * min(1.0, waited)
            set_boost(note)

    def starved(self, now_ns: int, model: Model) -> None:
        """Enter that a model was not answered, whatever the reason."""
        note = model_note(model)
        if self._fairness and not note.starved_ns:
            note.starved_ns = now_ns

    def missed(self, now_ns: int, model: Model) -> bool:
        """Enter a request that was dropped; return whether its model's boost rose."""
        self.starved(now_ns, model)
        self._answered -= self._answered * ANSWERED_WEIGHT
        self._update()
        note = model_note(model)
        before = note.boost
        note.price = min(HIGHEST_PRICE, note.price + self._up)
        set_boost(note)
        return note.boost > before

    def _update(self) -> None:
        """Set the floor, and the steps of prices that balance at it."""
        fairness, answered = self._fairness, self._answered
        if not fairness:
            return
        self._floor = floor = floor_of(answered, fairness)
        if floor < LOWEST_FLOOR:
            self._up = self._down = 0.0
            return
        missed_to_answered = (1.0 - floor) / floor
        self._up = PRICE_STEP if missed_to_answered < 1.0 else PRICE_STEP / math.sqrt(missed_to_answered)
        self._down = self._up * missed_to_answered
