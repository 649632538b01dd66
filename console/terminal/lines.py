"""Lines of text that fit a width: columns, bars, sparklines and numbers for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"
NOTHING = "-"
"""Text in place of a number that there is not."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    title: str
    width: int
    """Width in cells; the last column of a table takes the rest if this is 0."""
    right: bool = False
    """Numbers stand at the right."""


def cut(text: str, width: int, *, right: bool = False) -> str:
    """Return a text that takes exactly ``width`` cells; what does not fit ends in an ellipsis."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, max(0, width))
    return text.rjust(width - cell_len(text) + len(text)) if right else set_cell_size(text, width)


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int, styles: Sequence[str] = ()
) -> list[Text]:
    """Return a header and a line for each row; columns that do not fit the width are left out at the right.

    ``styles`` are those of the rows; rows beyond them have none.
    """
    shown = _fitting(columns, width)
    titles = " ".join(cut(column.title, wide, right=column.right) for column, wide in shown)
    found = [Text(cut(titles, width), style="bold")]
    for index, row in enumerate(rows):
        cells = zip(shown, row, strict=False)
        line = " ".join(cut(cell, wide, right=column.right) for (column, wide), cell in cells)
        found.append(Text(cut(line, width), style=styles[index] if index < len(styles) else ""))
    return found


def _fitting(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    shown: list[tuple[Column, int]] = []
    left = width
    for column in columns:
        wide = column.width or max(8, left)
        if wide > left and shown:
            break
        shown.append((column, min(wide, left)))
        left -= wide + 1
    return shown


def bar(share: float, width: int) -> str:
    """Return a share from 0 to 1 as a bar."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    partial = " ▏▎▍▌▋▊▉"[rest].strip()
    return ("█" * full + partial).ljust(width, "·")


def sparkline(values: Sequence[float], width: int, top: float) -> str:
    """Return the newest numbers as little columns; ``top`` is a full one."""
    newest = values[-width:]
    scale = 8 / top if top > 0 else 0.0
    return "".join(_BLOCKS[min(8, max(0, round(value * scale)))] for value in newest)


def number(value: float | None, digits: int = 1) -> str:
    """Return a number with separators; `NOTHING` for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds with about three figures."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """Return a share in percent; one that is not whole is never shown as 100."""
    if share is None:
        return NOTHING
    text = f"{100 * share:.1f}"
    return "99.9" if text == "100.0" and share < 1 else text


def ago(at_ns: int | None, now_ns: int) -> str:
    """Return how long something is past."""
    if at_ns is None:
        return NOTHING
    seconds = (now_ns - at_ns) / 1e9
    if seconds < 60:
        return f"{max(0.0, seconds):.1f}s"
    return f"{seconds / 60:.0f}min" if seconds < 3600 else f"{seconds / 3600:.1f}h"


def heading(text: str, width: int) -> Text:
    """Return the title of a part."""
    return Text(cut(text, width), style="bold underline")
