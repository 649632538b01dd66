"""The weights of all users for one table of items (Velox, sections 2.4 and 2.5). Pure.

Who is new is predicted with the mean of the others' weights, and by default learns as ridge regression
about it. Each user has a vector of weights; the matrices beside it, d times as large, are kept for those
used last. What was dropped, or learnt while another table served, is recomputed from the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from mainspring.selection.linear.history import History, Observations
from mainspring.selection.linear.weights import Matrix, Vector, Weights

Prior = Literal["mean", "zero"]
VECTOR_BYTES = 400
"""Bytes that a user takes beside the weights themselves."""
Features = Callable[[npt.NDArray[np.int64]], Matrix]
"""Function of numbers of items, ``(n,)``, to their features, ``(n, d)``."""


class Users:
    """The weights by user."""

    def __init__(
        self,
        rank: int,
        ridge: float,
        prior: Prior,
        most_bytes: int,
        history: History | None = None,
        features: Features | None = None,
    ) -> None:
        """``rank``: how many weights a user has, d. ``most_bytes``: of vectors, and the same of matrices.

        ``history`` and ``features``: what weights can be computed from; without them those of which the
        matrix was dropped go on as ridge regression about what they are.
        """
        self._ridge, self._prior, self._most_bytes = ridge, prior, most_bytes
        self._history, self._features = history, features
        self._vectors: OrderedDict[str, tuple[Vector, int]] = OrderedDict()
        """Weights, and the count of the history that they were made of."""
        self._most_users = max(1, most_bytes // (8 * rank + VECTOR_BYTES))
        self._matrices: OrderedDict[str, Weights] = OrderedDict()
        self._bytes = 0
        self._total = np.zeros(rank)
        self._start = np.zeros(rank)
        """The mean while nobody has weights."""
        self.mean: Vector = self._start
        """Never changed in place."""

    def __len__(self) -> int:
        return len(self._vectors)

    def names(self) -> list[str]:
        """Return who has weights."""
        return list(self._vectors)

    def restore(self, users: Observations, vectors: Matrix, mean: Vector) -> None:
        """Take the weights that these observations gave, ``(users, d)``, and the mean of a table's users."""
        self._start = self.mean = mean
        for user, vector, count in zip(users.users, vectors, users.counts, strict=True):
            self._keep(user, vector, count)

    def vector(self, user: str) -> Vector:
        """Return a user's weights, ``(d,)``; the mean of all for one who is new."""
        known = self._vectors.get(user)
        seen = 0 if self._history is None else self._history.count(user)
        if known is not None and known[1] == seen:
            return known[0]
        if known is None and not seen:
            return self.mean
        return self._weights(user).vector

    def inverse(self, user: str) -> Matrix | None:
        """Return A^-1 of a user, ``(d, d)``; None for one who is new, of whom it is 1 / ridge."""
        if self.vector(user) is self.mean:
            return None
        return self._weights(user).inverse()

    def observe(self, user: str, x: Vector, value: float) -> float:
        """Learn an observation, which is not in the history yet; return how much it was underestimated.

        ``x`` has the item's features, ``(d,)``.
        """
        predicted = float(self.vector(user) @ x)
        weights = self._weights(user)
        weights.update(x, value)
        seen = 0 if self._history is None else self._history.count(user) + 1
        self._keep(user, weights.vector, seen)
        return value - predicted

    def forget(self, user: str) -> bool:
        """Erase a user; return whether there was one. The mean is then that of the others."""
        matrix = self._matrices.pop(user, None)
        if matrix is not None:
            self._bytes -= matrix.nbytes
        known = self._vectors.pop(user, None)
        if known is not None:
            self._total -= known[0]
            self._average()
        return known is not None

    def idle(self) -> None:
        """Drop the matrices: another table serves."""
        self._matrices.clear()
        self._bytes = 0

    def _weights(self, user: str) -> Weights:
        """Return a user's matrices, recomputed where they were dropped or are not of all observations."""
        seen = 0 if self._history is None else self._history.count(user)
        known, found = self._vectors.get(user), self._matrices.get(user)
        if found is not None and (known is None or known[1] == seen):
            self._matrices.move_to_end(user)
            return found
        prior = self.mean if self._prior == "mean" else np.zeros_like(self.mean)
        if known is not None and not seen:
            prior = known[0]
        found = Weights(prior, self._ridge)
        if seen and self._history is not None and self._features is not None:
            items, values = self._history.of(user)
            found.fit(self._features(items), values)
            self._keep(user, found.vector, seen)
        old = self._matrices.pop(user, None)
        self._bytes += found.nbytes - (0 if old is None else old.nbytes)
        self._matrices[user] = found
        while self._bytes > self._most_bytes and len(self._matrices) > 1:
            self._bytes -= self._matrices.popitem(last=False)[1].nbytes
        return found

    def _keep(self, user: str, vector: Vector, seen: int) -> None:
        known = self._vectors.pop(user, None)
        self._total += vector if known is None else vector - known[0]
        self._vectors[user] = vector, seen
        while len(self._vectors) > self._most_users:
            silent = next(iter(self._vectors))
            self._total -= self._vectors.pop(silent)[0]
            if (gone := self._matrices.pop(silent, None)) is not None:
                self._bytes -= gone.nbytes
        self._average()

    def _average(self) -> None:
        count = len(self._vectors)
        self.mean = self._total / count if count else self._start

    def validate(self) -> None:
        """Raise AssertionError if bounds, bytes or the mean are not what the weights say."""
        assert self._bytes == sum(each.nbytes for each in self._matrices.values())
        assert self._matrices.keys() <= self._vectors.keys()
        assert len(self._vectors) <= self._most_users
        if self._vectors:
            mean = np.mean([vector for vector, _ in self._vectors.values()], axis=0)
            assert np.allclose(mean, self.mean, atol=1e-9 * (1 + np.abs(mean).max()))
