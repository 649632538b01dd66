"""Splits texts into tokens by ``tokenizer.json``, the format of the package ``tokenizers``.

The file here has one token for each byte. Put your encoder's in its place.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer


class Predictor:
    """Tokenizer of single texts."""

    def __init__(self, folder: str) -> None:
        described = tomllib.loads(Path(folder, "model.toml").read_text())
        self.most = described["outputs"][0]["shape"][0]
        """Tokens that a text is cut to."""
        file = str(Path(folder, "tokenizer.json"))
        self.tokenizer, self.cut = Tokenizer.from_file(file), Tokenizer.from_file(file)
        self.tokenizer.no_truncation()
        self.cut.enable_truncation(self.most)
        for each in (self.tokenizer, self.cut):
            each.no_padding()

    def sample(self) -> dict[str, npt.NDArray[Any]]:
        """Return a text to measure with."""
        return {"text": np.array([b"The quick brown fox jumps over the lazy dog. " * 4])}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``input_ids`` and ``attention_mask``, [rows, most], filled with 0, and the ``count`` of each
        text's tokens, [rows, 1], also of those that were cut off."""
        try:
            texts = [text.decode() for text in inputs["text"].tolist()]
        except UnicodeDecodeError as error:
            raise ValueError(f"the text is not UTF-8: {error}") from error
        ids, mask = np.zeros((len(texts), self.most), np.int64), np.zeros((len(texts), self.most), np.int64)
        counts = np.zeros((len(texts), 1), np.int64)
        for row, encoding in enumerate(self.tokenizer.encode_batch(texts)):
            counts[row] = len(encoding.ids)
            if len(encoding.ids) > self.most:
                encoding = self.cut.encode(texts[row])  # noqa: PLW2901
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = encoding.attention_mask
        return {"input_ids": ids, "attention_mask": mask, "count": counts}
