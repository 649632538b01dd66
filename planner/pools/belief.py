"""The belief in how far each kind of device is off its profile, and so in what pools do.

The belief is a set of draws of factors on the kinds' durations, each with a weight. After an evaluation every
draw's weight is multiplied by how likely it makes the share in time that was found (Bayes); a quick estimator
says what a pool does under a draw. Few shares are needed for that: a kind that is slower than its profile is
so in every pool.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from mainspring.planner.estimate import Estimate, Estimator, Scales
from mainspring.planner.problem import Pool

Values = npt.NDArray[np.float64]
OFF = 0.07
"""Standard deviation of the logarithm of a kind's factor, before anything was measured."""
DRAWS = 256
SEED = 0x51
NOISE = 0.25
"""Standard deviation of a share that is missed, as a logarithm, by what factors do not explain: a window has
queries of its own, and the draws are few."""
LEAST_MISSED = 0.002
"""Added to a share that is missed before its logarithm is taken: shares below tell nothing apart."""
LIKELY = 1e-3
"""Draws of less than this part of the greatest weight count as none."""
LOAD_STEP = 0.02
"""Loads that stand for factors are rounded to this part, for estimators that can't take factors."""


class Belief:
    """Weighted draws of the kinds' factors, and what pools do under them."""

    def __init__(self, prior: Estimator, rates: Values) -> None:
        """``rates`` are how many queries one device of each kind serves in a time."""
        self._prior = prior
        self._rates = rates
        normal = np.random.default_rng(SEED).standard_normal((DRAWS // 2, len(rates)))
        # Each draw has its opposite, so that they are right on average.
        self._factors: Values = np.exp(OFF * np.concatenate([normal, -normal]))
        self._log_weights: Values = np.zeros(len(self._factors))
        self._known: dict[tuple[Pool, float, tuple[float, ...]], float] = {}

    def learn(self, estimate: Estimate, load: float = 1.0) -> None:
        """Learn from what a pool did at a multiple of the load that is planned for.

        Of a pool of which no query was counted nothing is learnt.
        """
        if not estimate.queries:
            return
        places = self._likely()
        shares = np.array([self._share(estimate.pool, load, self._factors[place]) for place in places])
        apart = (_missed(shares) - _missed(np.array([estimate.attainment]))) / NOISE
        log_weights = np.full(len(self._factors), -np.inf)
        log_weights[places] = self._log_weights[places] - 0.5 * apart * apart
        self._log_weights = log_weights - log_weights.max()

    def chance(self, pool: Pool, target: float) -> float:
        """Return how likely a pool is to hold."""
        places = self._likely()
        weights = np.exp(self._log_weights[places])
        shares = np.array([self._share(pool, 1.0, self._factors[place]) for place in places])
        # What a draw has at the target itself may be just above or just below it.
        apart = (_missed(np.array([target])) - _missed(shares)) / NOISE
        holds = np.array([NormalDist().cdf(2 * each) for each in apart])
        return float(weights @ holds / weights.sum())

    def expected(self, pool: Pool) -> float:
        """Return the share in time that is expected of a pool: that under the mean of the factors."""
        weights = np.exp(self._log_weights)
        mean = np.exp(weights @ np.log(self._factors) / weights.sum())
        return self._share(pool, 1.0, mean)

    def _likely(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._log_weights >= math.log(LIKELY))

    def _share(self, pool: Pool, load: float, factors: Values) -> float:
        """Return the share in time that a pool has under factors."""
        key = pool, load, tuple(factors.tolist())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimated(pool, load, factors)
        return found

    def _estimated(self, pool: Pool, load: float, factors: Values) -> float:
        if isinstance(self._prior, Scales):
            return self._prior.scaled(tuple(factors.tolist())).evaluate(pool, load=load).attainment
        # A pool of slower devices acts as one under more load.
        rates = np.array(pool) * self._rates
        slower = math.log(load) + math.log(float(rates.sum() / (rates / factors).sum()))
        rounded = math.exp(LOAD_STEP * round(slower / LOAD_STEP))
        key = pool, rounded, ()
        if key not in self._known:
            self._known[key] = self._prior.evaluate(pool, load=rounded).attainment
        return self._known[key]


def _missed(shares: Values) -> Values:
    """Return the logarithm of what is missed."""
    return np.asarray(np.log(1.0 - shares + LEAST_MISSED))
