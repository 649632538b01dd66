"""Users begin with the others' mean, and weights that were dropped come back from the history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.selection.linear.history import History
from mainspring.selection.linear.users import Users

TABLE = np.random.default_rng(0).normal(size=(30, 4))


def made(history: History, most_bytes: int = 1 << 20, prior: str = "zero") -> Users:
    return Users(4, 0.5, prior, most_bytes, history, lambda items: TABLE[items])  # type: ignore[arg-type]


def told(users: Users, history: History, user: str, item: int, value: float) -> float:
    error = users.observe(user, TABLE[item], value)
    history.add(user, item, value)
    return error


def test_who_is_new_has_the_mean_of_the_others() -> None:
    history = History(100)
    users = made(history)
    assert users.vector("ann").tolist() == [0, 0, 0, 0]
    for user, item in (("ann", 1), ("bob", 2), ("ann", 3)):
        told(users, history, user, item, 1.0)
    mean = (users.vector("ann") + users.vector("bob")) / 2
    assert np.allclose(users.vector("eve"), mean)
    assert told(users, history, "eve", 4, 2.0) == pytest.approx(2.0 - mean @ TABLE[4])
    users.validate()
    assert users.forget("bob")
    assert not users.forget("bob")
    assert np.allclose(users.mean, (users.vector("ann") + users.vector("eve")) / 2)


@pytest.mark.parametrize("prior", ["mean", "zero"])
def test_the_prior_is_the_mean_or_zero(prior: str) -> None:
    history = History(100)
    users = made(history, prior=prior)
    told(users, history, "ann", 1, 3.0)
    centre = users.mean if prior == "mean" else np.zeros(4)
    x = TABLE[2]
    told(users, history, "bob", 2, 1.0)
    wanted = np.linalg.solve(np.outer(x, x) + 0.5 * np.eye(4), x + 0.5 * centre)
    assert np.allclose(users.vector("bob"), wanted)


@settings(max_examples=30, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 29), st.floats(-5, 5)), min_size=1, max_size=60
    ),
    most_bytes=st.sampled_from([100, 1_000, 1 << 20]),
)
def test_weights_are_the_same_however_little_is_kept(
    asked: list[tuple[int, int, float]], most_bytes: int
) -> None:
    history, roomy = History(1_000), History(1_000)
    users, others = made(history, most_bytes), made(roomy)
    for user, item, value in asked:
        told(users, history, str(user), item, value)
        told(others, roomy, str(user), item, value)
        users.validate()
    for name in {str(each) for each, _, _ in asked}:
        assert np.allclose(users.vector(name), others.vector(name), atol=1e-9)


def test_without_a_history_weights_go_on_from_what_they_are() -> None:
    generator = np.random.default_rng(2)
    # Room for 12 users, and for one matrix.
    users = Users(30, 0.5, "zero", 8_000)
    for user in ("ann", "bob"):
        users.observe(user, generator.normal(size=30), 1.0)
    before, x = users.vector("ann"), generator.normal(size=30)
    users.observe("ann", x, 4.0)
    wanted = np.linalg.solve(np.outer(x, x) + 0.5 * np.eye(30), 4.0 * x + 0.5 * before)
    assert np.allclose(users.vector("ann"), wanted)
    users.validate()


def test_a_history_drops_whoever_was_silent_longest() -> None:
    history = History(3)
    for user, item in (("ann", 1), ("bob", 2), ("ann", 3), ("eve", 4)):
        history.add(user, item, item / 2)
    assert ("bob" in history, history.total, history.count("bob")) == (False, 3, 0)
    found = history.all()
    assert found.users == ("ann", "eve")
    assert (found.starts.tolist(), found.items.tolist()) == ([0, 2, 3], [1, 3, 4])
    assert found.values.tolist() == [0.5, 1.5, 2.0]
    assert found.counts == (2, 1)
    assert history.forget("ann")
    assert not history.forget("ann")
    assert history.total == 1


def test_a_history_keeps_the_newest_of_each_user() -> None:
    history = History(100, 2)
    for item in range(5):
        history.add("ann", item, 0.0)
    assert history.of("ann")[0].tolist() == [3, 4]
    assert (history.total, history.count("ann"), history.all().counts) == (2, 5, (5,))
