"""Names the five likeliest classes by ``labels.txt``, a line for each; a class without a line is a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

COUNT = 5
"""Classes that are named; model.toml has it, too."""


class Predictor:
    """Namer of classes."""

    def __init__(self, folder: str) -> None:
        self.labels = Path(folder, "labels.txt").read_text(encoding="utf-8").splitlines()

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``labels`` and ``probabilities`` (softmax of the scores), [rows, 5], the likeliest first.

        Of fewer than five classes the rest are empty names with the probability 0.
        """
        scores = inputs["scores"].astype(np.float64)
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = exponents / exponents.sum(axis=1, keepdims=True)
        # Of equal ones the first: rows may not depend on how many there are.
        best = np.argsort(-shares, axis=1, kind="stable")[:, :COUNT]
        rows = len(scores)
        labels = np.full((rows, COUNT), "", object)
        probabilities = np.zeros((rows, COUNT), np.float32)
        labels[:, : best.shape[1]] = [[self.name(index) for index in row] for row in best]
        probabilities[:, : best.shape[1]] = np.take_along_axis(shares, best, axis=1)
        return {"labels": labels, "probabilities": probabilities}

    def name(self, index: int) -> str:
        """Return what a class is called."""
        return self.labels[index] if index < len(self.labels) else str(index)
