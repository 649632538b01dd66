"""Splits a text into tokens by ``tokenizer.json``, the format of the package ``tokenizers``.

The file here has one token for each byte. Put your encoder's in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

MOST = 512
"""Most tokens of a text, which is cut there; model.toml has it, too."""


class Predictor:
    """Tokenizer of single texts."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MOST)

    def sample(self) -> dict[str, npt.NDArray[Any]]:
        """Return a text to measure with."""
        return {"text": np.array([b"The quick brown fox jumps over the lazy dog. " * 4])}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``input_ids`` and ``attention_mask``, [1, tokens], and their ``count``, [1, 1]."""
        try:
            text = inputs["text"][0].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the text is not UTF-8: {error}") from error
        encoding = self.tokenizer.encode(text)
        return {
            "input_ids": np.array([encoding.ids], np.int64),
            "attention_mask": np.array([encoding.attention_mask], np.int64),
            "count": np.array([[len(encoding.ids)]]),
        }
