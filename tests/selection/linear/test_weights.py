"""One user's weights are ridge regression's, and their matrix and its inverse stay each other's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from mainspring.selection.linear.weights import MOST_DRIFT, Weights


def drift(weights: Weights) -> float:
    """Return the largest element of A A^-1 - I."""
    return float(np.abs(weights.matrix() @ weights.inverse() - np.eye(len(weights.vector))).max())


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(1, 12),
    count=st.integers(1, 40),
    ridge=st.floats(0.01, 100),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
    seed=st.integers(0, 1_000),
    at_once=st.booleans(),
)
def test_weights_are_those_of_ridge_regression_about_the_prior(
    d: int, count: int, ridge: float, scale: float, seed: int, at_once: bool
) -> None:
    generator = np.random.default_rng(seed)
    features, values = scale * generator.normal(size=(count, d)), generator.normal(size=count)
    prior = generator.normal(size=d)
    weights = Weights(prior, ridge)
    if at_once:
        weights.fit(features, values)
    else:
        for x, value in zip(features, values, strict=True):
            predicted = weights.vector @ x
            assert weights.update(x, value) == pytest.approx(value - predicted)
    # Ridge regression of what the prior leaves to explain.
    other = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(
        features, values - features @ prior
    )
    assert np.allclose(weights.vector, prior + other.coef_, rtol=1e-7, atol=1e-7)
    assert np.allclose(weights.matrix(), features.T @ features + ridge * np.eye(d))
    assert drift(weights) <= MOST_DRIFT
    assert weights.count == count


@pytest.mark.parametrize(("scale", "ridge", "least"), [(1.0, 1.0, 0), (30.0, 0.01, 1)])
def test_the_inverse_is_factored_anew_before_it_drifts(
    scale: float, ridge: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    factored = []
    whole = Weights.factor

    def factor(self: Weights) -> None:
        factored.append(self.count)
        whole(self)

    monkeypatch.setattr(Weights, "factor", factor)
    generator = np.random.default_rng(1)
    weights, worst = Weights(np.zeros(20), ridge), 0.0
    for _ in range(3_000):
        weights.update(scale * generator.normal(size=20), 1.0)
        worst = max(worst, drift(weights))
    assert worst <= MOST_DRIFT
    assert least <= len(factored) < 300
