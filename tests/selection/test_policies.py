"""Policies against the paper's formulas, and against what bandits are for."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mainspring.selection.outputs import Output
from mainspring.selection.policies.registry import make_selection_policy, selection_policy_names
from mainspring.selection.policy import Policy, Selected, State

MEMBERS = ("a", "b", "c")
ALL = ("exp4", "majority")


def make(name: str, members: tuple[str, ...] = MEMBERS, **options: object) -> Policy:
    return make_selection_policy(name, members, Output("scores"), options)


def one_hot(*labels: int, classes: int = 3) -> np.ndarray:
    return np.eye(classes)[list(labels)]


def play(policy: Policy, errors: dict[str, float], steps: int, seed: int = 0) -> tuple[State, Counter[str]]:
    """Ask and answer in turn, members being wrong so often; return the state and who was asked."""
    generator = np.random.default_rng(seed)
    state, asked = policy.init(), Counter[str]()
    for _ in range(steps):
        chosen = policy.select(state, {}, generator)
        asked.update(chosen)
        selected = {
            member: Selected(chance, one_hot(int(generator.random() < errors[member])))
            for member, chance in chosen.items()
        }
        state = policy.observe(state, {}, np.array([0]), selected)
    return state, asked


def test_exp3_lowers_the_selected_weight_by_its_loss_over_its_probability() -> None:
    policy = make("exp3", eta=0.3, floor=0.0)
    selected = {"b": Selected(0.25, one_hot(1, 0))}
    state = policy.observe(policy.init(), {}, np.array([0, 0]), selected)
    assert state == {"a": (0.0,), "b": (pytest.approx(-0.3 * 1 / 0.25),), "c": (0.0,)}
    total = 2 + math.exp(-1.2)
    shares = {policy.select(state, {}, np.random.default_rng(seed)).popitem() for seed in range(50)}
    assert {(name, round(share, 9)) for name, share in shares} == {
        ("a", round(1 / total, 9)), ("c", round(1 / total, 9)), ("b", round(math.exp(-1.2) / total, 9)),
    }  # fmt: skip


def test_exp4_lowers_each_weight_by_its_own_loss_and_averages_by_weight() -> None:
    policy = make("exp4", eta=0.5, floor=0.0)
    selected = {"a": Selected(1, one_hot(0)), "b": Selected(1, one_hot(1)), "c": Selected(1, one_hot(1))}
    state = policy.observe(policy.init(), {}, np.array([0]), selected)
    assert state == {"a": (0.0,), "b": (-0.5,), "c": (-0.5,)}
    answer = policy.combine(state, {}, selected)
    weight = math.exp(-0.5)
    assert answer.scores is not None
    assert answer.scores[0] == pytest.approx([1 / (1 + 2 * weight), 2 * weight / (1 + 2 * weight), 0])
    assert answer.prediction.tolist() == [1]
    assert answer.confidence.tolist() == pytest.approx([2 / 3])


def test_weights_of_a_million_losses_are_numbers() -> None:
    for name in ("exp3", "exp4"):
        policy = make(name, eta=1.0, floor=0.0)
        state = policy.init()
        for _ in range(20):
            losses = {"a": [1.0] * 50_000} if name == "exp3" else {"a": [1.0] * 50_000, "b": [0.5] * 50_000}
            state = policy.learn(state, losses, {"a": Selected(0.5), "b": Selected(1)})
        shares = [policy.select(state, {}, np.random.default_rng(seed)) for seed in range(20)]
        assert all(math.isfinite(chance) for each in shares for chance in each.values())
        assert not any("a" in each for each in shares) or name == "exp4"


@pytest.mark.parametrize("name", ["exp3", "epsilon_greedy", "ucb1", "thompson"])
def test_who_asks_one_finds_the_best(name: str) -> None:
    _, asked = play(make(name), {"a": 0.6, "b": 0.2, "c": 0.6}, 4_000)
    assert asked["b"] > 0.7 * 4_000


@pytest.mark.parametrize("name", ["exp3", "exp4"])
def test_with_a_floor_a_member_that_recovers_is_found_soon(name: str) -> None:
    policy = make(name, eta=0.1, floor=0.01)
    state, _ = play(policy, {"a": 0.0, "b": 0.5, "c": 0.5}, 500)
    for failing in (True, False):
        generator = np.random.default_rng(7)
        for _ in range(3_000):
            chosen = policy.select(state, {}, generator)
            wrong = {"a": 1.0 if failing else 0.0, "b": 0.5, "c": 0.5}
            losses = {member: [float(generator.random() < wrong[member])] for member in chosen}
            state = policy.learn(state, losses, {member: Selected(each) for member, each in chosen.items()})
        weights = policy.weights(state, dict.fromkeys(MEMBERS, Selected(1)))
        if name == "exp4":
            assert (weights["a"] < 0.05) == failing
    if name == "exp3":
        chosen_last = Counter(next(iter(policy.select(state, {}, generator))) for _ in range(200))
        assert chosen_last["a"] > 150


def test_ucb1_tries_each_then_the_highest_bound() -> None:
    policy = make("ucb1")
    state = {"a": (10.0, 9.0), "b": (10.0, 1.0), "c": (0.0, 0.0)}
    assert policy.select(state, {}, np.random.default_rng(0)) == {"c": 1.0}
    state = {"a": (90.0, 81.0), "b": (2.0, 1.0), "c": (90.0, 45.0)}
    bound = {name: got / count + math.sqrt(2 * math.log(182) / count) for name, (count, got) in state.items()}
    assert policy.select(state, {}, np.random.default_rng(0)) == {max(bound, key=bound.__getitem__): 1.0}


def test_thompson_draws_from_the_posterior() -> None:
    policy = make("thompson", ("a", "b"))
    state = {"a": (20.0, 12.0), "b": (20.0, 10.0)}
    generator = np.random.default_rng(1)
    asked = Counter(next(iter(policy.select(state, {}, generator))) for _ in range(4_000))
    draws = np.random.default_rng(2)
    wins = (draws.beta(13, 9, 200_000) > draws.beta(11, 11, 200_000)).mean()
    assert asked["a"] / 4_000 == pytest.approx(wins, abs=0.03)


def test_ab_keeps_its_shares_and_a_context_its_member() -> None:
    policy = make("ab", shares=[1, 3, 0])
    generator = np.random.default_rng(0)
    for contexts in ([None] * 4_000, [f"user-{number}" for number in range(4_000)]):
        asked = Counter(next(iter(policy.select({}, {}, generator, each))) for each in contexts)
        assert asked["a"] / 4_000 == pytest.approx(0.25, abs=0.03)
        assert asked["c"] == 0
    assert len({next(iter(policy.select({}, {}, generator, "ann"))) for _ in range(50)}) == 1


def test_static_and_majority_learn_nothing() -> None:
    assert play(make("static", member="c"), {"a": 1, "b": 1, "c": 1}, 20)[1] == {"c": 20}
    state, asked = play(make("majority"), {"a": 1, "b": 1, "c": 0}, 20)
    assert asked == {"a": 20, "b": 20, "c": 20}
    assert set(state.values()) == {()}


@pytest.mark.parametrize("name", selection_policy_names())
def test_a_new_member_enters_with_the_mean_and_one_that_left_is_forgotten(name: str) -> None:
    state, _ = play(make(name), {"a": 0.1, "b": 0.5, "c": 0.9}, 200)
    later = make(name, ("b", "c", "new")).completed(state)
    assert [*later] == ["b", "c", "new"]
    assert (later["b"], later["c"]) == (state["b"], state["c"])
    if name in ("exp3", "exp4"):
        mean = (math.exp(state["b"][0]) + math.exp(state["c"][0])) / 2
        assert later["new"][0] == pytest.approx(math.log(mean))
    else:
        assert later["new"] == tuple(
            pytest.approx((one + other) / 2) for one, other in zip(state["b"], state["c"], strict=True)
        )


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("exp5", {}, "there is no policy 'exp5'; choose one of ab, .*; did you mean 'exp[34]'"),
        ("exp4", {"etta": 1}, "has no option 'etta': it has eta, floor; did you mean 'eta'"),
        ("majority", {"eta": 1}, "has no option 'eta': it has none"),
        ("exp4", {"eta": 0}, "eta is 0; it has to be above 0"),
        ("exp3", {"floor": 0.5}, "floor is 0.5; it has to be 0 to 0.1"),
        ("exp3", {"eta": "much"}, "Expected `float`, got `str` - at `\\$.eta`"),
        ("epsilon_greedy", {"epsilon": 2}, "epsilon is 2; it has to be 0 to 1"),
        ("static", {"member": "x"}, "option member is 'x'; choose one of a, b, c"),
        ("ab", {"shares": [1, 2]}, r"option shares is \[1.0, 2.0\] for 3 members"),
        ("ab", {"shares": [1, 2, -1]}, "give each one a share of at least 0"),
        ("os:path", {}, "is not a subclass of mainspring.selection.policy.Policy"),
        ("no.such:Thing", {}, "can't be imported: No module named 'no'"),
        ("mainspring.selection.policy:Policy", {}, "lacks learn, select"),
    ],
)
def test_what_can_not_be_is_said(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(name, **options)
