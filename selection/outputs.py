"""Predictions of unlike members as one answer, and how wrong each of them was. Pure.

The output of a member is an array, rows first: a score of each class, a label, or a value. Losses lie in
[0, 1] (Clipper, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.choices import imported

Array = npt.NDArray[Any]
Kind = Literal["scores", "label", "value"]
KINDS: tuple[Kind, ...] = ("scores", "label", "value")
Loss = Callable[[Array, Array], npt.ArrayLike]
"""Function of what is true and a member's output, both by row, to a loss in [0, 1] for each row."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer of an application, by row."""

    prediction: Array
    """``(rows,)``: the class with the highest score, the label with the most weight, or the mean value."""
    confidence: Array
    """``(rows,)`` float64: the share of the selected members that agree with it."""
    scores: Array | None
    """``(rows, classes)`` float64: the members' weighted mean; None of other kinds."""


class Output:
    """The kind and the loss of outputs, which all members of an application have in common."""

    def __init__(
        self, kind: Kind, *, loss: str = "", tolerance: float = 0.0, span: float | None = None
    ) -> None:
        """``loss`` is ``zero_one`` (the default for scores and labels), ``score`` (1 less the score of what
        is true), ``absolute`` (of values: the error by ``span``), or ``package.module:function``. Values
        that differ by at most ``tolerance`` agree. Raises ValueError if these do not fit together.
        """
        self.kind: Kind = kind
        self.tolerance = tolerance
        self.span = span
        loss = loss or ("absolute" if kind == "value" else "zero_one")
        self._loss, self._zero_one_of = self._named(loss), loss == "zero_one"

    def _named(self, loss: str) -> Loss:
        if ":" in loss:
            return _imported(loss)
        fits = {"zero_one": ("scores", "label"), "score": ("scores",), "absolute": ("value",)}
        if loss not in fits:
            raise ValueError(
                f"there is no loss {loss!r}; choose one of {', '.join(fits)}, or name a function of your own "
                "as package.module:function"
            )
        if self.kind not in fits[loss]:
            raise ValueError(f"loss {loss!r} is of {' and '.join(fits[loss])}, and the kind is {self.kind!r}")
        if loss == "absolute" and not (self.span and self.span > 0):
            raise ValueError("loss 'absolute' needs span, the range of values: a number above 0")
        return {"zero_one": self._zero_one, "score": _score, "absolute": self._absolute}[loss]

    def labels(self, output: Array) -> Array:
        """Return what a member predicts for each row: of scores the class with the highest, ``(rows,)``."""
        if self.kind == "scores":
            return np.asarray(output.reshape(len(output), -1).argmax(1))
        return output.reshape(len(output))

    def losses(self, truth: Array, output: Array) -> list[float]:
        """Return the loss of a member's output for each row.

        Raises ValueError if the loss is the application's own, and one of them is not in [0, 1].
        """
        return self.losses_of(truth, {"": output})[""]

    def losses_of(self, truth: Array, outputs: Mapping[str, Array]) -> dict[str, list[float]]:
        """Return for each row the loss of each output, all of the same rows; raises as `losses`."""
        if self._zero_one_of and len({each.size for each in outputs.values()}) == 1:
            together = np.concatenate([each.reshape(len(each), -1) for each in outputs.values()])
            labels = self.labels(together).reshape(len(outputs), -1)
            return dict(zip(outputs, (labels != truth).astype(np.float64).tolist(), strict=True))
        return {member: self._checked(truth, output) for member, output in outputs.items()}

    def _checked(self, truth: Array, output: Array) -> list[float]:
        found: list[float] = np.asarray(self._loss(truth, output), np.float64).reshape(-1).tolist()
        if len(found) != len(output) or not all(0 <= each <= 1 for each in found):
            raise ValueError(
                f"a loss is a number from 0 to 1 for each of {len(output)} rows, not {found[:8]}"
            )
        return found

    def combine(
        self,
        outputs: Mapping[str, Array],
        weights: Mapping[str, float],
        missing: Collection[str] = (),
        selected: int | None = None,
    ) -> Answer:
        """Return the weighted answer of members, each output ``(rows, ...)``.

        ``outputs`` and ``weights`` have the same members; weights are not negative. The outputs of
        ``missing`` members stand in for theirs, and agree with no answer; nor do members that have none, of
        the ``selected`` ones. Raises ValueError if there are no outputs.
        """
        if not outputs:
            raise ValueError("no member has an output")
        if len(outputs) == 1:
            ((member, output),) = outputs.items()
            return self._answer_of(output, member not in missing, selected or 1)
        total = sum(weights.values())
        shares = [weights[member] / total if total else 1 / len(outputs) for member in outputs]
        scores = None
        if self.kind == "scores":
            # One array of all members: its operations take less time than theirs.
            arrays = [*outputs.values()]
            stacked = np.concatenate(arrays, dtype=np.float64).reshape(len(arrays), len(arrays[0]), -1)
            scores = np.dot(shares, stacked.reshape(len(stacked), -1)).reshape(stacked.shape[1:])
            labels, prediction = stacked.argmax(2), scores.argmax(1)
        elif self.kind == "value":
            labels = np.array([self.labels(each) for each in outputs.values()], np.float64)
            prediction = np.array(shares) @ labels
        else:
            labels = np.array([self.labels(each) for each in outputs.values()])
            prediction = _voted(labels, shares)
        if missing:
            labels = labels[[member not in missing for member in outputs]]
        agree = self._agree(prediction, labels)
        return Answer(prediction, np.add.reduce(agree, 0) / (selected or len(outputs)), scores)

    def _answer_of(self, output: Array, own: bool, selected: int) -> Answer:
        """Return the answer of one member alone; ``own`` is False if the output stands in for its own."""
        found = self.labels(output)
        scores = np.asarray(output.reshape(len(output), -1), np.float64) if self.kind == "scores" else None
        if self.kind == "value":
            found = np.asarray(found, np.float64)
        return Answer(found, self._agree(found, found) * (own / selected), scores)

    def agreeing(self, prediction: Array, output: Array) -> Array:
        """Return for each row whether a member's output agrees with a prediction, ``(rows,)`` bool."""
        return self._agree(prediction, self.labels(output))

    def _agree(self, one: Array, other: Array) -> Array:
        if self.kind == "value":
            return np.asarray(np.abs(one - np.asarray(other, np.float64)) <= self.tolerance)
        return np.asarray(one == other)

    def _zero_one(self, truth: Array, output: Array) -> Array:
        return np.asarray(self.labels(output) != truth, np.float64)

    def _absolute(self, truth: Array, output: Array) -> Array:
        assert self.span is not None
        error = np.abs(np.asarray(self.labels(output), np.float64) - np.asarray(truth, np.float64))
        return np.minimum(error / self.span, 1.0)


def _voted(labels: Array, shares: list[float]) -> Array:
    """Return for each column, a row of each member, the label with the most weight; of equals, the first."""
    chosen = []
    for row in labels.T.tolist():
        votes: dict[Any, float] = {}
        for label, share in zip(row, shares, strict=True):
            votes[label] = votes.get(label, 0.0) + share
        chosen.append(max(votes, key=votes.__getitem__))
    return np.array(chosen, labels.dtype)


def _score(truth: Array, output: Array) -> Array:
    scores = output.reshape(len(output), -1)
    return 1 - np.clip(scores[np.arange(len(scores)), np.asarray(truth, np.int64)], 0, 1)


def _imported(name: str) -> Loss:
    found = imported("loss", name)
    if not callable(found):
        raise ValueError(f"loss {name!r} is not a function of what is true and a member's output")
    return found  # type: ignore[no-any-return]
