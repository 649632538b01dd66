"""Ribbon's surrogate: a Gaussian process whose kernel rounds its inputs to whole devices (equation 3).

Needs scikit-learn, of the extra ``planner``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mainspring import extras
from mainspring.planner.errors import PlanError
from mainspring.planner.pools.space import Counts

Values = npt.NDArray[np.float64]
LENGTHS = (2.0, 20.0)
"""Bounds of the kernel's length for each kind, in devices. Pools that differ by one device do much the same
(Ribbon asks that of its objective), and a length beyond the bounds of the space says nothing."""
NOISE = 1e-6
"""Added to the variance of each evaluation, which is the same each time: for the arithmetic."""


class Surrogate:
    """Predicts what pools are worth by those that were evaluated."""

    def __init__(self, kinds: int, *, rounding: bool = True) -> None:
        """Raise `PlanError` where scikit-learn is missing."""
        try:
            self._process = _process(kinds, rounding)
        except ModuleNotFoundError as error:
            raise PlanError(
                f"--search ribbon needs the Python module {error.name}, which is not installed here: "
                f"{extras.command('planner')}"
            ) from None

    def fit(self, counts: Counts, values: Values) -> None:
        """Learn from evaluated pools, rows of counts, and what they are worth."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            # A length at its bound says that a kind hardly matters, which is no fault.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(counts, values)

    def predict(self, counts: npt.NDArray[Any]) -> tuple[Values, Values]:
        """Return mean and standard deviation of what pools are worth."""
        mean, deviation = self._process.predict(counts, return_std=True)
        return mean, deviation

    def improvement(self, counts: Counts, best: float) -> Values:
        """Return the expected improvement of pools over the best that was evaluated."""
        from scipy.special import ndtr

        mean, deviation = self.predict(counts)
        deviation = np.maximum(deviation, 1e-12)
        z = (mean - best) / deviation
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        found: Values = (mean - best) * ndtr(z) + deviation * density
        return found


def _process(kinds: int, rounding: bool) -> Any:
    """Return scikit-learn's regressor."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    class RoundedMatern(Matern):  # type: ignore[misc]
        """k'(x, y) = k(round(x), round(y))."""

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:  # noqa: N803
            return super().__call__(np.rint(X), None if Y is None else np.rint(Y), eval_gradient)

    kernel = RoundedMatern if rounding else Matern
    return GaussianProcessRegressor(
        kernel(length_scale=np.full(kinds, 3.0), length_scale_bounds=LENGTHS, nu=2.5),
        alpha=NOISE,
        normalize_y=True,
        random_state=0,
    )
