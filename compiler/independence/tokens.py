"""Texts as lists of tokens: as many columns as the longest list in the batch has, the others padded.

So the width follows from all rows, but what stands in front of the padding from the row alone. A count of the
tokens (TfIdfVectorizer) depends on the row alone again, if none that it counts is the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.compiler.independence.step import Rule, Step, axis_of
from mainspring.compiler.independence.values import NotProven, Padded, Rows, Value, rows_at

_WIDTH = "is as wide as the longest text of the batch"


def tokenizer(step: Step) -> list[Value]:
    """Tokenizer of com.microsoft: one more axis, of tokens."""
    return [_padded(step.rows(), str(step.attribute("pad_value", "")))]


def string_split(step: Step) -> list[Value]:
    """StringSplit: one more axis, of parts; and their number."""
    source = step.rows()
    return [_padded(source, ""), source]


def _padded(source: Rows, pad: str) -> Padded:
    if source.axis != 0 or source.outer != 1 or source.inner != 1:
        raise NotProven("has the batch where tokens belong")
    return Padded(source.shape, pad)


def tf_idf(step: Step) -> list[Value]:
    """TfIdfVectorizer: one vector for each list of tokens."""
    value = step.given(0)
    columns = 1 + max(map(int, step.attribute("ngram_indexes", [0])), default=0)
    if isinstance(value, Padded):
        known = {
            text.decode(errors="replace") if isinstance(text, bytes) else text
            for text in step.attribute("pool_strings", [])
        }
        if value.pad in known:
            raise NotProven(f"counts {value.pad!r}, with which texts are padded to the longest of the batch")
        if value.texts != 1:
            raise NotProven(_WIDTH)
        return [Rows((value.dims[0], columns))]
    source = step.rows()
    if source.axis != 0 or source.rank != 2:
        raise NotProven("takes its input for a single example")
    return [rows_at((None, columns), 0, source)]


def follow_padded(step: Step) -> Sequence[Value]:
    """Return the outputs of a node that reads padded lists of tokens."""
    rule = _RULES.get(step.node.op_type)
    if rule is None:
        raise NotProven(f"reads tokens, whose tensor {_WIDTH}")
    return rule(step)


def _first(step: Step) -> Padded:
    value = step.given(0)
    if not isinstance(value, Padded):
        raise NotProven(f"reads tokens, whose tensor {_WIDTH}")
    step.only_rows_in(0)
    return value


def _same(step: Step) -> list[Value]:
    return [_first(step)]


def _flatten(step: Step) -> list[Value]:
    """Flatten of all axes but the first: the list of each row, if it has one text."""
    value = _first(step)
    if axis_of(step.attribute("axis", 1), len(value.dims) + 1) != 1 or value.texts != 1:
        raise NotProven(_WIDTH)
    return [Padded(value.dims[:1], value.pad)]


def _reshape(step: Step) -> list[Value]:
    """Reshape to a list for each row, which has one text."""
    value = _first(step)
    if step.integers(1, "shape") != [0, -1] or step.attribute("allowzero", 0) or value.texts != 1:
        raise NotProven(_WIDTH)
    return [Padded(value.dims[:1], value.pad)]


def _squeeze(step: Step) -> list[Value]:
    value, axes = _first(step), step.integers(1, "axes")
    rank = len(value.dims) + 1
    gone = {axis_of(axis, rank) for axis in axes or [0]}
    if not gone <= {*range(1, rank - 1)} or any(value.dims[axis] != 1 for axis in gone):
        raise NotProven(_WIDTH)
    return [Padded(tuple(dim for axis, dim in enumerate(value.dims) if axis not in gone), value.pad)]


_RULES: Mapping[str, Rule] = {
    "Flatten": _flatten,
    "Identity": _same,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "TfIdfVectorizer": tf_idf,
}
