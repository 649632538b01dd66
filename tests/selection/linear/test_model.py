"""The best items are those of brute force, in whichever version serves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.selection.linear.model import LinearModel, LinearOptions
from mainspring.selection.linear.ranking import best
from mainspring.selection.linear.retraining import als, prepared, retrained

TABLE = np.random.default_rng(0).normal(size=(200, 5))


def made(table: np.ndarray = TABLE, **options: object) -> LinearModel:
    return LinearModel(LinearOptions(**options), table, table.shape[1])  # type: ignore[arg-type]


def observe(model: LinearModel, user: str, item: int, value: float) -> float:
    return model.observe(user, model.features(np.array([item]))[0], value, item)


@given(scores=st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40), k=st.integers(1, 50))
def test_the_best_are_in_order_and_equal_ones_by_number(scores: list[float], k: int) -> None:
    wanted = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[:k]
    assert best(np.array(scores), k).tolist() == wanted


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 99),
    told=st.integers(0, 12),
    k=st.integers(1, 12),
    some=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_top_k_is_that_of_brute_force(
    alpha: float, seed: int, told: int, k: int, some: bool, dtype: type
) -> None:
    generator = np.random.default_rng(seed)
    model = made(TABLE.astype(dtype), alpha=alpha, ridge=0.5)
    features, values = np.zeros((0, 5)), np.zeros(0)
    for _ in range(told):
        item, value = int(generator.integers(200)), float(generator.normal())
        observe(model, "ann", item, value)
        features, values = np.vstack((features, TABLE[item])), np.append(values, value)
    inverse = np.linalg.inv(features.T @ features + 0.5 * np.eye(5))
    items = generator.permutation(200)[:60] if some else np.arange(200)
    for _ in range(2):
        # The second time the scores are in the cache.
        found = model.top_k("ann", items if some else None, k, generator)
        scores = [
            float(TABLE[at] @ inverse @ features.T @ values)
            + alpha * float(np.sqrt(TABLE[at] @ inverse @ TABLE[at]))
            for at in items
        ]
        order = np.argsort(-np.array(scores), kind="stable")[:k]
        assert found.items.tolist() == items[order].tolist()
        assert np.allclose(found.scores, np.array(scores)[order], atol=1e-5)


def test_scores_are_cached_until_the_user_says_something() -> None:
    model, generator = made(), np.random.default_rng(0)
    observe(model, "ann", 1, 1.0)
    for _ in range(3):
        model.top_k("ann", None, 3, generator)
    assert (model.now.scores.hits, model.now.scores.misses) == (2, 1)
    before = model.top_k("ann", None, 3, generator).scores
    observe(model, "ann", 2, -9.0)
    assert model.top_k("ann", None, 3, generator).scores.tolist() != before.tolist()
    assert model.now.scores.misses == 2


def test_a_share_of_answers_has_one_drawn_item() -> None:
    model, generator = made(random=0.25), np.random.default_rng(3)
    observe(model, "ann", 1, 1.0)
    found = [model.top_k("ann", None, 5, generator) for _ in range(4_000)]
    drawn = [each for each in found if each.random == 4]
    assert 0.22 < len(drawn) / len(found) < 0.28
    assert len({int(each.items[4]) for each in drawn}) > 180, "any of the others may be drawn"
    assert all(len({*each.items.tolist()}) == 5 for each in found)


@pytest.mark.parametrize(
    ("items", "k", "said"),
    [
        (None, 0, "k is 0; it has to be at least 1"),
        ([200], 1, "there is no item 200: they are 0 to 199"),
        ([3, -1], 1, "there is no item -1"),
        ([], 1, "the best of 0 items is asked for; it may be of 1 to 100000"),
        ([0] * 100_001, 1, "the best of 100001 items"),
    ],
)
def test_what_can_not_be_asked_is_said(items: list[int] | None, k: int, said: str) -> None:
    given_items = None if items is None else np.array(items, np.int64)
    with pytest.raises(ValueError, match=said):
        made().top_k("ann", given_items, k, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (np.full((3, 2), np.nan), {}, "item 0 has a feature that is NaN or beyond"),
        (np.ones((3, 1_025)), {}, "1025 features; they may have 1 to 1024"),
        (np.ones((3, 2), np.int64), {}, r"it has to be|has to be \(items, d\) of float32"),
        (TABLE, {"ridge": 0.0}, "option ridge is 0; it has to be above 0"),
        (TABLE, {"alpha": -1.0}, "option alpha is -1"),
        (TABLE, {"random": 2.0}, "option random is 2; it has to be a share"),
    ],
)
def test_what_can_not_be_a_model_is_said(table: np.ndarray, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(table, **options)


def test_features_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features have shape \(2, 3\); weights are for \(n, 5\)"):
        made().predict("ann", np.ones((2, 3)))
    with pytest.raises(ValueError, match="a feature is NaN or beyond 1e\\+06"):
        made().predict("ann", np.full((1, 5), np.nan))


def ratings(model: LinearModel, generator: np.random.Generator, count: int, items: np.ndarray) -> None:
    """Have 20 users say what they think of items."""
    tastes = np.random.default_rng(7).normal(size=(20, 5))
    for _ in range(count):
        user, item = int(generator.integers(20)), int(generator.integers(len(items)))
        observe(model, f"user-{user}", item, float(tastes[user] @ items[item]))


def test_retraining_finds_items_that_have_changed_and_rollback_brings_them_back() -> None:
    generator, model = np.random.default_rng(5), made(prior="zero", ridge=0.1)
    changed = TABLE + np.random.default_rng(9).normal(size=TABLE.shape)
    ratings(model, generator, 4_000, changed)
    model.top_k("user-1", None, 3, generator)
    observed = model.history.all()
    before = model.now.quality.before.recent_rmse
    version = prepared(model, observed, retrained("als", TABLE, observed, 0.1, zero=True))
    assert model.now.number == 1, "nothing changes until it serves"
    old = model.predict("user-1", TABLE[:3])[0]
    model.serve(version)
    assert (model.now.number, len(model.versions)) == (2, 2)
    assert model.now.scores.users() == ["user-1"], "what was cached is computed anew"
    ratings(model, generator, 1_000, changed)
    assert model.now.quality.before.recent_rmse < 0.3 * before
    model.now.users.validate()
    assert model.rollback() == 1
    again = model.predict("user-1", TABLE[:3])[0]
    assert not np.allclose(again, old), "what was said meanwhile counts"
    items, values = model.history.of("user-1")
    features = TABLE[items]
    wanted = np.linalg.solve(features.T @ features + 0.1 * np.eye(5), features.T @ values)
    assert np.allclose(again, TABLE[:3] @ wanted)
    with pytest.raises(ValueError, match="version 1 is the only one that is kept"):
        model.rollback()


def test_what_is_said_while_it_trains_is_part_of_the_new_version() -> None:
    model, generator = made(ridge=0.1), np.random.default_rng(5)
    ratings(model, generator, 300, TABLE)
    observed = model.history.all()
    made_of = retrained("als", TABLE, observed, 0.1, zero=False)
    ratings(model, generator, 300, TABLE)
    observe(model, "late", 3, 1.0)
    model.serve(prepared(model, observed, made_of))
    table = model.now.table
    assert table is not None
    for user in ("user-3", "late"):
        items, values = model.history.of(user)
        features = table[items]
        residual = features.T @ (values - features @ model.now.users.vector(user))
        # The gradient of ridge regression about some prior near the mean: zero but for that.
        assert (
            np.abs(residual).max()
            <= 0.1 * np.abs(model.now.users.vector(user) - model.now.users.mean).max() * 2
        )


def broken(table: np.ndarray, _observed: object, _ridge: float) -> np.ndarray:
    return np.full_like(table, np.nan)


def smaller(table: np.ndarray, _observed: object, _ridge: float) -> np.ndarray:
    return table[1:]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:f", "can't be imported"),
        ("mainspring.selection.linear.retraining:SWEEPS", "is not a function of table, observations"),
        (
            f"{__name__}:broken",
            "retraining returned a table that can't be one: item 0 has a feature that is NaN",
        ),
        (f"{__name__}:smaller", r"retraining returned \(199, 5\); the table has \(200, 5\)"),
    ],
)
def test_a_retraining_that_fails_is_said(name: str, said: str) -> None:
    model = made()
    observe(model, "ann", 1, 1.0)
    with pytest.raises(ValueError, match=said):
        retrained(name, TABLE, model.history.all(), 1.0, zero=False)


def test_als_lowers_the_error_that_it_is_of() -> None:
    model, generator = made(prior="zero"), np.random.default_rng(5)
    ratings(model, generator, 2_000, np.random.default_rng(9).normal(size=TABLE.shape))
    observed = model.history.all()

    def rmse(table: np.ndarray) -> float:
        made_of = retrained(f"{__name__}:same", table, observed, 1.0, zero=True)
        left = [
            observed.values[at] - table[observed.items[at]] @ vector
            for at, vector in zip(observed.slices(), made_of.vectors, strict=True)
        ]
        return float(np.sqrt(np.mean(np.concatenate(left) ** 2)))

    assert rmse(als(TABLE, observed, 1.0)) < 0.3 * rmse(TABLE)


def same(table: np.ndarray, _observed: object, _ridge: float) -> np.ndarray:
    return table


def test_a_forgotten_user_is_new_again() -> None:
    model = made()
    observe(model, "ann", 1, 1.0)
    observe(model, "bob", 2, 1.0)
    assert model.forget("ann")
    assert not model.forget("ann")
    assert "ann" not in model.history
    assert np.allclose(model.now.users.vector("ann"), model.now.users.vector("bob"))


def test_errors_are_those_before_each_update_by_user_and_of_drawn_items() -> None:
    model = made()
    errors = [observe(model, "ann", 1, 1.0), observe(model, "ann", 1, 1.0)]
    quality = model.now.quality
    assert quality.before.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert errors[0] == 1.0
    assert quality.of("ann").count == 2
    assert quality.of("bob").count == quality.random.count == 0
    model.observe("bob", TABLE[2], 3.0, 2, random=True)
    assert quality.random.count == 1
    assert quality.worse_than(0.5, 3)
    assert not quality.worse_than(0.5, 4)
    assert not quality.worse_than(50.0, 1)
