"""Observations of users, from which their weights can be recomputed for another table. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Observations(NamedTuple):
    """Observations of several users, those of a user behind one another."""

    users: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    """``(users + 1,)``: where each user's begin, and the end."""
    items: npt.NDArray[np.int64]
    """``(n,)``: rows of the table."""
    values: npt.NDArray[np.float64]
    """``(n,)``."""
    counts: tuple[int, ...]
    """Observations that each user has had, with those that are not kept any more."""

    def slices(self) -> Iterator[slice]:
        """Yield where each user's observations are."""
        ends = self.starts.tolist()
        for begin, end in pairwise(ends):
            yield slice(begin, end)


class History:
    """Each user's newest observations, in order. Beyond a bound whoever was silent longest is dropped."""

    def __init__(self, most: int, most_of_user: int = 1_000) -> None:
        """``most``: observations that are kept; ``most_of_user``: the newest that each user keeps."""
        self._most_of_user = most_of_user
        self._most = most
        self._kept: OrderedDict[str, tuple[array[int], array[float]]] = OrderedDict()
        self._counts: dict[str, int] = {}
        self.total = 0
        """Observations that are kept."""

    def __contains__(self, user: str) -> bool:
        return user in self._kept

    def add(self, user: str, item: int, value: float) -> None:
        """Keep that a user found an item worth this."""
        kept = self._kept.get(user)
        if kept is None:
            kept = self._kept[user] = (array("q"), array("d"))
        kept[0].append(item)
        kept[1].append(value)
        self._kept.move_to_end(user)
        self._counts[user] = self._counts.get(user, 0) + 1
        self.total += 1
        if len(kept[0]) > self._most_of_user:
            # From the front of an array: as dear as they are many, which is little.
            del kept[0][0], kept[1][0]
            self.total -= 1
        while self.total > self._most and len(self._kept) > 1:
            silent, gone = self._kept.popitem(last=False)
            self.total -= len(gone[0])
            self._counts.pop(silent)

    def count(self, user: str) -> int:
        """Return how many observations a user has had; what is dropped counts no more."""
        return self._counts.get(user, 0)

    def of(self, user: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return a user's items and values, ``(n,)`` each."""
        items, values = self._kept.get(user, (array("q"), array("d")))
        # Copies: an array that is looked into can't grow.
        return np.array(items, np.int64), np.array(values, np.float64)

    def all(self) -> Observations:
        """Return everything that is kept, as it is now."""
        kept = list(self._kept.items())
        starts = np.zeros(len(kept) + 1, np.int64)
        np.cumsum([len(items) for _, (items, _) in kept], out=starts[1:])
        items = np.frombuffer(b"".join([each.tobytes() for _, (each, _) in kept]), np.int64)
        values = np.frombuffer(b"".join([each.tobytes() for _, (_, each) in kept]), np.float64)
        users = tuple([user for user, _ in kept])
        return Observations(users, starts, items, values, tuple([self._counts[user] for user in users]))

    def forget(self, user: str) -> bool:
        """Erase a user; return whether there was one."""
        gone = self._kept.pop(user, None)
        if gone is None:
            return False
        self.total -= len(gone[0])
        del self._counts[user]
        return True
