"""Figures of panels in the house style, written as PNG."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from mainspring.telemetry.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY

PANEL_INCHES = (6.4, 3.2)
DPI, COLOURS = 80, 96
"""Keep a page of panels below 150 KB."""

LOOKS: dict[str, tuple[str, str, str]] = {
    "mainspring": (BLUE, "-", "o"),
    "clockwork": (ORANGE, "--", "s"),
    "fifo": (GREEN, "-.", "^"),
    "clipper": (PURPLE, ":", "D"),
}
"""Colour, dash and marker of the policies that are drawn most."""
_OTHERS = ((SKY, "-", "v"), (RED, "--", "P"), (GREY, ":", "X"), (BLACK, "-.", "*"))


def look(policy: str, policies: tuple[str, ...]) -> tuple[str, str, str]:
    """Return colour, dash and marker of a policy; the same policy looks the same in every figure."""
    if policy in LOOKS:
        return LOOKS[policy]
    others = [name for name in policies if name not in LOOKS]
    return _OTHERS[others.index(policy) % len(_OTHERS)]


class Page:
    """A figure of panels under one title."""

    def __init__(self, title: str, rows: int, columns: int) -> None:
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, hspace=0.03, wspace=0.03)
        size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.5)
        self.figure = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(self.figure)
        self.figure.suptitle(title, fontsize=15, fontweight="bold", color=BLACK)
        self._grid = self.figure.add_gridspec(rows, columns)

    def panel(self, row: int, column: int, *, wide: bool = False) -> Axes:
        """Return the axes of one place; ``wide`` takes the rest of the row."""
        place = self._grid[row, column:] if wide else self._grid[row, column]
        axes: Axes = self.figure.add_subplot(place)
        return axes

    def share_x(self, left: float, right: float) -> None:
        """Let all panels show the same stretch of their x axes."""
        for axes in self.figure.axes:
            axes.set_xlim(left, right)

    def save(self, path: Path) -> None:
        """Write the page; it appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=DPI, facecolor="white")
        image = Image.open(drawn).convert("RGB").quantize(COLOURS)
        try:
            image.save(temporary, format="png", optimize=True)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def known(xs: list[float], ys: list[float | None]) -> tuple[list[float], list[float]]:
    """Return the points that have a value."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    return [x for x, _ in points], [y for _, y in points]
