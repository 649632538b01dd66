"""Estimators of scikit-learn as ONNX files, with an open number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
import skops.io
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.conversion.opening import as_onnx
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.stock import StockSession

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
MIXED = np.array([["a", 1.0, "x"], ["b", 2.0, "y"], ["a", 3.0, "y"]] * 5, dtype=object)


def written(path: Path, estimator: Any) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Save an estimator, convert it, and return the model with what is said of it."""
    joblib.dump(estimator, path / "m.joblib")
    with as_onnx(path / "m.joblib", trust=True) as converted:
        return onnx.load(converted.path), converted.notes


def assert_close(found: Any, right: Any, rtol: float = 1e-3, atol: float = 0.0) -> None:
    np.testing.assert_allclose(found, right, rtol, atol)


def inputs(model: onnx.ModelProto) -> dict[str, tuple[int, list[str | int]]]:
    """Return the element type and dimensions of each input; an open dimension is its name."""
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim],
        )
        for value in model.graph.input
    }


def test_a_matrix_of_numbers_is_one_input_with_open_rows(tmp_path: Path) -> None:
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    model, notes = written(tmp_path, estimator)
    assert inputs(model) == {"X": (onnx.TensorProto.FLOAT, ["", 4])}
    labels, scores = StockSession(model.SerializeToString()).run([X[:7]])
    np.testing.assert_array_equal(labels, estimator.predict(X[:7]))
    assert_close(scores, estimator.predict_proba(X[:7]))
    assert notes == ()


def test_an_estimator_is_served_like_any_model(tmp_path: Path) -> None:
    joblib.dump(KMeans(3, n_init=1, random_state=0).fit(X), tmp_path / "m.joblib")
    store = Store(tmp_path / "store")
    with as_onnx(tmp_path / "m.joblib", trust=True) as converted:
        manifest = compile_file(converted.path, "m", store, (1, 2), origin=converted.origin).manifest
    assert (manifest.source.kind, manifest.source.path) == ("estimator", str(tmp_path / "m.joblib"))
    assert manifest.source.options.endswith(" --trust"), "so the command that compiles it again works"
    assert manifest.inputs[0].shape == (4,)


def test_columns_of_two_kinds_are_inputs_of_their_own(tmp_path: Path) -> None:
    columns = ColumnTransformer(
        [
            (
                "words",
                make_pipeline(SimpleImputer(missing_values="", strategy="most_frequent"), OneHotEncoder()),
                [0, 2],
            ),
            ("numbers", StandardScaler(), slice(1, 2)),
        ]
    )
    estimator = make_pipeline(columns, LogisticRegression()).fit(MIXED, [0, 1, 1] * 5)
    model, notes = written(tmp_path, estimator)
    assert "not fitted on" in notes[0], "a stranger's odd row would fail the batch"
    text, number = onnx.TensorProto.STRING, onnx.TensorProto.FLOAT
    assert inputs(model) == {"x0": (text, ["", 1]), "x1": (number, ["", 1]), "x2": (text, ["", 1])}
    rows = MIXED[:4]
    arrays = [rows[:, [0]], rows[:, [1]].astype(np.float32), rows[:, [2]]]
    found = StockSession(model.SerializeToString()).run(arrays)[1]
    assert_close(found, estimator.predict_proba(rows))


def test_texts_are_one_column_and_need_no_locale(tmp_path: Path) -> None:
    texts = ["A cat sat", "the dog ran", "birds sing"] * 4
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [0, 1, 2] * 4)
    model, _ = written(tmp_path, estimator)
    assert inputs(model) == {"text": (onnx.TensorProto.STRING, ["", 1])}
    found = StockSession(model.SerializeToString()).run([np.array([[text] for text in texts], dtype=object)])
    assert_close(found[1], estimator.predict_proba(texts))


def test_what_32_bits_answer_otherwise_has_64(tmp_path: Path) -> None:
    estimator = make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y)
    # In 32 bits nothing of a number near 1 is left when 1e9 is subtracted.
    estimator[0].mean_, estimator[0].scale_ = np.full(4, 1e9), np.ones(4)
    estimator[1].coef_, estimator[1].intercept_ = np.ones(4), np.float64(4e9)
    model, notes = written(tmp_path, estimator)
    assert inputs(model) == {"X": (onnx.TensorProto.DOUBLE, ["", 4])}
    assert notes == (
        "its inputs are float64, because in float32 its answers would differ from the estimator's",
    )
    found = StockSession(model.SerializeToString()).run([X.astype(np.float64)])[0]
    assert_close(found[:, 0], X.sum(axis=1), atol=1e-4)


def test_skops_says_which_types_it_does_not_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "forest.skops"
    skops.io.dump(RandomForestClassifier(3, random_state=0).fit(X, Y), path)
    untrusted = skops.io.get_untrusted_types(file=path)
    monkeypatch.setattr(skops.io, "get_untrusted_types", lambda file: [*untrusted, "odd.Type"])
    with pytest.raises(CompileError, match=r"of itself: .*odd.Type; `--trust` reads them"), as_onnx(path):
        pass
    with as_onnx(path, trust=True) as converted:
        assert inputs(onnx.load(converted.path))["X"][1] == ["", 4]


def test_skops_that_holds_only_known_types_needs_no_trust(tmp_path: Path) -> None:
    skops.io.dump(LogisticRegression().fit(X, Y), tmp_path / "m.skops")
    with as_onnx(tmp_path / "m.skops") as converted:
        assert inputs(onnx.load(converted.path))["X"][1] == ["", 4]
    (tmp_path / "m.skops").write_bytes(b"PK nothing")
    with pytest.raises(CompileError, match="is not a file of skops"), as_onnx(tmp_path / "m.skops"):
        pass


def test_a_step_without_a_converter_is_named(tmp_path: Path) -> None:
    estimator = make_pipeline(FunctionTransformer(np.log1p), LinearRegression()).fit(np.abs(X), Y)
    with pytest.raises(CompileError, match="can't convert FunctionTransformer > LinearRegression"):
        written(tmp_path, estimator)


def test_an_estimator_that_was_never_fitted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="fit it before it is saved"):
        written(tmp_path, LogisticRegression())
