"""Converts estimators of scikit-learn, pipelines among them, to ONNX through skl2onnx.

An estimator knows how many columns it was fitted with. It does not keep their types, but its first steps show
them: vectorizers of text take a column of texts, encoders and imputers keep values that they were fitted on,
the others take numbers. Where columns are of two kinds each is an input of its own, else all are one matrix.
Rows stay open. What is written answers drawn numbers as the estimator does, in 32 bits or else in 64, or it
is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from mainspring import extras
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.conversion.opening import SKOPS, check_trust, last_line
from mainspring.compiler.reading.contents import serialise
from mainspring.compiler.reading.replaced_operators import give_locale
from mainspring.compiler.reading.stock import StockSession

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


_ROWS = 200

_SEED = 20201104

_TOLERANCE = 1e-3
"""Tolerance of an element relative to itself; a tenth of it relative to the largest element."""

_MOST_DIFFERENT = 0.01
"""Part of the rows that may answer otherwise: a threshold that is rounded falls on the other side."""

_UNKNOWN = (
    "a category that an encoder was not fitted on is encoded as none of its own, where the estimator "
    "raises an error (handle_unknown='error')"
)


class _Written(NamedTuple):
    """An estimator as ONNX."""

    model: onnx.ModelProto
    differ: float
    """The part of drawn rows that are answered otherwise."""
    strict: bool
    """True if the estimator refuses categories that it does not know."""


def convert_estimator(path: Path, target: Path, *, trust: bool) -> tuple[str, ...]:
    """Write an estimator as ONNX; return sentences for the user. Raises `CompileError`."""
    try:
        import skl2onnx
    except ImportError as error:
        raise CompileError(
            f"{path} is an estimator of scikit-learn, by its name, and to convert it takes skl2onnx "
            f"({error}): `{extras.command('convert')}`"
        ) from error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = _load(path, trust=trust)
    notes = tuple(dict.fromkeys(str(each.message).split("\n")[0] for each in caught if _matters(each)))
    if not hasattr(estimator, "get_params") or not hasattr(estimator, "fit"):
        raise CompileError(
            f"{path} holds a {type(estimator).__name__}, which is not an estimator of scikit-learn; save the "
            "fitted estimator or pipeline itself"
        )
    columns = columns_of(estimator)
    found = _written(skl2onnx, estimator, columns, "float32")
    if found.differ > _MOST_DIFFERENT:
        found = _written(skl2onnx, estimator, columns, "float64")
        if found.differ > _MOST_DIFFERENT:
            raise CompileError(
                f"skl2onnx {skl2onnx.__version__} writes {path} as a model that answers {found.differ:.0%} "
                f"of drawn rows otherwise than the estimator ({_name(estimator)}); try another version of "
                "skl2onnx, or the model's author can choose another kind of estimator"
            )
        notes += ("its inputs are float64, because in float32 its answers would differ from the estimator's",)
    if found.strict:
        notes += (_UNKNOWN,)
    content = serialise(found.model)
    if not isinstance(content, bytes):
        raise CompileError(f"{path} makes a model of more than 1 GiB; train it with fewer or smaller trees")
    target.write_bytes(content)
    return notes


def _load(path: Path, *, trust: bool) -> Any:
    if path.suffix.lower() == SKOPS:
        return _load_skops(path, trust=trust)
    check_trust(path, "a pickle", trust)
    try:
        import joblib

        return joblib.load(path)
    except Exception as error:
        raise CompileError(
            f"{path} can't be read ({last_line(error)}); read it with the versions of Python, scikit-learn "
            "and numpy that wrote it, or save it again with these"
        ) from error


def _load_skops(path: Path, *, trust: bool) -> Any:
    import skops.io

    try:
        untrusted = skops.io.get_untrusted_types(file=path)
    except Exception as error:
        raise CompileError(
            f"{path} is not a file of skops, or only a part of one ({last_line(error)})"
        ) from error
    if untrusted and not trust:
        raise CompileError(
            f"{path} has types that skops does not trust of itself: {', '.join(untrusted)}; `--trust` reads "
            "them, if you trust whoever made the file with this machine"
        )
    try:
        return skops.io.load(path, trusted=untrusted)
    except Exception as error:
        raise CompileError(
            f"{path} can't be read ({last_line(error)}); save it again with this version of scikit-learn"
        ) from error


def _matters(warning: warnings.WarningMessage) -> bool:
    """Return whether the user should know of a warning: another version of scikit-learn wrote the file."""
    return warning.category.__name__ == "InconsistentVersionWarning"


def _name(estimator: Any) -> str:
    """Return what an estimator is called, a pipeline by its steps."""
    steps = [type(step).__name__ for _, step in getattr(estimator, "steps", [])]
    return " > ".join(steps) or type(estimator).__name__


def _written(skl2onnx: Any, estimator: Any, columns: Sequence[Column], number: str) -> _Written:
    """Return the estimator as ONNX."""
    from skl2onnx.common import data_types

    kinds = {
        TEXT: data_types.StringTensorType,
        "float32": data_types.FloatTensorType,
        "float64": data_types.DoubleTensorType,
    }
    inputs = [
        (each.name, kinds[TEXT if each.kind == TEXT else number]([None, each.width])) for each in columns
    ]
    # A map for each row is Python's habit; a tensor of scores is what clients read.
    options = {id(estimator): {"zipmap": False}} if _is_classifier(estimator) else None
    try:
        model = skl2onnx.convert_sklearn(estimator, initial_types=inputs, options=options)
    except Exception as error:
        raise CompileError(
            f"skl2onnx {skl2onnx.__version__} can't convert {_name(estimator)} ({last_line(error)}); try its "
            "newest version, or the model's author can replace the step that it does not know"
        ) from error
    strict = _settle(model)
    if len(columns) > 1 or columns[0].kind == TEXT:
        return _Written(model, 0.0, strict)
    return _Written(model, _difference(estimator, model, columns[0].width, number), strict)


def _settle(model: onnx.ModelProto) -> bool:
    """Let nodes run on any machine and any text; return whether an encoder refused unknown ones."""
    give_locale(model.graph)
    strict = False
    for node in model.graph.node:
        attributes = {each.name: each for each in node.attribute}
        if node.op_type == "OneHotEncoder" and "zeros" in attributes and not attributes["zeros"].i:
            attributes["zeros"].i, strict = 1, True
    return strict


def _is_classifier(estimator: Any) -> bool:
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator))


def _difference(estimator: Any, model: onnx.ModelProto, width: int, number: str) -> float:
    """Return the part of drawn rows that the model answers otherwise than the estimator."""
    rows = np.random.default_rng(_SEED).standard_normal((_ROWS, width)).astype(number)
    asked = "predict" if hasattr(estimator, "predict") else "transform"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            right = np.asarray(getattr(estimator, asked)(rows.astype(np.float64)))
    except Exception:
        # Drawn numbers are none that it takes: samples of the model itself are compared later.
        return 0.0
    found = StockSession(serialise(model)).run([rows])[0].reshape(right.shape)
    if right.dtype.kind not in "fiub":
        return float(np.mean(found.astype(str) != right.astype(str)))
    scale = 0.1 * float(np.max(np.abs(right), initial=0.0))
    wrong = np.abs(found - right) > _TOLERANCE * np.maximum(np.abs(right), scale)
    return float(np.mean(wrong.reshape(_ROWS, -1).any(axis=1)))
