"""A floor under each model's share of answers: who is dropped too often rises in rank until he is not.

Whoever maximises the number of answers drops the models whose requests take longest, all of them. Here no
model may miss more than ``1 / fairness`` times as large a share of its requests as all models together do:
with a share ``s`` of all requests answered, each model's floor is ``1 - (1 - s) / fairness``. Each floor
has a price: a request that the model misses raises it, one that is answered lowers it, so that at the floor
both balance (a subgradient step on the dual of "most answers, but everyone his floor"). The price boosts
the model's rank. It is 0 for whoever is above his floor, and nobody pays where nothing is dropped.
"""

from __future__ import annotations

from typing import Final

from mainspring.scheduler.mirror import Model

STEP: Final = 0.05
"""What a missed request adds to a price, in nats of density, times the floor."""
LEAST: Final = 0.25
"""Part of a price that is no boost: models that are alike are served alike only on average, and what comes of
chance is not to be answered."""
HIGHEST: Final = 4.0
"""Of prices: about as if a batch held 50 times as many requests. Models that no boost can save stay there."""
OVERALL_WEIGHT: Final = 0.002
"""Weight of one request in the share of all that are answered."""


class Floor:
    """Keeps the boosts of all models (`Model.boost`)."""

    def __init__(self, fairness: float) -> None:
        """``fairness`` from 0, no floor, to 1, equal shares for all."""
        self._fairness = fairness
        self._answered = 1.0
        self._floor = 1.0 if fairness else 0.0

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
        self._answered += (1.0 - self._answered) * min(1.0, OVERALL_WEIGHT * requests)
        self._update()
        if model.price:
            model.price = max(0.0, model.price - STEP * (1.0 - self._floor) * requests)
            model.boost = max(0.0, model.price - LEAST)

    def missed(self, model: Model) -> bool:
        """Enter a request that was dropped; return whether its model's boost rose."""
        self._answered -= self._answered * OVERALL_WEIGHT
        self._update()
        before = model.boost
        if self._floor > 0.0:
            model.price = min(HIGHEST, model.price + STEP * self._floor)
            model.boost = max(0.0, model.price - LEAST)
        return model.boost > before

    def _update(self) -> None:
        if self._fairness:
            self._floor = max(0.0, 1.0 - (1.0 - self._answered) / self._fairness)
