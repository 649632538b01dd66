"""The columns that a fitted estimator of scikit-learn expects, and the kind of each: numbers or text.

An estimator does not keep the types that it was fitted on. Its first steps show them: vectorizers of text
take a column of texts, encoders and imputers keep values that they were fitted on, the others take numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mainspring.compiler.artifact.errors import CompileError

NUMBER, TEXT = "number", "text"
_ALL = "X"
"""Name of the input if all columns are one."""
_PASSED = ("passthrough", "drop", None)


class Column(NamedTuple):
    """An input of the model: one column, or all."""

    name: str
    kind: str
    """`NUMBER` or `TEXT`."""
    width: int


def columns_of(estimator: Any) -> list[Column]:
    """Return the inputs of a fitted estimator; raise `CompileError` if it does not say."""
    first = next(_steps(estimator), estimator)
    count = getattr(estimator, "n_features_in_", None) or getattr(first, "n_features_in_", None)
    if count is None:
        if _reads_texts(first):
            return [Column("text", TEXT, 1)]
        raise CompileError(
            f"{type(first).__name__} does not say how many columns it takes (n_features_in_); fit it before "
            "it is saved, or have the model's author write it as ONNX with skl2onnx"
        )
    known = getattr(first, "feature_names_in_", None)
    names = [str(name) for name in known] if known is not None else [f"x{index}" for index in range(count)]
    kinds = _kinds(first, names)
    by_name = known is not None and hasattr(first, "transformers_")
    if not by_name and len({*kinds}) == 1:
        return [Column(_ALL, kinds[0], int(count))]
    return [Column(name, kind, 1) for name, kind in zip(names, kinds, strict=True)]


def _steps(estimator: Any) -> Iterator[Any]:
    """Yield the steps that do something, pipelines within pipelines taken apart."""
    for _, step in getattr(estimator, "steps", []):
        if isinstance(step, str) or step is None:
            continue
        yield from _steps(step) if hasattr(step, "steps") else [step]


def _reads_texts(transformer: Any) -> bool:
    """Return whether it expects a list of texts, not a matrix."""
    inner = [each for _, each in getattr(transformer, "transformer_list", [])]
    return any(map(_reads_texts, inner)) or (
        hasattr(transformer, "ngram_range") or hasattr(transformer, "analyzer")
    )


def _kinds(first: Any, names: list[str]) -> list[str]:
    """Return the kind of each column that the first step takes."""
    kinds = [NUMBER] * len(names)
    if not hasattr(first, "transformers_"):
        return _kinds_of(first, len(names))
    for _, transformer, columns in first.transformers_:
        if isinstance(transformer, str) and transformer in _PASSED:
            continue
        places = _places(columns, names)
        for place, kind in zip(places, _kinds_of(transformer, len(places)), strict=True):
            kinds[place] = kind
    return kinds


def _places(columns: Any, names: list[str]) -> list[int]:
    """Return the indices of the columns that a ColumnTransformer hands to one of its transformers."""
    if isinstance(columns, slice) and isinstance(columns.start or columns.stop or 0, str):
        begin = 0 if columns.start is None else names.index(columns.start)
        end = len(names) if columns.stop is None else names.index(columns.stop) + 1
        return list(range(begin, end))
    if isinstance(columns, slice):
        return list(range(*columns.indices(len(names))))
    listed = [columns] if isinstance(columns, str | int | np.integer) else list(columns)
    if listed and all(isinstance(each, bool | np.bool_) for each in listed):
        return [index for index, taken in enumerate(listed) if taken]
    return [names.index(each) if isinstance(each, str) else int(each) % len(names) for each in listed]


def _kinds_of(transformer: Any, count: int) -> list[str]:
    """Return the kind of each column that a transformer was fitted on."""
    for step in [*_steps(transformer)] or [transformer]:
        if _reads_texts(step):
            return [TEXT] * count
        for fitted in (getattr(step, "categories_", None), getattr(step, "statistics_", None)):
            if fitted is not None and len(fitted) == count:
                return [TEXT if _has_text(np.atleast_1d(each)) else NUMBER for each in fitted]
    return [NUMBER] * count


def _has_text(values: Iterable[Any]) -> bool:
    return any(isinstance(value, str) for value in values)
