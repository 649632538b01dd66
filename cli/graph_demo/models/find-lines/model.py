"""Finds the lines of a page in a detector's map, and cuts each out in the size that a recogniser takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

HEIGHT, WIDTH = 48, 320
"""Size of each line; model.toml has it, too."""
MOST = 16
"""Lines of a page; model.toml has it, too."""
SEEN = 0.3
"""Value of the map from which on there is text."""
GROWTH = 1.6
"""Growth of each box: a detector of this kind (DB) sees the inner part of each line."""
LEAST = 3
"""Pixels that a line has at least in both directions."""

Box = tuple[int, int, int, int]


class Predictor:
    """Finder of lines."""

    def __init__(self, folder: str) -> None:
        """Take no file of the folder."""

    def sample(self) -> dict[str, npt.NDArray[Any]]:
        """Return a page with one line."""
        seen = np.zeros((1, 192, 320), np.float32)
        seen[0, 40:60, 20:200] = 1
        return {"data": np.zeros((3, 192, 320), np.float32), "seen": seen}

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return ``lines``, from top to bottom, and ``boxes``: left, top, right, bottom."""
        page = Image.fromarray(((inputs["data"].transpose(1, 2, 0) + 1) * 127.5).round().astype(np.uint8))
        boxes = [_grown(box, page.size) for box in _blobs(inputs["seen"][0] > SEEN)][:MOST]
        lines = np.zeros((len(boxes), 3, HEIGHT, WIDTH), np.float32)
        for line, box in zip(lines, boxes, strict=True):
            width = min(WIDTH, max(1, round((box[2] - box[0]) * HEIGHT / (box[3] - box[1]))))
            cut = page.crop(box).resize((width, HEIGHT), Image.Resampling.BILINEAR)
            line[:, :, :width] = np.asarray(cut, np.float32).transpose(2, 0, 1) / 127.5 - 1
        return {"lines": lines, "boxes": np.array(boxes, np.float32).reshape(-1, 4)}


def _grown(box: Box, size: tuple[int, int]) -> Box:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    by = round(width * height * GROWTH / (2 * (width + height)))
    return max(0, left - by), max(0, top - by), min(size[0], right + by), min(size[1], bottom + by)


def _blobs(seen: npt.NDArray[np.bool_]) -> list[Box]:
    """Return the box of each connected part of what is seen, from top to bottom."""
    boxes: list[list[int]] = []
    above: list[tuple[int, int, int]] = []
    names: list[int] = []  # Of each part, the part that it turned out to be one with.

    def root(name: int) -> int:
        while names[name] != name:
            name = names[name]
        return name

    for y, row in enumerate(seen):
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0)).tolist()
        here: list[tuple[int, int, int]] = []
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            touched = sorted({root(name) for begin, end, name in above if begin <= right and left <= end})
            if not touched:
                touched = [len(names)]
                names.append(touched[0])
                boxes.append([left, y, right, y + 1])
            box = boxes[touched[0]]
            for other in touched[1:]:
                names[other] = touched[0]
                box[:] = *map(min, box[:2], boxes[other][:2]), *map(max, box[2:], boxes[other][2:])
            box[:] = min(box[0], left), box[1], max(box[2], right), y + 1
            here.append((left, right, touched[0]))
        above = here
    kept = [(box[0], box[1], box[2], box[3]) for name, box in enumerate(boxes) if names[name] == name]
    return sorted(
        (box for box in kept if min(box[2] - box[0], box[3] - box[1]) >= LEAST),
        key=lambda box: (box[1], box[0]),
    )
