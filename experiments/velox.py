"""Personal linear models, as in Velox's section 2.4, and what theirs lacks: ``make selection``.

Ratings have MovieLens' shape, 0.5 to 5 in steps of a half, of low rank with noise: drawn by a seed, or those
of a file whose lines begin ``user::item::rating`` or ``user,item,rating``. Nothing is served: only what is
learnt is judged, through `mainspring.selection.linear`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.selection.linear.model import LinearModel, LinearOptions
from mainspring.selection.linear.retraining import prepared, retrained, solved

Array = npt.NDArray[np.float64]
USERS, ITEMS, RANK = 1_000, 300, 5
FIRST, MORE, HELD = 40, 28, 12
"""Ratings of each user: half, which features are fitted to; 70 % of the others, which come; the rest."""
RIDGE = 6.0
NOISE = 0.6
KEPT_GAIN = 0.7
_LINE = re.compile(r"(\d+)(?:::|,|\t)(\d+)(?:::|,|\t)([\d.]+)")


class Ratings(NamedTuple):
    """Ratings by user, those of a user in the order in which they came."""

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    values: Array
    """Less the mean of all."""


def drawn_ratings(seed: int) -> Ratings:
    """Return ratings of low rank, in steps of a half: every user rates items of her own choice."""
    generator = np.random.default_rng(seed)
    count = FIRST + MORE + HELD
    tastes = generator.normal(size=(USERS, RANK)) * 0.5 + generator.normal(size=RANK) * 0.3
    features = generator.normal(size=(ITEMS, RANK)) * 0.6
    popular = 1 / np.arange(1, ITEMS + 1) ** 0.5
    items = np.stack(
        [generator.choice(ITEMS, count, replace=False, p=popular / popular.sum()) for _ in range(USERS)]
    )
    users = np.repeat(np.arange(USERS), count)
    exact = np.einsum("ij,ij->i", tastes[users], features[items.reshape(-1)])
    rated = np.clip(np.round(2 * (3.5 + exact + generator.normal(0, NOISE, len(users)))) / 2, 0.5, 5)
    return Ratings(users, items.reshape(-1), rated - rated.mean())


def read_ratings(path: Path, seed: int) -> Ratings:
    """Return ratings of a file, of `USERS` users who have enough of them, drawn by the seed."""
    found = [_LINE.match(line) for line in path.read_text(encoding="utf-8").splitlines()]
    table = np.array([[float(part) for part in each.groups()] for each in found if each is not None])
    users, numbers = table[:, 0].astype(int), np.unique(table[:, 1], return_inverse=True)[1]
    count, generator = FIRST + MORE + HELD, np.random.default_rng(seed)
    rated = [
        each for each, total in zip(*np.unique(users, return_counts=True), strict=True) if total >= count
    ]
    kept = [
        generator.permutation(np.flatnonzero(users == user))[:count]
        for user in generator.permutation(rated)[:USERS]
    ]
    at = np.concatenate(kept)
    values = table[at, 2]
    return Ratings(np.repeat(np.arange(len(kept)), count), numbers[at], values - values.mean())


def model_of(table: Array, ridge: float = RIDGE, **options: object) -> LinearModel:
    """Return a model of these items."""
    return LinearModel(LinearOptions(ridge=ridge, **options), table, table.shape[1])  # type: ignore[arg-type]


def tell(model: LinearModel, ratings: Ratings, chosen: npt.NDArray[np.bool_]) -> None:
    """Have a model observe some of the ratings."""
    for user, item, value in zip(*[each[chosen] for each in ratings], strict=True):
        model.observe(f"user-{user}", model.features(np.array([item]))[0], float(value), int(item))


def rmse(model: LinearModel, ratings: Ratings, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the error of the predictions of some of the ratings."""
    users, items, values = ratings.users[chosen], ratings.items[chosen], ratings.values[chosen]
    vectors = np.stack([model.now.users.vector(f"user-{user}") for user in users.tolist()])
    return float(np.sqrt(np.mean((np.einsum("ij,ij->i", vectors, model.features(items)) - values) ** 2)))


def serve_retrained(model: LinearModel) -> None:
    """Fit a model's items again to all that it observed, and have it serve them."""
    table = model.now.table
    assert table is not None
    observed = model.history.all()
    options = model.options
    model.serve(
        prepared(
            model, observed, retrained("als", table, observed, options.ridge, zero=options.prior == "zero")
        )
    )


def online(ratings: Ratings, seed: int) -> dict[str, float]:
    """Play section 2.4: return errors after the first ratings, after more online, and fitted again to all.

    Features are fitted to `FIRST` ratings of each user; `MORE` come, and others that were held back are
    predicted.
    """
    place = np.arange(len(ratings.users)) % (FIRST + MORE + HELD)
    first, more, held = place < FIRST, (place >= FIRST) & (place < FIRST + MORE), place >= FIRST + MORE
    table = np.random.default_rng(seed).normal(0, 0.1, (int(ratings.items.max()) + 1, RANK))
    model = model_of(table)
    tell(model, ratings, first)
    serve_retrained(model)
    found = {"first": rmse(model, ratings, held)}
    tell(model, ratings, more)
    found["online"] = rmse(model, ratings, held)
    serve_retrained(model)
    found["anew"] = rmse(model, ratings, held)
    found["kept"] = (found["first"] - found["online"]) / (found["first"] - found["anew"])
    return found


def regret(alpha: float, seed: int, rounds: int = 300) -> float:
    """Return the regret of one new user who is shown the best item in each round."""
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(100, RANK)) / np.sqrt(RANK)
    worth = table @ generator.normal(size=RANK)
    model, total = LinearModel(LinearOptions(alpha=alpha), table, RANK), 0.0
    for _ in range(rounds):
        item = int(model.top_k("ann", None, 1, generator).items[0])
        total += float(worth.max() - worth[item])
        model.observe("ann", table[item], float(worth[item] + generator.normal(0, 0.5)), item)
    return total


def drift(seed: int) -> dict[str, float]:
    """Have all items change: return the error of the model fitted again by that of an oracle, and cache hits.

    The oracle knows the new features, and its weights are of the same observations.
    """
    generator = np.random.default_rng(seed)
    users, items, told = 1_000, 100, 40
    tastes = generator.normal(size=(users, RANK))
    before = generator.normal(size=(items, RANK))
    after = 0.5 * before + generator.normal(size=(items, RANK))
    model = model_of(before, NOISE**2, most_of_user=told)

    def say(features: Array, count: int) -> None:
        for user in np.repeat(np.arange(users), count).tolist():
            item = int(generator.integers(items))
            value = float(tastes[user] @ features[item] + generator.normal(0, NOISE))
            model.observe(f"user-{user}", model.features(np.array([item]))[0], value, item)

    def hits() -> float:
        scores = model.now.scores
        begun = scores.hits, scores.misses
        for user in generator.zipf(1.5, 2_000) % 200:
            model.top_k(f"user-{user}", None, 10, generator)
        return (scores.hits - begun[0]) / (scores.hits - begun[0] + scores.misses - begun[1])

    say(before, 20)
    hits()
    old_hits = hits()
    say(after, told)
    hits()
    observed = model.history.all()
    serve_retrained(model)
    new_hits = hits()
    oracle = solved(after, observed, NOISE**2, np.zeros(RANK))
    oracle = solved(after, observed, NOISE**2, oracle.mean(0))
    asked = generator.integers(users, size=20_000), generator.integers(items, size=20_000)
    true = np.einsum("ij,ij->i", tastes[asked[0]], after[asked[1]]) + generator.normal(0, NOISE, 20_000)
    number = {user: at for at, user in enumerate(observed.users)}
    best = oracle[[number[f"user-{user}"] for user in range(users)]]
    least = np.sqrt(np.mean((np.einsum("ij,ij->i", best[asked[0]], after[asked[1]]) - true) ** 2))
    ours = rmse(model, Ratings(asked[0], asked[1], true), np.ones(20_000, bool))
    return {"oracle": ours / float(least), "hits": new_hits / old_hits}


def figures_of(seeds: int, ratings: Path | None) -> list[Figure]:
    """Play all of it with so many seeds; return the figures, means over the seeds."""
    learnt = [
        online(drawn_ratings(seed) if ratings is None else read_ratings(ratings, seed), seed)
        for seed in range(seeds)
    ]
    drifts = [drift(seed) for seed in range(seeds)]

    def mean(found: list[dict[str, float]], name: str) -> float:
        return float(np.mean([each[name] for each in found]))

    first, last = mean(learnt, "first"), mean(learnt, "anew")
    kept = (first - mean(learnt, "online")) / (first - last)
    greedy, bold = [float(np.mean([regret(alpha, seed) for seed in range(seeds)])) for alpha in (0.0, 1.0)]
    return [
        Figure("(2.4) gain of full retraining, percent", 100 * (1 - last / first), ""),
        Figure("(2.4) part of it that online updates keep", kept, "", KEPT_GAIN, at_least=True),
        Figure("LinUCB's regret / greedy's", bold / greedy, "", 1.0, note=f"{bold:.1f} and {greedy:.1f}"),
        Figure("drift: error retrained / an oracle's", mean(drifts, "oracle"), "", 1.02),
        Figure("drift: cache hits after / before", mean(drifts, "hits"), "", 0.9, at_least=True),
    ]


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many times each is played.")] = 10,
    ratings: Annotated[
        Path | None, typer.Option(help="File of ratings, such as MovieLens' ratings.dat.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for velox.json.")] = OUTPUT,
) -> None:
    """Play Velox's section 2.4 on ratings of low rank."""
    publish("velox", "Personal linear models", figures_of(seeds, ratings), output)


if __name__ == "__main__":
    typer.run(main)
