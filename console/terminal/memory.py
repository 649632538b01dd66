"""One worker's memory: a map with a character for each page, who they are, and who was evicted."""

from __future__ import annotations

from rich.text import Text

from mainspring.console.payloads import Eviction, Extent, Memory
from mainspring.console.terminal.lines import Column, ago, cut, heading, table

FREE = "·"
LOADING = "~"
"""A page that a LOAD is writing, whosever it will be."""
_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red", "white")
_MODELS = (
    Column("", 2),
    Column("model", 30),
    Column("pages", 6, right=True),
    Column("state", 9),
    Column("used", 8, right=True),
    Column("extents", 0),
)
_EVICTIONS = (
    Column("ago", 7, right=True),
    Column("model", 26),
    Column("pages", 6, right=True),
    Column("for", 0),
)


def memory_lines(found: Memory, width: int, now_ns: int, *, nth: int = 1, of: int = 1) -> list[Text]:
    """Return the view's lines; the worker is the ``nth`` of ``of``."""
    used = found.pages - found.pages_free
    gb = found.pages * found.page_bytes / 1e9
    title = (
        f"{found.worker} ({nth} of {of}): {used:,} of {found.pages:,} pages used, {found.pages_free:,} free; "
        f"{found.page_bytes >> 20} MiB each, {gb:.1f} GB"
    )
    lines = [heading(title, width), *_map(found, width)]
    lines.append(Text(cut(f"{FREE} free   {LOADING} being loaded   a letter: the model below", width), "dim"))
    lines.append(Text(""))
    extents: list[list[Extent]] = [[] for _ in found.models]
    for extent in found.extents:
        if extent.model >= 0:
            extents[extent.model].append(extent)
    each_model = zip(found.models, extents, found.last_used_ns, strict=True)
    rows = [
        _model(index, name, held, ago(at_ns, now_ns)) for index, (name, held, at_ns) in enumerate(each_model)
    ]
    lines += table(_MODELS, rows, width, [style_of(index) for index in range(len(rows))])
    lines += [Text(""), heading("evicted, newest first", width)]
    if found.evictions:
        lines += table(_EVICTIONS, [_evicted(each, now_ns) for each in found.evictions], width)
    else:
        lines.append(Text("none"))
    return lines


def symbol_of(index: int) -> str:
    """Return the letter of a model; more models than letters share them."""
    return _SYMBOLS[index % len(_SYMBOLS)]


def style_of(index: int) -> str:
    """Return the colour of a model, which only helps the eye: the letter says which it is."""
    return _STYLES[index % len(_STYLES)]


def _map(found: Memory, width: int) -> list[Text]:
    """Return the pages, as many to a line as fit in tens, with the number of the first one before them."""
    digits = len(str(max(0, found.pages - 1)))
    room = max(10, (width - digits - 1) // 11 * 10)
    cells = [cell for extent in found.extents for cell in [_cell(extent)] * extent.count]
    lines = []
    for first in range(0, len(cells), room):
        line = Text(f"{first:>{digits}} ", style="dim")
        for offset, (symbol, style) in enumerate(cells[first : first + room]):
            line.append((" " if offset and offset % 10 == 0 else "") + symbol, style=style)
        lines.append(line)
    return lines


def _cell(extent: Extent) -> tuple[str, str]:
    if extent.state == "loading":
        return LOADING, f"not dim {style_of(extent.model)}"
    if extent.state == "free" or extent.model < 0:
        return FREE, "dim"
    return symbol_of(extent.model), f"not dim {style_of(extent.model)}"


def _model(index: int, model: str, extents: list[Extent], used: str) -> tuple[str, ...]:
    state = "loading" if any(each.state == "loading" for each in extents) else "resident"
    spans = ", ".join(
        f"{each.first}" if each.count == 1 else f"{each.first}-{each.first + each.count - 1}"
        for each in extents
    )
    pages = sum(each.count for each in extents)
    return symbol_of(index), model, f"{pages:,}", state, used, spans


def _evicted(each: Eviction, now_ns: int) -> tuple[str, ...]:
    return ago(each.at_ns, now_ns), each.model, f"{each.pages:,}", each.for_model or "(nothing yet)"
