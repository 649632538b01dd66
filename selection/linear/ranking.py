"""The best of many items for one user, exactly (Velox, sections 2.3 and 2.5). Pure.

Greedy, an item's score is w.x. With LinUCB (Li and others, 2010, algorithm 1) it is w.x + alpha
sqrt(x^T A^-1 x), the most that it may be worth: what little is known of is tried.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.selection.linear.users import Users
from mainspring.selection.linear.weights import Matrix, Vector, spreads

Items = npt.NDArray[np.int64]
BLOCK = 2_048
"""Items whose uncertainty is computed at once: their products stay in the processor's cache."""


class Best(NamedTuple):
    """The best items, the best first."""

    items: Items
    """``(k,)``, or as many as there are."""
    scores: Vector
    """``(k,)``."""
    random: int = -1
    """The place of an item that was drawn, whatever its score; -1 if none was."""


def best(scores: Vector, k: int) -> Items:
    """Return the places of the k highest scores, the highest first; of equal ones, the first."""
    k = min(k, len(scores))
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        found = np.flatnonzero(scores >= least)
    else:
        found = np.arange(len(scores))
    return found[np.argsort(-scores[found], kind="stable")][:k]


def scored(features: Matrix, users: Users, user: str, alpha: float, ridge: float) -> Vector:
    """Return the score of each row of ``(n, d)`` for a user, ``(n,)``; ``ridge`` as of the users."""
    vector = users.vector(user).astype(features.dtype, copy=False)
    scores = (features @ vector).astype(np.float64, copy=False)
    if not alpha:
        return scores
    inverse = users.inverse(user)
    for begin in range(0, len(features), BLOCK):
        block = np.asarray(features[begin : begin + BLOCK], np.float64)
        if inverse is None:
            spread = np.sqrt(np.einsum("ij,ij->i", block, block) / ridge)
        else:
            spread = spreads(block, inverse)
        scores[begin : begin + BLOCK] += alpha * spread
    return scores


class Scores:
    """The scores of all items for the users who asked last, as long as their weights are what they were."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[Vector, Vector]] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = 0

    def find(self, user: str, vector: Vector) -> Vector | None:
        """Return the scores that these very weights of a user gave; None if they are not kept."""
        kept = self._kept.get(user)
        if kept is None or kept[0] is not vector:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(user)
        return kept[1]

    def put(self, user: str, vector: Vector, scores: Vector) -> None:
        """Keep the scores of all items, ``(n,)``, that these weights gave."""
        self.forget(user)
        self._kept[user] = vector, scores
        self._bytes += scores.nbytes
        while self._bytes > self._most_bytes and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1][1].nbytes

    def users(self) -> list[str]:
        """Return whose scores are kept, who asked least recently first."""
        return list(self._kept)

    def forget(self, user: str) -> None:
        """Drop a user's scores."""
        kept = self._kept.pop(user, None)
        if kept is not None:
            self._bytes -= kept[1].nbytes
