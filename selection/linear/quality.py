"""Errors of a version: those before each update, by user, and of random items (Velox 2.4). Pure."""

from __future__ import annotations

import math
from collections import OrderedDict

MOST_USERS = 100_000
"""Users whose errors are kept by user."""


class Errors:
    """Squared errors: of all, and a running mean of those of late."""

    __slots__ = ("_window", "count", "recent", "squares")

    def __init__(self, window: int) -> None:
        """``window``: after so many more an error counts e times less in the running mean."""
        self._window = window
        self.count = 0
        self.squares = 0.0
        self.recent = 0.0
        """Mean squared error of late."""

    def add(self, error: float) -> None:
        """Take one error."""
        square = error * error
        self.count += 1
        self.squares += square
        self.recent += (square - self.recent) / min(self.count, self._window)

    @property
    def rmse(self) -> float:
        """Return the root of the mean squared error of all; 0 without any."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def recent_rmse(self) -> float:
        """Return that of late."""
        return math.sqrt(self.recent)


class Quality:
    """The errors of one version of the items' features."""

    def __init__(self, window: int = 1_000) -> None:
        """``window`` as of `Errors`."""
        self.before = Errors(window)
        """Errors of predictions before the observation was learnt from."""
        self.random = Errors(window)
        """Errors among them of items that were drawn: the model had no part in which these are."""
        self._users: OrderedDict[str, Errors] = OrderedDict()
        self._window = window

    def add(self, user: str, error: float, *, random: bool) -> None:
        """Take the error of a user's observation."""
        self.before.add(error)
        if random:
            self.random.add(error)
        own = self._users.pop(user, None) or Errors(self._window)
        own.add(error)
        self._users[user] = own
        if len(self._users) > MOST_USERS:
            self._users.popitem(last=False)

    def of(self, user: str) -> Errors:
        """Return a user's errors."""
        return self._users.get(user) or Errors(self._window)

    def worse_than(self, rmse: float, least: int) -> bool:
        """Say whether errors of late, of all or of random items, pass a bound, each over at least so many."""
        return any(each.count >= least and each.recent_rmse > rmse for each in (self.before, self.random))

    def forget(self, user: str) -> None:
        """Erase a user's errors."""
        self._users.pop(user, None)
