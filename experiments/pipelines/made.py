"""The pipelines, and the rows that they are fitted on and asked about.

Each is fitted on drawn data and exported with skl2onnx's default options but for those that its entry names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import (
    calibration,
    cluster,
    compose,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_extraction,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline, make_union

ROWS, COLUMNS = 160, 6
OPSETS = {"": 18, "ai.onnx.ml": 3}
NUMBERS, COUNTS, HOLES, TEXTS, MIXED = "numbers", "counts", "holes", "texts", "mixed"
_COLOURS = ("red", "green", "blue", "grey")
_WORDS = "the a cat dog bird sat ran sang on over mat far away today never often".split()  # noqa: SIM905


class Pipeline(NamedTuple):
    """A pipeline to be fitted and exported."""

    name: str
    make: Callable[[], Any]
    data: str = NUMBERS
    labels: str = "classes"
    options: Mapping[str, Any] = MappingProxyType({"zipmap": False})


def inputs_of(data: str, rows: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return rows of every input, as the served model takes them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, COLUMNS)).astype(np.float32)
    match data:
        case "counts":
            return {"X": random.integers(0, 9, (rows, COLUMNS)).astype(np.float32)}
        case "holes":
            x[random.random(x.shape) < 0.2] = np.nan
            return {"X": x}
        case "texts":
            sentences = [" ".join(random.choice(_WORDS, random.integers(3, 9))) for _ in range(rows)]
            return {"text": np.array(sentences, object).reshape(-1, 1)}
        case "mixed":
            colours = random.choice(_COLOURS, (rows, 1)).astype(object)
            return {
                "age": x[:, :1] * 10 + 40,
                "income": x[:, 1:2] * 1e4 + 3e4,
                "rooms": random.integers(1, 9, (rows, 1)),
                "colour": colours,
            }
    return {"X": x}


def as_fitted(data: str, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Return rows as scikit-learn takes them."""
    if data == TEXTS:
        return inputs["text"].reshape(-1)
    if data == MIXED:
        return np.concatenate([array.astype(object) for array in inputs.values()], axis=1)
    return inputs["X"]


def exported(pipeline: Pipeline) -> tuple[Any, Any]:
    """Return the fitted pipeline, and what skl2onnx writes of it."""
    inputs = inputs_of(pipeline.data, ROWS, seed=1)
    first = next(array for array in inputs.values() if array.dtype.kind == "f" or pipeline.data == TEXTS)
    size = (
        np.array([len(text[0]) for text in first], float)
        if pipeline.data == TEXTS
        else np.nan_to_num(np.sum(first, axis=1))
    )
    classes = np.digitize(size, np.quantile(size, [0.4, 0.7]))
    wanted: dict[str, Any] = {
        "classes": classes,
        "words": np.array(["cat", "dog", "bird"])[classes],
        "values": size / 10,
        "pairs": np.stack([size / 10, np.sin(size)], axis=1),
        "none": None,
    }
    fitted = pipeline.make().fit(as_fitted(pipeline.data, inputs), wanted[pipeline.labels])
    options = {id(fitted): dict(pipeline.options)} if is_classifier(fitted) else None
    kinds = {"f": FloatTensorType, "i": Int64TensorType, "O": StringTensorType}
    types = [(name, kinds[array.dtype.kind]([None, array.shape[1]])) for name, array in inputs.items()]
    return fitted, to_onnx(fitted, initial_types=types, options=options, target_opset=OPSETS)


def _columns(*, dense: bool = True) -> Any:
    return compose.ColumnTransformer(
        [
            ("numbers", preprocessing.StandardScaler(), [0, 1]),
            ("colours", preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=not dense),
             [3]),
            ("rest", "passthrough", [2]),
        ]
    )  # fmt: skip


def _imputed_columns() -> Any:
    numbers = make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.MinMaxScaler())
    words = preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return compose.ColumnTransformer(
        [("numbers", numbers, [0, 1]), ("colours", words, [3])], remainder="drop"
    )


def _voters() -> list[tuple[str, Any]]:
    return [
        ("line", linear_model.LogisticRegression()),
        ("tree", tree.DecisionTreeClassifier(max_depth=4, random_state=0)),
        ("bayes", naive_bayes.GaussianNB()),
    ]


_SCALED = preprocessing.StandardScaler
_MAPS = MappingProxyType({"zipmap": True})

PIPELINES = (
    Pipeline("logistic", lambda: make_pipeline(_SCALED(), linear_model.LogisticRegression())),
    Pipeline("logistic-words-maps", lambda: make_pipeline(_SCALED(), linear_model.LogisticRegression()),
             labels="words", options=_MAPS),
    Pipeline("sgd-hinge", lambda: make_pipeline(_SCALED(), linear_model.SGDClassifier(random_state=0))),
    Pipeline("ridge-classifier", lambda: make_pipeline(_SCALED(), linear_model.RidgeClassifier()),
             labels="words"),
    Pipeline("lasso", lambda: make_pipeline(preprocessing.PolynomialFeatures(2), _SCALED(),
             linear_model.Lasso(0.01)), labels="values"),
    Pipeline("poisson", lambda: make_pipeline(preprocessing.MaxAbsScaler(),
             linear_model.PoissonRegressor()), data=COUNTS, labels="values"),
    Pipeline("ridge-two-targets", lambda: make_pipeline(_SCALED(), linear_model.Ridge()), labels="pairs"),
    Pipeline("binned", lambda: make_pipeline(preprocessing.KBinsDiscretizer(4, encode="onehot-dense"),
             linear_model.LinearRegression()), labels="values"),
    Pipeline("decision-tree", lambda: make_pipeline(impute.SimpleImputer(),
             tree.DecisionTreeClassifier(random_state=0)), data=HOLES, labels="words"),
    Pipeline("random-forest", lambda: make_pipeline(_SCALED(),
             ensemble.RandomForestClassifier(20, random_state=0)), labels="words", options=_MAPS),
    Pipeline("extra-trees", lambda: ensemble.ExtraTreesRegressor(20, random_state=0), labels="values"),
    Pipeline("boosting", lambda: make_pipeline(_SCALED(),
             ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0)), labels="words"),
    Pipeline("boosting-values", lambda: ensemble.GradientBoostingRegressor(n_estimators=20, random_state=0),
             labels="values"),
    Pipeline("hist-boosting", lambda: ensemble.HistGradientBoostingClassifier(max_iter=20, random_state=0),
             data=HOLES),
    Pipeline("hist-boosting-values", lambda: ensemble.HistGradientBoostingRegressor(max_iter=20,
             random_state=0), data=HOLES, labels="values"),
    Pipeline("ada-boost", lambda: ensemble.AdaBoostClassifier(n_estimators=10, random_state=0)),
    Pipeline("bagging", lambda: ensemble.BaggingClassifier(n_estimators=5, random_state=0)),
    Pipeline("isolation-forest", lambda: ensemble.IsolationForest(n_estimators=20, random_state=0),
             labels="none"),
    Pipeline("voting-soft", lambda: ensemble.VotingClassifier(_voters(), voting="soft",
             flatten_transform=False)),
    Pipeline("voting-hard-words", lambda: ensemble.VotingClassifier(_voters(), voting="hard",
             flatten_transform=False), labels="words"),
    Pipeline("voting-values", lambda: ensemble.VotingRegressor([("line", linear_model.LinearRegression()),
             ("tree", tree.DecisionTreeRegressor(max_depth=3))]), labels="values"),
    Pipeline("stacking", lambda: ensemble.StackingClassifier(_voters(), cv=3)),
    Pipeline("stacking-values", lambda: ensemble.StackingRegressor([("line", linear_model.Ridge()),
             ("tree", tree.DecisionTreeRegressor(max_depth=3))], cv=3), labels="values"),
    Pipeline("neighbours", lambda: make_pipeline(_SCALED(), neighbors.KNeighborsClassifier())),
    Pipeline("neighbours-weighted-words", lambda: make_pipeline(_SCALED(),
             neighbors.KNeighborsClassifier(7, weights="distance")), labels="words"),
    Pipeline("neighbours-values", lambda: make_pipeline(_SCALED(), neighbors.KNeighborsRegressor()),
             labels="values"),
    Pipeline("neighbours-imputer", lambda: make_pipeline(impute.KNNImputer(n_neighbors=3),
             linear_model.LinearRegression()), data=HOLES, labels="values"),
    Pipeline("k-means", lambda: make_pipeline(_SCALED(), cluster.KMeans(3, n_init=3, random_state=0)),
             labels="none"),
    Pipeline("mixture", lambda: mixture.GaussianMixture(3, random_state=0), labels="none"),
    Pipeline("calibrated-svm", lambda: make_pipeline(_SCALED(),
             calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=3))),
    Pipeline("calibrated-isotonic", lambda: calibration.CalibratedClassifierCV(
             tree.DecisionTreeClassifier(max_depth=3, random_state=0), method="isotonic", cv=3)),
    Pipeline("gaussian-process", lambda: gaussian_process.GaussianProcessRegressor(
             gaussian_process.kernels.RBF(2.0), alpha=0.1, optimizer=None), labels="values"),
    Pipeline("svc", lambda: make_pipeline(_SCALED(), svm.SVC(probability=True, random_state=0)),
             labels="words"),
    Pipeline("svr", lambda: make_pipeline(_SCALED(), svm.SVR()), labels="values"),
    Pipeline("one-class-svm", lambda: make_pipeline(_SCALED(), svm.OneClassSVM(nu=0.1)), labels="none"),
    Pipeline("gaussian-bayes", naive_bayes.GaussianNB, options=_MAPS),
    Pipeline("multinomial-bayes", naive_bayes.MultinomialNB, data=COUNTS, labels="words"),
    Pipeline("bernoulli-bayes", lambda: make_pipeline(preprocessing.Binarizer(threshold=3.0),
             naive_bayes.BernoulliNB()), data=COUNTS),
    Pipeline("mlp", lambda: make_pipeline(_SCALED(),
             neural_network.MLPClassifier((16,), max_iter=150, random_state=0)), labels="words"),
    Pipeline("mlp-values", lambda: make_pipeline(
             preprocessing.QuantileTransformer(n_quantiles=20, random_state=0),
             neural_network.MLPRegressor(hidden_layer_sizes=(16,), max_iter=150, random_state=0)),
             labels="values"),
    Pipeline("discriminant", lambda: make_pipeline(decomposition.PCA(4),
             discriminant_analysis.LinearDiscriminantAnalysis())),
    Pipeline("one-vs-rest-union", lambda: make_pipeline(make_union(decomposition.PCA(2),
             feature_selection.SelectKBest(k=3)), multiclass.OneVsRestClassifier(
             linear_model.LogisticRegression()))),
    Pipeline("two-outputs", lambda: multioutput.MultiOutputRegressor(
             ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0)), labels="pairs"),
    Pipeline("counted-words", lambda: make_pipeline(feature_extraction.text.CountVectorizer(),
             linear_model.LogisticRegression()), data=TEXTS, labels="words"),
    Pipeline("tfidf-pairs-of-words", lambda: make_pipeline(
             feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2)),
             linear_model.LogisticRegression()), data=TEXTS),
    Pipeline("columns-logistic", lambda: make_pipeline(_columns(), linear_model.LogisticRegression()),
             data=MIXED, labels="words", options=_MAPS),
    Pipeline("columns-forest", lambda: make_pipeline(_columns(dense=False),
             ensemble.RandomForestClassifier(10, random_state=0)), data=MIXED),
    Pipeline("imputed-columns", lambda: make_pipeline(_imputed_columns(),
             ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0)), data=MIXED,
             labels="values"),
    Pipeline("power-transformer", lambda: make_pipeline(preprocessing.PowerTransformer(),
             decomposition.TruncatedSVD(3, random_state=0)), labels="none"),
    Pipeline("characters", lambda: make_pipeline(
             feature_extraction.text.TfidfVectorizer(analyzer="char", ngram_range=(1, 2)),
             linear_model.SGDClassifier(random_state=0)), data=TEXTS),
)  # fmt: skip
