"""The table of items and all weights fitted again to what was observed (Velox, 2.2 and 2.4). Pure.

Alternating least squares: by turns the weights of each user, and the features of each item, are those
with the least squared error. A function of one's own takes what `als` takes and returns what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.messages.choices import imported
from mainspring.selection.linear.history import Observations
from mainspring.selection.linear.model import LinearModel, Version, table_fault
from mainspring.selection.linear.weights import Matrix, Vector

Retrain = Callable[[Matrix, Observations, float], Matrix]
"""Function of the table ``(items, d)``, what was observed, and the ridge, to another table of that shape."""
SWEEPS = 10


class Retrained(NamedTuple):
    """A version to be."""

    table: Matrix
    """``(items, d)``."""
    vectors: Matrix
    """``(users, d)``: the weights of those of the observations."""
    mean: Vector
    """``(d,)``."""


def als(table: Matrix, observed: Observations, ridge: float) -> Matrix:
    """Return the table after alternating least squares from this one on; what nobody observed stays."""
    start = np.array(table, np.float64)
    found = start.copy()
    by_user = list(observed.slices())
    order = np.argsort(observed.items, kind="stable")
    numbers, starts = np.unique(observed.items[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    owner = np.repeat(np.arange(len(by_user)), np.diff(observed.starts))
    for _ in range(SWEEPS):
        mean = solved(found, observed, ridge, np.zeros(found.shape[1])).mean(0)
        weights = solved(found, observed, ridge, mean)
        for number, begin, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            at = order[begin:end]
            found[number] = _ridge(weights[owner[at]], observed.values[at], ridge, start[number])
    return found


def solved(table: Matrix, observed: Observations, ridge: float, prior: Vector) -> Matrix:
    """Return the weights of each user about a prior, ``(users, d)`` (equation 2.2)."""
    found = np.empty((len(observed.users), table.shape[1]))
    for number, at in enumerate(observed.slices()):
        features = np.asarray(table[observed.items[at]], np.float64)
        found[number] = _ridge(features, observed.values[at], ridge, prior)
    return found


def _ridge(features: Matrix, values: Vector, ridge: float, prior: Vector) -> npt.NDArray[np.float64]:
    matrix = features.T @ features
    matrix.flat[:: len(matrix) + 1] += ridge
    return np.asarray(np.linalg.solve(matrix, features.T @ values + ridge * prior), np.float64)


def retraining(name: str) -> Retrain:
    """Return `als`, or what ``package.module:function`` names; raise ValueError if it can't be imported."""
    if name == "als":
        return als
    found = imported("retraining", name)
    if not callable(found):
        raise ValueError(f"retraining {name!r} is not a function of table, observations and ridge")
    return found  # type: ignore[no-any-return]


def retrained(name: str, table: Matrix, observed: Observations, ridge: float, *, zero: bool) -> Retrained:
    """Return the table that `retraining` fits, and all weights about their mean, or about 0.

    Raises ValueError if the table is not what it has to be.
    """
    found = np.asarray(retraining(name)(table, observed, ridge))
    if found.shape != table.shape:
        raise ValueError(f"retraining returned {found.shape}; the table has {table.shape}")
    if fault := table_fault(found):
        raise ValueError(f"retraining returned a table that can't be one: {fault}")
    vectors = solved(found, observed, ridge, np.zeros(table.shape[1]))
    if not zero and len(vectors):
        vectors = solved(found, observed, ridge, vectors.mean(0))
    mean = vectors.mean(0) if len(vectors) else np.zeros(table.shape[1])
    return Retrained(found.astype(table.dtype, copy=False), vectors, mean)


def prepared(model: LinearModel, observed: Observations, made: Retrained) -> Version:
    """Return the version that a retraining made of these observations, ready to serve.

    Whoever observed something meanwhile has weights with it, and who has cached scores has new ones.
    """
    version = model.make(model.made + 1, made.table)
    version.users.restore(observed, made.vectors, made.mean)
    for user in (*observed.users, *model.now.users.names()):
        version.users.vector(user)
    for user in model.now.scores.users():
        model.warm(version, user)
    return version
