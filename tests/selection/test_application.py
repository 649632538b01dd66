"""Requests of an application, and what feedback for them changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from mainspring.messages.applications import ApplicationSpec
from mainspring.messages.graphs import read_graph
from mainspring.messages.tables import ConfigError
from mainspring.selection.application import Application, Bounds, Reply
from mainspring.selection.ledger import Feedback
from mainspring.selection.policy import Inputs, Policy, Selected, State

SPEC = ApplicationSpec(
    name="digits", members=("svm", "forest", "cnn:2"), output="scores", options={"eta": 1.0, "floor": 0.0}
)
GENERATOR = np.random.default_rng(0)


class Broken(Policy):
    """A user's policy that raises wherever it may."""

    name = "broken"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        raise ZeroDivisionError

    def combine(self, state: State, inputs: Inputs, selected: Mapping[str, Selected]) -> object:  # type: ignore[override]
        raise ZeroDivisionError

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        raise ZeroDivisionError


def make(bounds: Bounds = Bounds(), **changes: object) -> Application:  # noqa: B008
    return Application(msgspec.structs.replace(SPEC, **changes), bounds)


def hot(*labels: int) -> np.ndarray:
    return np.eye(3)[list(labels)]


def ask(app: Application, outputs: Mapping[str, np.ndarray], context: str | None = None) -> Reply:
    chosen = app.select(0, {}, GENERATOR, context)
    return app.combine(0, {}, chosen, {name: outputs[name] for name in chosen if name in outputs}, context)


def weights(app: Application, context: str | None = None) -> dict[str, float]:
    return {member: numbers[0] for member, numbers in app.contexts.state(0, context).items()}


def test_feedback_changes_each_members_weight_once_for_each_row() -> None:
    app = make()
    reply = ask(app, {"svm": hot(0, 1), "forest": hot(0, 2), "cnn": hot(1, 2)})
    assert app.prediction(reply).tolist() == [0, 2]
    assert app.members["cnn"] == "cnn:2", "what was learnt of a model is its next version's"
    assert app.observe(0, reply.query_id, np.array([0])) == [Feedback.JOINED]
    assert weights(app) == {"svm": 0, "forest": 0, "cnn": -1}
    assert app.observe(0, reply.query_id, np.array([0, 1])) == [Feedback.DUPLICATE, Feedback.JOINED]
    assert weights(app) == {"svm": 0, "forest": -1, "cnn": -2}
    assert app.observe(0, reply.query_id, np.array([1]), rows=[1]) == [Feedback.DUPLICATE]
    assert app.observe(0, reply.query_id + 1, np.array([1])) == [Feedback.UNKNOWN]
    assert app.losses == {"svm": (2, 0), "forest": (2, 1), "cnn": (2, 2), "": (2, 1)}
    assert app.counts == {"requests": 1, "joined": 2, "duplicate": 2, "unknown": 1}


def test_a_missing_member_is_replaced_by_its_average_named_and_agrees_with_nobody() -> None:
    app = make()
    first = ask(app, {"svm": hot(0), "forest": hot(0)})
    assert (first.missing, first.answer.confidence.tolist()) == (("cnn",), [pytest.approx(2 / 3)])
    ask(app, {"svm": hot(0), "forest": hot(0), "cnn": hot(1)})
    ask(app, {"svm": hot(0), "forest": hot(0), "cnn": hot(2)})
    reply = ask(app, {"svm": hot(0), "forest": hot(0)})
    assert reply.answer.scores is not None
    assert reply.answer.scores[0].tolist() == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert reply.answer.confidence.tolist() == pytest.approx([2 / 3])
    app.observe(0, reply.query_id, np.array([1]))
    assert weights(app)["cnn"] == 0, "who predicted nothing learns nothing"
    with pytest.raises(ValueError, match="no member has an output"):
        ask(app, {})


def test_below_the_confidence_a_row_has_the_default() -> None:
    app = make(confidence=0.6, default=-1)
    reply = ask(app, {"svm": hot(0, 0), "forest": hot(0, 1), "cnn": hot(1, 2)})
    assert reply.default == (False, True)
    assert app.prediction(reply).tolist() == [0, -1]
    assert app.counts["defaults"] == 1


def test_each_context_learns_for_itself_and_a_new_one_begins_with_the_mean() -> None:
    app = make(context=True)
    for context, truth in (("ann", 0), ("bob", 1)):
        for _ in range(3):
            reply = ask(app, {"svm": hot(0), "forest": hot(1), "cnn": hot(2)}, context)
            app.observe(0, reply.query_id, np.array([truth]))
    assert app.prediction(ask(app, {"svm": hot(0), "forest": hot(1), "cnn": hot(2)}, "ann")).tolist() == [0]
    assert weights(app, "new") == pytest.approx(
        {each: (weights(app, "ann")[each] + weights(app, "bob")[each]) / 2 for each in weights(app)}
    )
    with pytest.raises(ValueError, match="the context has 300 bytes; it may have 256"):
        app.select(0, {}, GENERATOR, "x" * 300)
    with pytest.raises(ValueError, match="its key context is false"):
        make().select(0, {}, GENERATOR, "ann")


def test_a_reward_counts_for_who_agreed_with_the_answer() -> None:
    app = make()
    reply = ask(app, {"svm": hot(0), "forest": hot(0), "cnn": hot(1)})
    assert app.observe(0, reply.query_id, reward=[0.25]) == [Feedback.JOINED]
    assert weights(app) == {"svm": -0.75, "forest": -0.75, "cnn": 0}


def test_a_policy_that_raises_leaves_the_first_member_and_is_counted() -> None:
    app = make(policy="tests.selection.test_application:Broken", options={})
    reply = ask(app, {"svm": hot(0), "forest": hot(1), "cnn": hot(1)})
    assert app.prediction(reply).tolist() == [0]
    assert app.observe(0, reply.query_id, np.array([0])) == [Feedback.JOINED]
    assert app.counts["policy_failed"] == 3


@pytest.mark.parametrize(
    ("feedback", "said"),
    [
        ({}, "give either what is true or a reward"),
        ({"truth": np.array([0]), "reward": [1]}, "give either what is true or a reward"),
        ({"truth": np.array([3])}, "the number of a class, from 0 to 2"),
        ({"truth": np.array([-1])}, "the number of a class, from 0 to 2"),
        ({"truth": np.array([0.5])}, "the number of a class, from 0 to 2"),
        ({"truth": np.array(["a"])}, "feedback of kind 'scores' is a number for each row, not <U1"),
        ({"truth": np.array([np.nan])}, "NaN or infinity"),
        ({"reward": [1.5]}, "a reward is from 0 to 1, not 1.5 to 1.5"),
        ({"truth": np.array([0, 1]), "rows": [0]}, "there are 2 labels, values or rewards for 1 rows"),
    ],
)
def test_feedback_that_can_not_be_is_refused_and_not_counted(feedback: dict[str, object], said: str) -> None:
    app = make()
    reply = ask(app, {"svm": hot(0), "forest": hot(0), "cnn": hot(1)})
    with pytest.raises(ValueError, match=said):
        app.observe(0, reply.query_id, **feedback)  # type: ignore[arg-type]
    assert app.observe(0, reply.query_id, np.array([0])) == [Feedback.JOINED]


def test_two_orders_of_the_same_feedback_end_in_the_same_state() -> None:
    outputs = [hot(*row) for row in np.random.default_rng(3).integers(0, 3, (60, 3))]
    found = []
    for order in (range(60), np.random.default_rng(4).permutation(60)):
        app = make(options={"eta": 0.3, "floor": 0.0})
        replies = [
            ask(app, dict(zip(("svm", "forest", "cnn"), each[:, None], strict=True))) for each in outputs
        ]
        for index in order:
            app.observe(0, replies[index].query_id, np.array([index % 3]))
        found.append(weights(app))
    assert found[0] == pytest.approx(found[1], abs=1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("members", "not TOML"),
        ('members = ["b"]\noutput = "y"', "needs the key 'name'"),
        ('name = "a"\nmembers = ["b", "b:2"]\noutput = "y"', "names a member twice"),
        ('name = "a"\nmembers = []\noutput = "y"', "has 0 members, and has to have 1 to 64"),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\nconfidence = 0.5', "has confidence without default"),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\ndefault = 1', "has default without confidence"),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\nconfidence = 2\ndefault = 1', "confidence of .* is 2"),
        (
            'name = "a"\nmembers = ["b"]\noutput = "y"\nconfidence = 0.5\ndefault = "x"',
            "default of .* is 'x'",
        ),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\nleast = 2', "least of .* is 2; it has to be 1 to 1"),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\nslo_ms = 0', "slo_ms of .* is 0"),
        ('name = "a"\nmembers = ["b"]\noutput = "y"\npolice = "exp3"', "police.*did you mean 'policy'"),
    ],
)
def test_a_file_that_can_not_be_is_said_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_graph(text, "digits.toml")


def test_a_file_is_read() -> None:
    text = 'name = "a"\nmembers = ["b", "c:2"]\noutput = "y"\npolicy = "exp3"\n[options]\neta = 0.2\n'
    spec = read_graph(text, "a.toml").application
    assert spec is not None
    assert Application(spec).policy.options.eta == 0.2


def test_changed_members_that_stay_keep_what_was_learnt_and_a_new_one_enters_with_the_mean() -> None:
    before = make(context=True)
    answers = {"svm": hot(0), "forest": hot(1), "cnn": hot(0)}
    for context in ("ann", "bob"):
        before.observe(0, ask(before, answers, context).query_id, np.array([0]))
    waiting = ask(before, answers, "ann")
    begun = before.select(0, {}, GENERATOR, "bob")
    after = before.changed(
        msgspec.structs.replace(SPEC, members=("forest", "cnn:3", "tree"), context=True, policy="exp3")
    )
    for context, learnt in (("ann", -1), ("bob", -2)):
        mean = float(np.log((np.exp(learnt) + 1) / 2))
        assert weights(after, context) == {"forest": learnt, "cnn": 0, "tree": pytest.approx(mean)}
    assert weights(after)["forest"] == -1.5
    assert after.losses == {"forest": (2, 2), "cnn": (2, 0), "": (2, 0)}
    assert after.counts["joined"] == 2
    after.contexts.validate()
    assert after.observe(0, waiting.query_id, np.array([0])) == [Feedback.JOINED], "as the members were"
    assert weights(after, "ann")["forest"] == pytest.approx(-1 - 1), "exp3 divides by 1 where all were asked"
    assert weights(after, "ann").keys() == {"forest", "cnn", "tree"}
    late = before.combine(0, {}, begun, answers, "bob")
    assert (late.missing, after.counts["policy_failed"]) == ((), 0), "a request that was under way"
    assert after.observe(0, late.query_id, np.array([0])) == [Feedback.JOINED]
    after.contexts.validate()
    after.ledger.validate()


def test_weights_begin_anew_where_the_numbers_would_mean_something_else() -> None:
    before = make()
    before.observe(0, ask(before, {"svm": hot(0)}).query_id, np.array([1]))
    asked = ask(before, {"svm": hot(0)})
    counting = before.changed(msgspec.structs.replace(SPEC, policy="ucb1", options={}))
    assert counting.contexts.state(0, None) == dict.fromkeys(["svm", "forest", "cnn"], (0.0, 0.0))
    assert counting.observe(0, asked.query_id, np.array([1])) == [Feedback.JOINED]
    other = counting.changed(msgspec.structs.replace(SPEC, output="logits"))
    assert other.observe(0, asked.query_id, np.array([1])) == [Feedback.LATE]
    assert ask(other, {"svm": hot(0)}).query_id == asked.query_id + 1, "no id is given out twice"
    with pytest.raises(ValueError, match="there is no policy 'exp5'"):
        other.changed(msgspec.structs.replace(SPEC, policy="exp5"))
