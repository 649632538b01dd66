"""Spells lines: the likeliest character of each position, without repetitions and blanks (CTC)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Predictor:
    """Speller by the characters of ``characters.txt``, one a line; the first score is that of a blank."""

    def __init__(self, folder: str) -> None:
        """Read the characters; behind them comes the space."""
        text = Path(folder, "characters.txt").read_text(encoding="utf-8")
        self._characters = ["", *text.removesuffix("\n").split("\n"), " "]

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``text`` of each row, as UTF-8."""
        best = inputs["scores"].argmax(axis=2)
        kept = (best != 0) & (np.diff(best, axis=1, prepend=-1) != 0)
        texts = [
            "".join([self._characters[index] for index in row[keep].tolist()])
            for row, keep in zip(best, kept, strict=True)
        ]
        return {"text": np.array([text.encode() for text in texts], object)}
