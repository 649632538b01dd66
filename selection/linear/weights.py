"""One user's weights: ridge regression about a prior, one observation after another. Pure.

Equation 2.2 of Velox, (F^T F + r I)^-1 (F^T y + r prior), whose prior is 0 there. The inverse follows each
observation by the formula of Sherman and Morrison, in time quadratic in d; it is factored again before what
rounding has added up to passes `MOST_DRIFT`.

BLAS is SciPy's, which works on a triangle in place; it is imported with the first weights.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import cast

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
"""``(d,)``."""
Matrix = npt.NDArray[np.float64]

MOST_DRIFT = 1e-8
"""Largest element of A A^-1 - I, where Cholesky's decomposition is as good: features of 1,000 with a ridge of
0.001 are beyond double precision."""
_ROUNDING = 2e-14
"""Most that an update adds to the drift, for each unit of 1 + x^T A^-1 x: twice what was measured with
features of 1,000 and a ridge of 0.001."""


class Weights:
    """The weights of one user, ``(d,)``, with the matrix A = F^T F + r I and its inverse."""

    __slots__ = ("_drift", "_matrices", "_target", "count", "vector")

    def __init__(self, prior: Vector, ridge: float) -> None:
        """Begin with the prior, ``(d,)``; ``ridge`` above 0 is how many observations it counts for."""
        d = len(prior)
        self._matrices = np.zeros((d, d + 1), order="F")
        diagonal = np.arange(d)
        self._matrix[diagonal, diagonal] = ridge
        self._inverse[diagonal, diagonal] = 1 / ridge
        self._target = ridge * prior
        self.vector = prior.copy()
        """Never changed in place: who has it has what it was."""
        self.count = 0
        """Observations that it was made of."""
        self._drift = 0.0

    @property
    def _matrix(self) -> Matrix:
        """Return the view whose lower triangle is that of A; the diagonal is part of it."""
        return self._matrices[:, :-1]

    @property
    def _inverse(self) -> Matrix:
        """Return the view whose upper triangle is that of A^-1: the two have no element in common."""
        return self._matrices[:, 1:]

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self._matrices.nbytes + self._target.nbytes + self.vector.nbytes

    def fit(self, features: Matrix, values: Vector) -> None:
        """Take many observations at once, ``(n, d)`` and ``(n,)``, which were not taken before."""
        blas().dsyrk(1.0, features.T, beta=1.0, c=self._matrix, lower=1, overwrite_c=1)
        self._target += features.T @ values
        self.count += len(values)
        self.factor()

    def update(self, x: Vector, value: float) -> float:
        """Take an observation, ``(d,)``; return how much it was underestimated before."""
        inverse, known = self._inverse, blas()
        gain = known.dsymv(1.0, inverse, x)
        spread = float(x @ gain)
        scale = 1 / (1 + spread)
        error = value - float(x @ self.vector)
        known.dsyr(-scale, gain, a=inverse, overwrite_a=1)
        known.dsyr(1.0, x, a=self._matrix, lower=1, overwrite_a=1)
        self._target += value * x
        self.vector = self.vector + gain * (scale * error)
        self.count += 1
        self._drift += _ROUNDING * (1 + spread)
        if self._drift > MOST_DRIFT / 2:
            self.factor()
        return error

    def factor(self) -> None:
        """Compute the inverse and the weights from A, by Cholesky's decomposition."""
        known = lapack()
        factor, failed = known.dpotrf(self._matrix, lower=1)
        inverse, singular = known.dpotri(factor, lower=1)
        if failed or singular:
            raise ValueError("features are too large for their ridge: no double can hold their sum")
        upper = np.triu_indices(len(self.vector))
        self._inverse[upper] = inverse.T[upper]
        self.vector = blas().dsymv(1.0, self._inverse, self._target)
        self._drift = 0.0

    def inverse(self) -> Matrix:
        """Return A^-1, ``(d, d)``."""
        upper = np.triu(self._inverse)
        return upper + np.triu(upper, 1).T

    def matrix(self) -> Matrix:
        """Return A, ``(d, d)``."""
        lower = np.tril(self._matrix)
        return lower + np.tril(lower, -1).T


def spreads(features: Matrix, inverse: Matrix) -> Vector:
    """Return sqrt(x^T A^-1 x) of each row of ``(n, d)``, ``(n,)``, for an inverse ``(d, d)``."""
    squares = np.einsum("ij,ij->i", features @ inverse, features)
    return cast(Vector, np.sqrt(np.maximum(squares, 0.0)))


@cache
def blas() -> ModuleType:
    """Return SciPy's BLAS; raise ImportError where SciPy is not installed."""
    from scipy.linalg import blas as found

    return cast(ModuleType, found)


@cache
def lapack() -> ModuleType:
    """Return SciPy's LAPACK; raise as `blas`."""
    from scipy.linalg import lapack as found

    return cast(ModuleType, found)
