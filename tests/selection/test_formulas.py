"""Policies against their papers' formulas in plain arithmetic, and against the regrets that these promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.selection.outputs import Output
from mainspring.selection.policies.exponential import Exponential
from mainspring.selection.policies.registry import make_selection_policy
from mainspring.selection.policy import Policy, Selected

MEMBERS = ("a", "b", "c", "d")
LOSSES = st.lists(st.tuples(*[st.floats(0, 1)] * len(MEMBERS)), min_size=1, max_size=60)
ETAS = st.floats(0.01, 2.0)


def make(name: str, **options: float) -> Policy:
    return make_selection_policy(name, MEMBERS, Output("scores"), options)


def exponential(name: str, eta: float) -> Exponential:
    found = make(name, eta=eta, floor=0.0)
    assert isinstance(found, Exponential)
    return found


def by_member(row: tuple[float, ...]) -> dict[str, list[float]]:
    return {member: [loss] for member, loss in zip(MEMBERS, row, strict=True)}


def shares_of(weights: dict[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {member: weight / total for member, weight in weights.items()}


@given(LOSSES, ETAS, st.integers(0, 1_000))
def test_exp3_is_the_papers(losses: list[tuple[float, ...]], eta: float, seed: int) -> None:
    """Clipper, section 5.1: s_i <- s_i exp(-eta L / p_i) of the selected one, drawn by p_i = s_i / sum s."""
    policy, weights = exponential("exp3", eta), dict.fromkeys(MEMBERS, 1.0)
    state, generator = policy.init(), np.random.default_rng(seed)
    for row in losses:
        ((member, probability),) = policy.select(state, {}, generator).items()
        assert probability == pytest.approx(shares_of(weights)[member], rel=1e-6)
        if probability < 1e-6:
            return  # One step of it leaves the range of plain products.
        loss = row[MEMBERS.index(member)]
        weights[member] *= math.exp(-eta * loss / probability)
        state = policy.learn(state, {member: [loss]}, {member: Selected(probability)})
        if min(weights.values()) < 1e-200:
            return
        assert policy.shares(state) == pytest.approx(shares_of(weights), rel=1e-6)


@given(LOSSES, ETAS)
def test_exp4_is_the_papers_and_loses_little_more_than_the_best(
    losses: list[tuple[float, ...]], eta: float
) -> None:
    """Section 5.2: s_i <- s_i exp(-eta L_i). What the weights lose is at most (eta L + ln k) / (1 - e^-eta),
    for any losses, with L those of the best of k members (Freund and Schapire, 1997, theorem 2)."""
    policy, weights, lost = exponential("exp4", eta), dict.fromkeys(MEMBERS, 1.0), 0.0
    state, selected = policy.init(), dict.fromkeys(MEMBERS, Selected(1.0))
    for row in losses:
        shares = policy.shares(state)
        lost += sum(shares[member] * loss for member, loss in zip(MEMBERS, row, strict=True))
        weights = {
            member: weights[member] * math.exp(-eta * loss) for member, loss in zip(MEMBERS, row, strict=True)
        }
        state = policy.learn(state, by_member(row), selected)
        assert policy.shares(state) == pytest.approx(shares_of(weights), rel=1e-9)
    best = min(sum(column) for column in zip(*losses, strict=True))
    assert lost <= (eta * best + math.log(len(MEMBERS))) / (1 - math.exp(-eta)) + 1e-9


@given(LOSSES, ETAS, st.floats(0.001, 0.1))
def test_no_share_falls_below_the_floor(losses: list[tuple[float, ...]], eta: float, floor: float) -> None:
    policy = make("exp4", eta=eta, floor=floor)
    assert isinstance(policy, Exponential)
    state, selected = policy.init(), dict.fromkeys(MEMBERS, Selected(1.0))
    for row in losses:
        state = policy.learn(state, by_member(row), selected)
    shares = policy.shares(state)
    assert min(shares.values()) >= min(floor, 1 / len(MEMBERS)) - 1e-12
    assert sum(shares.values()) == pytest.approx(1)


def regret(policy: Policy, means: tuple[float, ...], steps: int, seed: int) -> float:
    """Return what a policy's choices cost more than the best member's, on a stationary bandit."""
    generator, state, total = np.random.default_rng(seed), policy.init(), 0.0
    for _ in range(steps):
        ((member, probability),) = policy.select(state, {}, generator).items()
        mean = means[MEMBERS.index(member)]
        total += max(means) - mean
        loss = float(generator.random() >= mean)
        state = policy.learn(state, {member: [loss]}, {member: Selected(probability)})
    return total


@pytest.mark.parametrize("means", [(0.9, 0.6, 0.5, 0.3), (0.2, 0.5, 0.4, 0.1), (0.5, 0.5, 0.8, 0.8)])
@pytest.mark.parametrize("name", ["ucb1", "thompson", "epsilon_greedy"])
def test_regret_on_a_stationary_bandit_is_bounded(name: str, means: tuple[float, ...]) -> None:
    """UCB1's bound is theorem 1 of Auer, Cesa-Bianchi and Fischer (2002), which Thompson sampling stays far
    below; epsilon-greedy errs in its share of random choices, beside what it takes to know the best."""
    steps, gaps = 2_000, [max(means) - mean for mean in means if mean < max(means)]
    bound = 8 * sum(math.log(steps) / gap for gap in gaps) + (1 + math.pi**2 / 3) * sum(gaps)
    bounds = {
        "ucb1": bound,
        "thompson": bound / 4,
        "epsilon_greedy": 0.1 * steps * sum(gaps) / len(means) + 60,
    }
    found = float(np.mean([regret(make(name), means, steps, seed) for seed in range(4)]))
    assert found <= bounds[name]
    assert found < steps * sum(gaps) / len(means) / 2, "who draws any member loses twice as much"
