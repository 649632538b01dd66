"""Cuts boxes out of a picture and brings them to one size, such as a detector's for what recognises lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

HEIGHT, WIDTH = 32, 128
"""Size of each piece; model.toml has it, too."""


class Predictor:
    """Cutter of boxes."""

    def __init__(self, folder: str) -> None:
        """Take no file of the folder."""

    def sample(self) -> dict[str, npt.NDArray[Any]]:
        """Return a picture with two boxes."""
        boxes = np.array([[10, 10, 200, 40], [10, 60, 300, 90]], np.float32)
        return {"image": np.zeros((480, 640, 3), np.uint8), "boxes": boxes}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``lines``, [boxes, 3, 32, 128] from 0 to 1, of boxes that are not empty, and ``count``.

        A box is left, top, right and bottom, in pixels; what lies outside the picture is cut off.
        """
        picture = Image.fromarray(inputs["image"])
        limits = np.array([picture.width, picture.height] * 2, np.float32)
        boxes = np.clip(np.nan_to_num(inputs["boxes"]), 0, limits).round().astype(int).tolist()
        pieces = [
            np.asarray(picture.crop(box).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR), np.float32) / 255
            for box in boxes
            if box[2] > box[0] and box[3] > box[1]
        ]
        lines = np.array(pieces, np.float32).reshape(-1, HEIGHT, WIDTH, 3).transpose(0, 3, 1, 2)
        return {"lines": lines, "count": np.array([len(pieces)])}
