"""Write ten estimators of scikit-learn as ONNX files, by skl2onnx with its default options.

``python export_estimators.py FOLDER``, in an environment that has both; it imports nothing of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.cluster import KMeans
from sklearn.ensemble import GradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

ROWS, COLUMNS = 200, 6
OPSETS = {"": 18, "ai.onnx.ml": 3}
"""Which every release of skl2onnx that exports these estimators knows."""


def main(folder: str) -> None:
    """Train on drawn data and export."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)
    estimators = {
        "logistic-regression": LogisticRegression(),
        "random-forest": RandomForestClassifier(20, random_state=0),
        "svc": SVC(probability=True, random_state=0),
        "mlp": MLPClassifier((16,), max_iter=200, random_state=0),
        "k-neighbours": KNeighborsClassifier(),
        "k-means": KMeans(3, n_init=3, random_state=0),
        "isolation-forest": IsolationForest(n_estimators=20, random_state=0),
        "scaler-and-boosting": make_pipeline(StandardScaler(), GradientBoostingClassifier(random_state=0)),
    }
    for name, estimator in estimators.items():
        _write(folder, name, to_onnx(estimator.fit(x, y), x[:1], target_opset=OPSETS))
    names = np.array(["cat", "dog", "bird"])[y]
    model = LogisticRegression().fit(x, names)
    _write(folder, "string-labels", to_onnx(model, x[:1], target_opset=OPSETS))
    texts = ["a cat sat", "the dog ran far", "birds sing", "the cat ran"] * 10
    model = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, [0, 1, 2, 0] * 10)
    kinds = [("text", StringTensorType([None]))]
    _write(folder, "text", to_onnx(model, initial_types=kinds, target_opset=OPSETS))


def _write(folder: str, name: str, model: object) -> None:
    Path(folder, f"{name}.onnx").write_bytes(model.SerializeToString())  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[1])
