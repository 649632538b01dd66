"""Random numbers drawn many at a time: one from a numpy generator alone costs ten times as much."""

from __future__ import annotations

import numpy as np

DRAWS = 1024


class Draws:
    """Numbers from one seeded generator."""

    __slots__ = ("_normal", "_rng", "_uniform")

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        """Return a number drawn evenly from [0, 1)."""
        if not self._uniform:
            self._uniform = self._rng.random(DRAWS).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        """Return a number from the standard normal distribution."""
        if not self._normal:
            self._normal = self._rng.standard_normal(DRAWS).tolist()
        return self._normal.pop()
