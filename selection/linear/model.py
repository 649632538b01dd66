"""A linear model for each user, in versions: predictions, observations, the best items. Pure.

A version (Velox, section 2.4) is a table of items with the weights that belong to it, and is switched as one.
Observations are kept beside the versions: one that serves again computes weights that lack some of them when
they are asked for.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

import msgspec
import numpy as np

from mainspring.selection.linear.history import History
from mainspring.selection.linear.ranking import Best, Items, Scores, best, scored
from mainspring.selection.linear.users import Prior, Users
from mainspring.selection.linear.weights import Matrix, Vector, spreads

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
    """Errors of one version: those before each update, by user, and of random items (Velox 2.4)."""

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


MOST_RANK = 1_024
MOST_FEATURE = 1e6
"""Largest feature, without its sign."""
MOST_ITEMS = 100_000
"""Items that one may ask the best of."""
MOST_VERSIONS = 4
"""Versions that are kept, the present one among them."""


class LinearOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the policy `linear`."""

    table: str = ""
    """File of features, a row for each item (.npy); empty: a member computes them."""
    ridge: float = 1.0
    """Weight of the prior, in observations of a feature of 1."""
    prior: Prior = "mean"
    """Weights that those of a user are drawn to: the users' mean, or 0."""
    alpha: float = 0.0
    """Weight of uncertainty where the best items are asked for (LinUCB); 0: they are the greedy ones."""
    random: float = 0.0
    """Share of answers with the best items in which the last one is drawn."""
    state_mib: int = 256
    """MiB of users' weights, and the same of their matrices."""
    cache_mib: int = 64
    """MiB of scores of all items."""
    most_observations: int = 1_000_000
    """Observations that are kept to recompute weights from."""
    most_of_user: int = 1_000
    """The newest of each user among them."""


def options_fault(options: LinearOptions) -> str | None:
    """Return what is wrong with options; None if nothing is."""
    for name in ("ridge", "most_observations", "most_of_user", "state_mib", "cache_mib"):
        if not 0 < getattr(options, name) < math.inf:
            return f"option {name} is {getattr(options, name):g}; it has to be above 0"
    if not 0 <= options.alpha < math.inf:
        return f"option alpha is {options.alpha:g}; it has to be a number from 0 on"
    if not 0 <= options.random <= 1:
        return f"option random is {options.random:g}; it has to be a share, from 0 to 1"
    return None


def table_fault(table: Matrix) -> str | None:
    """Return why an array can't be a table of items; None if it can. Reads all of it."""
    if table.ndim != 2 or table.dtype not in (np.float32, np.float64) or not len(table):
        return f"it has shape {table.shape} of {table.dtype}, and has to be (items, d) of float32 or float64"
    if not 1 <= table.shape[1] <= MOST_RANK:
        return f"its items have {table.shape[1]} features; they may have 1 to {MOST_RANK}"
    for begin in range(0, len(table), MOST_ITEMS):
        rows = (np.abs(table[begin : begin + MOST_ITEMS]) <= MOST_FEATURE).all(1)
        if not rows.all():
            return f"item {begin + int(rows.argmin())} has a feature that is NaN or beyond {MOST_FEATURE:g}"
    return None


class Version(NamedTuple):
    """A table of items, with all that belongs to it."""

    number: int
    table: Matrix | None
    """``(items, d)``; None where a member computes features."""
    users: Users
    scores: Scores
    quality: Quality


class LinearModel:
    """The weights of an application's users, in the version that serves and those before it."""

    def __init__(self, options: LinearOptions, table: Matrix | None, rank: int) -> None:
        """``table`` as of `Version`; ``rank`` is d. Raises ValueError if options or table can't be."""
        fault = options_fault(options) or (None if table is None else table_fault(table))
        if fault is None and not 1 <= rank <= MOST_RANK:
            fault = f"features have {rank} numbers; they may have 1 to {MOST_RANK}"
        if fault:
            raise ValueError(fault)
        self.options, self.rank = options, rank
        self.history = History(options.most_observations, options.most_of_user)
        self.versions = [self.make(1, table)]
        """The present one last."""
        self.made = 1
        """The highest number that a version has had."""

    @property
    def now(self) -> Version:
        """Return the version that serves."""
        return self.versions[-1]

    @property
    def items(self) -> int:
        """Return how many items there are; 0 where a member computes features."""
        return 0 if self.now.table is None else len(self.now.table)

    def make(self, number: int, table: Matrix | None) -> Version:
        """Return a version that nobody has weights of."""
        options = self.options
        users = Users(
            self.rank,
            options.ridge,
            options.prior,
            options.state_mib << 20,
            None if table is None else self.history,
            None if table is None else lambda items: np.asarray(table[items], np.float64),
        )
        return Version(number, table, users, Scores(options.cache_mib << 20), Quality())

    def features(self, items: Items) -> Matrix:
        """Return the features of items by number, ``(n, d)``; raise ValueError if there are not such."""
        self._check_items(items)
        assert self.now.table is not None
        return self.now.table[items]

    def _check_items(self, items: Items) -> None:
        table = self.now.table
        if table is None:
            raise ValueError("a member computes the features of this application: it has no table of items")
        if len(items) and not (items.min() >= 0 and items.max() < len(table)):
            wrong = int(items[(items < 0) | (items >= len(table))][0])
            raise ValueError(f"there is no item {wrong}: they are 0 to {len(table) - 1}")

    def predict(self, user: str, features: Matrix) -> tuple[Vector, Vector]:
        """Return prediction and uncertainty, sqrt(x^T A^-1 x), for each row of ``(n, d)``, ``(n,)`` each."""
        users, given = self.now.users, np.asarray(features, np.float64)
        self.check(given)
        inverse = users.inverse(user)
        if inverse is None:
            spread = np.sqrt(np.einsum("ij,ij->i", given, given) / self.options.ridge)
        else:
            spread = spreads(given, inverse)
        return given @ users.vector(user), spread

    def check(self, features: Matrix) -> None:
        """Raise ValueError if these can't be features of items."""
        if features.ndim != 2 or features.shape[1] != self.rank:
            raise ValueError(f"features have shape {features.shape}; weights are for (n, {self.rank})")
        if not (np.abs(features) <= MOST_FEATURE).all():
            raise ValueError(f"a feature is NaN or beyond {MOST_FEATURE:g}")

    def top_k(self, user: str, items: Items | None, k: int, generator: np.random.Generator) -> Best:
        """Return the k best of some items, by number, or of all. Raises ValueError if that can't be."""
        if k < 1:
            raise ValueError(f"k is {k}; it has to be at least 1")
        self._check_items(np.arange(0) if items is None else items[:MOST_ITEMS])
        asked = self.items if items is None else len(items)
        if not 1 <= asked <= MOST_ITEMS:
            raise ValueError(f"the best of {asked} items is asked for; it may be of 1 to {MOST_ITEMS}")
        scores = self._scores(user, items)
        places = best(scores, k)
        drawn = -1
        if self.options.random and generator.random() < self.options.random:
            drawn = len(places) - 1
            others = np.setdiff1d(np.arange(asked), places[:-1], assume_unique=True)
            places[-1] = others[generator.integers(len(others))]
        return Best(places if items is None else items[places], scores[places], drawn)

    def _scores(self, user: str, items: Items | None) -> Vector:
        """Return the score of each item that is asked for, from the cache if it has them."""
        version, options = self.now, self.options
        known = version.scores.find(user, version.users.vector(user))
        if known is not None:
            return known if items is None else known[items]
        if items is not None:
            return scored(self.features(items), version.users, user, options.alpha, options.ridge)
        return self.warm(version, user)

    def warm(self, version: Version, user: str) -> Vector:
        """Return a user's scores of all items in a version, ``(items,)``, and keep them in its cache."""
        assert version.table is not None
        scores = scored(version.table, version.users, user, self.options.alpha, self.options.ridge)
        version.scores.put(user, version.users.vector(user), scores)
        return scores

    def observe(self, user: str, x: Vector, value: float, item: int = -1, *, random: bool = False) -> float:
        """Learn what an item, ``(d,)``, was worth to a user; return how much it was underestimated before.

        ``item`` is its number in the table, if it has one; ``random``: it was drawn, not chosen.
        """
        version = self.now
        if not math.isfinite(value):
            raise ValueError(f"what is true is {value:g}; it has to be a number")
        error = version.users.observe(user, np.asarray(x, np.float64), value)
        if version.table is not None and item >= 0:
            self.history.add(user, item, value)
        version.quality.add(user, error, random=random)
        return error

    def forget(self, user: str) -> bool:
        """Erase a user in all versions; return whether there was one."""
        known = [self.history.forget(user)]
        for version in self.versions:
            known.append(version.users.forget(user))
            version.scores.forget(user)
            version.quality.forget(user)
        return any(known)

    def serve(self, version: Version) -> None:
        """Have a version serve from now on; the oldest beyond `MOST_VERSIONS` is dropped."""
        self.now.users.idle()
        self.made = max(self.made, version.number)
        self.versions = [*[each for each in self.versions if each is not version], version][-MOST_VERSIONS:]

    def rollback(self) -> int:
        """Have the version before serve again; return its number. Raises ValueError if there is none.

        Observations since then are part of it.
        """
        if len(self.versions) < 2:
            raise ValueError(
                f"version {self.now.number} is the only one that is kept: there is none before it"
            )
        self.versions.pop()
        return self.now.number
