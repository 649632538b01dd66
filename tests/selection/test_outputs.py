"""How unlike outputs become one answer, and how wrong they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mainspring.selection.outputs import Output

HALF_WRONG = "tests.selection.test_outputs:half"


def half(truth: np.ndarray, output: np.ndarray) -> np.ndarray:
    return np.where(truth == 0, 0.5, 2.0)


def test_labels_are_voted_by_weight_and_the_first_of_equals_wins() -> None:
    output = Output("label")
    told = {"a": np.array([b"cat", b"cat"]), "b": np.array([b"dog", b"dog"]), "c": np.array([b"dog", b"cow"])}
    answer = output.combine(told, {"a": 1.5, "b": 1.0, "c": 1.0})
    assert answer.prediction.tolist() == [b"dog", b"cat"]
    assert answer.confidence.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert output.combine(told, dict.fromkeys("abc", 1.0)).prediction.tolist() == [b"dog", b"cat"]


def test_values_agree_within_the_tolerance() -> None:
    output = Output("value", span=10, tolerance=0.5)
    told = {"a": np.array([[1.0], [4.0]]), "b": np.array([[1.5], [8.0]]), "c": np.array([[2.0], [6.0]])}
    answer = output.combine(told, {"a": 1, "b": 2, "c": 1})
    assert answer.prediction.tolist() == [1.5, 6.5]
    assert answer.confidence.tolist() == pytest.approx([1, 1 / 3])
    assert output.losses(np.array([1.0, 30.0]), told["a"]) == [0.0, 1.0]


def test_what_stands_in_counts_for_the_answer_and_agrees_with_none() -> None:
    output = Output("scores")
    told = {"a": np.array([[0.6, 0.4]]), "b": np.array([[0.9, 0.1]])}
    assert output.combine(told, {"a": 1, "b": 1}, {"b"}, 3).confidence.tolist() == pytest.approx([1 / 3])
    assert output.combine(told, {"a": 1, "b": 1}, {"a", "b"}).confidence.tolist() == [0]
    assert output.combine(told, {"a": 0, "b": 0}).scores == pytest.approx(np.array([[0.75, 0.25]]))
    with pytest.raises(ValueError, match="no member has an output"):
        output.combine({}, {})


@given(st.data())
def test_scores_are_the_weighted_mean_whatever_their_shape(data: st.DataObject) -> None:
    rows, classes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    numbers = st.floats(-10, 10, width=32)
    made = arrays.arrays(np.float32, (3, rows, classes), elements=numbers)
    told = dict(zip("abc", data.draw(made), strict=True))
    weights = {name: data.draw(st.floats(0.01, 5)) for name in told}
    answer = Output("scores").combine({name: each[:, :, None] for name, each in told.items()}, weights)
    wanted = np.average(list(told.values()), 0, list(weights.values()))
    assert answer.scores == pytest.approx(wanted, abs=1e-5)
    assert answer.scores is not None
    assert answer.prediction.tolist() == answer.scores.argmax(1).tolist()
    agree = [(each.argmax(1) == answer.prediction) for each in told.values()]
    assert answer.confidence == pytest.approx(np.mean(agree, 0))


def test_losses_are_those_of_their_names() -> None:
    scores = np.array([[0.2, 0.8], [1.4, -0.4]])
    assert Output("scores").losses(np.array([0, 0]), scores) == [1, 0]
    assert Output("scores", loss="score").losses(np.array([0, 1]), scores) == pytest.approx([0.8, 1.0])
    assert Output("label").losses(np.array(["x", "y"]), np.array([["x"], ["x"]])) == [0, 1]
    own = Output("label", loss=HALF_WRONG)
    assert own.losses(np.array([0]), np.array([1])) == [0.5]
    with pytest.raises(
        ValueError, match=r"a loss is a number from 0 to 1 for each of 2 rows, not \[0.5, 2.0\]"
    ):
        own.losses(np.array([0, 1]), np.array([1, 1]))


@pytest.mark.parametrize(
    ("kind", "loss", "said"),
    [
        ("scores", "absolute", "loss 'absolute' is of value, and the kind is 'scores'"),
        ("label", "score", "loss 'score' is of scores, and the kind is 'label'"),
        ("label", "wrong", "there is no loss 'wrong'; choose one of zero_one, score, absolute, or name"),
        ("value", "", "needs span, the range of values: a number above 0"),
        ("label", "os:no_such", "can't be imported"),
        ("label", "os:sep", "is not a function"),
    ],
)
def test_a_loss_that_can_not_be_is_said(kind: str, loss: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Output(kind, loss=loss)  # type: ignore[arg-type]
