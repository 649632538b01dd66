"""Estimators of ai.onnx.ml: one example for each row."""

from __future__ import annotations

from dataclasses import replace

from mainspring.compiler.independence.layers import batch_first
from mainspring.compiler.independence.moves import reshaped
from mainspring.compiler.independence.step import Rule, Step
from mainspring.compiler.independence.values import Constant, NotProven, Rows, Value, product, rows_at


def estimator(*ranks: int) -> Rule:
    """Return the rule of an estimator of ai.onnx.ml: one example for each row, outputs of these ranks."""

    def rule(step: Step) -> list[Value]:
        source = batch_first(step)
        step.only_rows_in(0)
        if source.rank != 2:
            raise NotProven("takes its input for a single example")
        targets = _scores(step) if len(ranks) > 1 else step.attribute("n_targets")
        return [rows_at((None, *[targets] * (rank - 1)), 0, source) for rank in ranks]

    return rule


def _scores(step: Step) -> int | None:
    """Return how many scores a classifier gives for each row; None if that isn't known."""
    names = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
    labels = max(len(step.attribute(name) or ()) for name in names)
    match step.node.op_type:
        case "LinearClassifier":
            # With one line for two classes the other's score follows.
            lines = len(step.attribute("intercepts") or ())
            return 2 if (lines, labels) == (1, 2) else lines or None
        case "SVMClassifier":
            return (labels or None) if step.attribute("prob_a") else None
    return labels or None


def table_row(step: Step) -> list[Value]:
    """Scaler, Normalizer and their like: each example alone, of the same shape."""
    source = batch_first(step)
    if source.rank != 2:
        raise NotProven("takes its input for a single example")
    return [source]


def features(step: Step) -> list[Value]:
    """FeatureVectorizer: the columns of several tables, concatenated."""
    parts = [step.rows(index) for index in range(len(step.inputs))]
    if any(part.axis != 0 or part.rank != 2 or not part.same_slices(parts[0]) for part in parts):
        raise NotProven("takes an input for a single example")
    return [rows_at((None, None), 0, parts[0])]


def columns(step: Step) -> list[Value]:
    """ArrayFeatureExtractor: parts of the last axis, or entries of constant lists by rows of indices."""
    data, chosen = step.given(0), step.given(1)
    if isinstance(data, Constant) and isinstance(chosen, Rows) and data.shape is not None:
        # Entries for each row, such as its class, beside each other in each list.
        each = product(tuple(dim for axis, dim in enumerate(chosen.shape) if axis != chosen.axis))
        if each is None:
            raise NotProven("picks for a number of places that isn't known")
        found = reshaped(chosen, [1, chosen.dim * each])
        lists = data.shape[:-1] or (1,)
        return [replace(found, shape=(*lists, found.dim), axis=len(lists))]
    source = step.rows()
    step.only_rows_in(0)
    if source.rank < 2 or source.axis == source.rank - 1 or not isinstance(chosen, Constant):
        raise NotProven("picks along the batch")
    number = None if chosen.shape is None else product(chosen.shape)
    return [rows_at((*source.shape[:-1], number), source.axis, source)]


def one_hot_encoder(step: Step) -> list[Value]:
    """OneHotEncoder of ai.onnx.ml: one more axis."""
    source = step.rows()
    categories = step.attribute("cats_int64s") or step.attribute("cats_strings") or ()
    return [rows_at((*source.shape, len(categories) or None), source.axis, source)]
