"""Learning which models answer, as in Clipper's figures 7 to 10: ``make selection``.

Members are classifiers of scikit-learn's handwritten digits; queries are digits that none was trained on,
shifted and with noise. Each policy answers the same queries one after the other and learns the truth of each
at once, through `mainspring.selection.application`. Nothing is served: only what is learnt is judged. Figure
9 is played in the simulator (`experiments.ensembles`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import ndimage
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mainspring.experiments import ensembles
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.applications import ApplicationSpec
from mainspring.selection.application import Application
from mainspring.selection.outputs import Array

TRAINED = 900
"""Digits that members are trained on; the other 897 are asked for."""
NOISE = 2.5
"""Standard deviation of what is added to each of 64 pixels, which go from 0 to 16."""
DEGRADED = (0.25, 0.5)
"""Part of a run in which the best member is degraded (figure 8: from 5,000 to 10,000 of 20,000)."""
DIALECTS = ((-24, 0), (-12, 0), (0, 0), (12, 0), (24, 0), (0, 1), (0, -1), (12, 1))
"""Degrees by which a dialect's digits are turned, and pixels by which they are moved."""
MODERATE, HEAVY = 0.7, 1.5
"""Loads of figure 9, as parts of the capacity."""
TREES = 4
"""Trees of each forest of figure 9."""
MOST_JUDGED = 500
"""Requests of each size of ensemble whose answers are judged."""
OBSERVED = 10
"""Answers whose truth a user tells before she is judged (figure 10)."""


def transformed(digits: Array, degrees: float, pixels: float) -> Array:
    """Return digits ``(n, 64)`` turned and moved sideways."""
    pictures = digits.reshape(-1, 8, 8)
    turned = ndimage.rotate(pictures, degrees, axes=(2, 1), reshape=False, order=1)
    moved: Array = ndimage.shift(turned, (0, 0, pixels), order=1)
    return moved.reshape(len(digits), 64)


def digits_of(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return digits and labels to train with, and others to ask for."""
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.data))
    train, asked = order[:TRAINED], order[TRAINED:]
    return found.data[train], found.target[train], found.data[asked], found.target[asked]


def queries(digits: Array, labels: Array, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return so many of the digits, each drawn again with its own noise, and their labels."""
    drawn = generator.integers(0, len(digits), count)
    return digits[drawn] + generator.normal(0, NOISE, (count, 64)), labels[drawn]


def members_of(digits: Array, labels: Array, seed: int) -> dict[str, ClassifierMixin]:
    """Return five members of unlike kinds, each trained on its own half of the digits."""
    made: dict[str, Any] = {
        "bayes": GaussianNB(var_smoothing=0.05),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300)),
        "neighbours": KNeighborsClassifier(5),
        "forest": RandomForestClassifier(12, random_state=seed),
        "network": MLPClassifier((32,), alpha=1.0, max_iter=120, random_state=seed),
    }
    generator = np.random.default_rng(seed)
    for member in made.values():
        half = generator.permutation(len(digits))[: len(digits) // 2]
        member.fit(digits[half] + generator.normal(0, NOISE, (len(half), 64)), labels[half])
    return made


def application(policy: str, members: Sequence[str], context: bool = False, **options: float) -> Application:
    """Return an application over these members."""
    spec = ApplicationSpec(
        name="digits",
        members=tuple(members),
        output="scores",
        policy=policy,
        options={**options},
        context=context,
    )
    return Application(spec)


def answered(
    app: Application,
    scores: Mapping[str, Array],
    truth: Array,
    generator: np.random.Generator,
    contexts: Sequence[str] | None = None,
) -> tuple[Array, Array]:
    """Ask query after query, tell the truth after each; return predictions and confidences ``(n,)``."""
    found, confidence = np.empty(len(truth), int), np.empty(len(truth))
    for at in range(len(truth)):
        context = None if contexts is None else contexts[at]
        chosen = app.select(at, {}, generator, context)
        reply = app.combine(at, {}, chosen, {name: scores[name][at : at + 1] for name in chosen}, context)
        found[at], confidence[at] = reply.answer.prediction[0], reply.answer.confidence[0]
        app.observe(at, reply.query_id, truth[at : at + 1])
    return found, confidence


def ensemble(count: int, seed: int) -> dict[str, float]:
    """Play figure 7: return the ensemble's error by the best member's, and the errors by agreement."""
    digits, labels, asked, true = digits_of(seed)
    made, generator = members_of(digits, labels, seed), np.random.default_rng(seed)
    given, truth = queries(asked, true, count, generator)
    scores = {name: each.predict_proba(given) for name, each in made.items()}
    found, confidence = answered(application("exp4", [*made]), scores, truth, generator)
    wrong = found != truth
    best = min((each.argmax(1) != truth).mean() for each in scores.values())
    agree = np.round(confidence * len(made)).astype(int)
    return {
        "ratio": float(wrong.mean() / best),
        "5 agree": float(wrong[agree == 5].mean()),
        "4 agree": float(wrong[agree == 4].mean()),
        "fewer agree": float(wrong[agree < 4].mean()),
        "share of 5": float((agree == 5).mean()),
    }


def failure(count: int, seed: int) -> dict[str, float]:
    """Play figure 8: return each policy's error over the whole run by the best static choice's."""
    digits, labels, asked, true = digits_of(seed)
    made, generator = members_of(digits, labels, seed), np.random.default_rng(seed)
    given, truth = queries(asked, true, count, generator)
    scores = {name: each.predict_proba(given) for name, each in made.items()}
    errors = {name: float((each.argmax(1) != truth).mean()) for name, each in scores.items()}
    best = min(errors, key=errors.__getitem__)
    begins, ends = (round(part * count) for part in DEGRADED)
    broken = scores[best][begins:ends]
    # It answers with the scores of other queries: right one time in ten.
    scores[best] = np.concatenate((scores[best][:begins], generator.permutation(broken), scores[best][ends:]))
    static = min(float((each.argmax(1) != truth).mean()) for each in scores.values())
    found = {}
    for policy in ("exp3", "exp4"):
        said, _ = answered(application(policy, [*made]), scores, truth, generator)
        found[policy] = float((said != truth).mean()) / static
    return found


def dialects(users: int, seed: int) -> dict[str, float]:
    """Play figure 10: return the errors after `OBSERVED` answers of each way of choosing a model.

    A user's digits are turned and moved by a little more or less than those of her dialect's model; one user
    in eight reports another dialect than hers.
    """
    digits, labels, asked, true = digits_of(seed)
    generator = np.random.default_rng(seed)
    made = {}
    for number, (degrees, pixels) in enumerate(DIALECTS):
        changed = transformed(digits, degrees, pixels)
        made[f"dialect-{number}"] = LogisticRegression(C=0.01, max_iter=200).fit(changed, labels)
    own = np.arange(len(digits)) % len(DIALECTS)
    mixed = np.concatenate([transformed(digits[own == at], *each) for at, each in enumerate(DIALECTS)])
    all_labels = np.concatenate([labels[own == at] for at in range(len(DIALECTS))])
    oblivious = LogisticRegression(C=0.01, max_iter=200).fit(mixed, all_labels)
    app = application("exp4", [*made], context=True, eta=1.0)
    errors: dict[str, list[float]] = {"learnt": [], "reported": [], "one for all": []}
    for user in range(users):
        number = int(generator.integers(len(DIALECTS)))
        degrees, pixels = DIALECTS[number]
        spoken = transformed(asked, degrees + generator.normal(0, 5), pixels + generator.normal(0, 0.3))
        given, truth = queries(spoken, true, 2 * OBSERVED, generator)
        reported = number if generator.random() > 1 / 8 else int(generator.integers(len(DIALECTS)))
        scores = {name: each.predict_proba(given) for name, each in made.items()}
        found, _ = answered(app, scores, truth, generator, [f"user-{user}"] * len(truth))
        judged = slice(OBSERVED, None)
        for name, said in (
            ("learnt", found),
            ("reported", scores[f"dialect-{reported}"].argmax(1)),
            ("one for all", oblivious.predict(given)),
        ):
            errors[name].append(float((said[judged] != truth[judged]).mean()))
    return {name: float(np.mean(each)) for name, each in errors.items()}


def accuracy(present: Sequence[int], members: int, seed: int) -> float:
    """Return how often forests are right of which so many were in time, of each request.

    Which ones were is drawn; the others' averages stand in for them.
    """
    digits, labels, asked, true = digits_of(seed)
    generator = np.random.default_rng(seed)
    scores = {}
    given, truth = queries(asked, true, len(present), generator)
    for number in range(members):
        forest = RandomForestClassifier(TREES, random_state=number)
        half = generator.permutation(len(digits))[: len(digits) // 2]
        forest.fit(digits[half] + generator.normal(0, NOISE, (len(half), 64)), labels[half])
        scores[f"forest-{number}"] = forest.predict_proba(given)
    app, right = application("majority", [*scores]), 0
    for at, count in enumerate(present):
        came = generator.permutation([*scores])[:count].tolist()
        if came:
            chosen = app.select(at, {}, generator)
            reply = app.combine(at, {}, chosen, {name: scores[name][at : at + 1] for name in came})
            right += int(reply.answer.prediction[0] == truth[at])
    return right / max(1, sum(count > 0 for count in present))


def stragglers(sizes: Sequence[int], seconds: float) -> list[Figure]:
    """Play figure 9 in the simulator: ensembles of forests at `MODERATE` of the capacity, and at `HEAVY`.

    Beside each stands a server that starts every member, whose client waits for all. Times are those of the
    last member's end on its device.
    """
    found = []
    for members in sizes:
        ours, wait = (ensembles.play(members, MODERATE, known, seconds, 1) for known in (True, False))
        p99_ms, waited_ms = (float(np.percentile(each.last_ms, 99)) for each in (ours, wait))
        missing = 1 - float(np.mean(ours.present)) / members
        right = accuracy(ours.present[:MOST_JUDGED], members, 1)
        note = f"wait: {waited_ms:.1f} ms; missing {missing:.1%}; right {right:.1%}"
        found.append(Figure(f"{members} forests, p99 of the last", p99_ms, "ms", ensembles.SLO_MS, note=note))
    ours, wait = (ensembles.play(max(sizes), HEAVY, known, seconds, 1) for known in (True, False))
    ratio = ours.in_time / max(1, wait.in_time)
    what = f"{max(sizes)} forests at {HEAVY:g}"
    found.append(Figure(f"{what}, members in time / best effort's", ratio, "x", 1.5, at_least=True))
    found.append(Figure(f"{what}, begun in vain", 100 * ours.in_vain, "%", 1.0))
    return found


def figures_of(seeds: int, count: int, users: int) -> list[Figure]:
    """Play all of it with so many seeds; return the figures, means over the seeds."""
    played: dict[str, list[dict[str, float]]] = {"ensemble": [], "failure": [], "dialects": []}
    for seed in range(seeds):
        played["ensemble"].append(ensemble(count // 4, seed))
        played["failure"].append(failure(count, seed))
        played["dialects"].append(dialects(users, seed))

    def mean(what: str, name: str) -> float:
        return float(np.mean([each[name] for each in played[what]]))

    def span(what: str, name: str) -> str:
        values = [each[name] for each in played[what]]
        return f"{min(values):.3f} to {max(values):.3f} over {seeds} seeds"

    found = [
        _figure(
            "ensemble's error / best member's", mean("ensemble", "ratio"), 0.95, span("ensemble", "ratio")
        ),
        *(
            _figure(f"error where {name}, percent", 100 * mean("ensemble", name), None, "")
            for name in ("5 agree", "4 agree", "fewer agree")
        ),
        *(
            _figure(
                f"{name}'s error / best static choice's", mean("failure", name), 1.0, span("failure", name)
            )
            for name in ("exp3", "exp4")
        ),
        *(
            _figure(f"error of a user's answers, {name}, percent", 100 * mean("dialects", name), None, "")
            for name in ("learnt", "reported", "one for all")
        ),
    ]
    learnt, reported, whole = (mean("dialects", name) for name in ("learnt", "reported", "one for all"))
    found.append(_figure("learnt / reported dialect's model", learnt / reported, 1.0, ""))
    found.append(_figure("reported dialect's model / one for all", reported / whole, 1.0, ""))
    return found


def _figure(name: str, value: float, target: float | None, note: str) -> Figure:
    return Figure(name, value, "", target, note=note)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many times each is played.")] = 10,
    count: Annotated[int, typer.Option(min=40, help="Queries of figure 8; figure 7 has a quarter.")] = 20_000,
    users: Annotated[int, typer.Option(min=1, help="Users of figure 10.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of each load of figure 9.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder for selection.json.")] = OUTPUT,
) -> None:
    """Play Clipper's figures 7 to 10 on handwritten digits."""
    figures = [*figures_of(seeds, count, users), *stragglers(ensembles.SIZES, seconds)]
    publish("selection", "Learning which models answer", figures, output)


if __name__ == "__main__":
    typer.run(main)
