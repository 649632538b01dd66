"""Opens the picture of a page: a PNG or JPEG file becomes numbers from -1 to 1, all in one size."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

HEIGHT, WIDTH = 192, 320
"""Size of each page; model.toml has it, too."""


class Predictor:
    """Opener of pages."""

    def __init__(self, folder: str) -> None:
        """Take no file of the folder."""

    def sample(self) -> dict[str, npt.NDArray[Any]]:
        """Return a white page."""
        file = io.BytesIO()
        Image.new("RGB", (WIDTH, HEIGHT), "white").save(file, "PNG")
        return {"page": np.array([file.getvalue()])}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``data``, [rows, 3, 192, 320]; raise ValueError for a file that is not a picture."""
        return {"data": np.stack([_opened(bytes(file)) for file in inputs["page"]])}


def _opened(file: bytes) -> npt.NDArray[np.float32]:
    try:
        with Image.open(io.BytesIO(file)) as picture:
            whole = picture.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"the page can't be opened as a picture: {error}") from None
    if whole.size != (WIDTH, HEIGHT):
        whole = whole.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    return np.asarray(whole, np.float32).transpose(2, 0, 1) / 127.5 - 1
