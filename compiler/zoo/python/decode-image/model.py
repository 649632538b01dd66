"""Decodes JPEG and PNG, resizes, crops the middle and normalises, as networks trained on ImageNet want it."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

SIDE = 224
"""Height and width of the output; model.toml has it, too."""
SHORT = 256
"""The shorter side that a picture is resized to, of whose middle `SIDE` by `SIDE` stay."""
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
MOST_PIXELS = 40_000_000
"""Pixels of the largest picture: a small file may claim any number."""


class Predictor:
    """Decoder of pictures."""

    def __init__(self, folder: str) -> None:
        """Take no file of the folder."""

    def sample(self) -> dict[str, npt.NDArray[np.bytes_]]:
        """Return a picture to measure with."""
        file = io.BytesIO()
        pixels = np.add.outer(np.arange(480), np.arange(640)).astype(np.uint8)
        Image.fromarray(pixels).convert("RGB").save(file, "JPEG")
        return {"image": np.array([file.getvalue()])}

    def predict(self, inputs: dict[str, npt.NDArray[np.bytes_]]) -> dict[str, npt.NDArray[np.float32]]:
        """Return ``data``, [rows, 3, 224, 224]."""
        return {"data": np.stack([decoded(content) for content in inputs["image"]])}


def decoded(content: bytes) -> npt.NDArray[np.float32]:
    """Return a picture as [3, height, width]; raise ValueError, which the client gets, if it is none."""
    try:
        picture: Image.Image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        if picture.width * picture.height > MOST_PIXELS:
            raise ValueError(f"the picture has {picture.width} x {picture.height} pixels, which is too many")
        # A JPEG decoder can leave out what a smaller picture does not need.
        picture.draft("RGB", (SHORT, SHORT))
        picture = picture.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError("the image is neither a JPEG nor a PNG file") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the image can't be decoded: {error}") from error
    # Only what stays is resized: the rest of a very wide picture could be any number of pixels.
    side = min(picture.size) * SIDE / SHORT
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    box = (left, top, left + side, top + side)
    cropped = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box), np.float32)
    return ((cropped / 255 - MEAN) / DEVIATION).transpose(2, 0, 1).astype(np.float32)
