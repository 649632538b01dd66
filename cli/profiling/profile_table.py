"""Measured profiles as the table of Clockwork's appendix A: for people as Markdown, for programs as CSV.

The CSV has the columns that `mainspring.compiler.artifact.profiles` reads, so a table that was measured on
one device can be emulated and simulated anywhere.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from mainspring.cli.profiling.profiling import Measured
from mainspring.compiler.choosing.durations import Timing

FAMILIES = {
    "alexnet": "AlexNet",
    "bert": "BERT",
    "densenet": "DenseNet",
    "inception": "Inception",
    "mobilenet": "MobileNet",
    "resnet": "ResNet",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg": "VGG",
    "zfnet": "ZFNet",
}
"""Family of a model by the beginning of its name."""
OTHER_FAMILY = "other"

_KB, _MB, _MS = 1e3, 1e6, 1e6


def family_of(measured: Measured) -> str:
    """Return the family of a model by the name of its architecture, of its file, or its own."""
    for name in (Path(measured.source).stem, *measured.models):
        for beginning, family in FAMILIES.items():
            if name.lower().startswith(beginning):
                return family
    return OTHER_FAMILY


def titles(rows: Sequence[Measured]) -> list[str]:
    """Return what each row's model is called: the zoo's architecture, or the first model's own name if that
    would be ambiguous or there is none.
    """
    sources = [row.source for row in rows]
    return [
        row.source
        if sources.count(row.source) == 1 and row.models[0].startswith(row.source) and row.source
        else row.models[0]
        for row in rows
    ]


def batch_sizes_of(rows: Sequence[Measured]) -> list[int]:
    """Return every batch size that a row has, ascending."""
    return sorted({size for row in rows for size in row.infer})


def csv_table(rows: Sequence[Measured]) -> str:
    """Return the table as CSV; durations are medians in ms, of four significant digits at least."""
    sizes = batch_sizes_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = ("input_kb", "output_kb", "weights_mb", "transfer_ms")
    writer.writerow(["family", "model", *numbers, *(f"b{size}_ms" for size in sizes)])
    for row, title in zip(rows, titles(rows), strict=True):
        durations = [_number(_median_ms(row.infer.get(size))) for size in sizes]
        writer.writerow([family_of(row), title, *map(_number, _sizes(row)), *durations])
    return text.getvalue()


def terminal_table(rows: Sequence[Measured]) -> Table:
    """Return the table for a terminal, and how far the 99th percentile is from the median at its worst.

    Engines have a column if there are several.
    """
    sizes = batch_sizes_of(rows)
    several = len({row.engine for row in rows}) > 1
    table = Table(box=None, pad_edge=False)
    for column in ("model", "engine")[: 1 + several]:
        table.add_column(column, no_wrap=True)
    for column in ("in kB", "out kB", "MB", "LOAD", *(f"B{size}" for size in sizes), "p99/p50"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, name in zip(rows, titles(rows), strict=True):
        spread = max(timing.spread for timing in (row.load, *row.infer.values()))
        durations = [_short(_median_ms(row.infer.get(size))) for size in sizes]
        names = (name, row.engine)[: 1 + several]
        table.add_row(*names, *map(_short, _sizes(row)), *durations, f"{spread:.2f}")
    return table


def heading(rows: Sequence[Measured]) -> str:
    """Return what `terminal_table` shows."""
    engines = " and ".join(sorted({row.engine for row in rows}))
    return f"Medians in ms on this machine, engine {engines}"


def _sizes(row: Measured) -> tuple[float, float, float, float | None]:
    return (
        row.input_bytes / _KB,
        row.output_bytes / _KB,
        row.weights_bytes / _MB,
        _median_ms(row.load),
    )


def _median_ms(timing: Timing | None) -> float | None:
    return None if timing is None else timing.p50_ns / _MS


def _number(value: float | None) -> str:
    """Return a number that reads back; empty for None."""
    return "" if value is None else f"{value:.6g}"


def _short(value: float | None) -> str:
    """Return a number as the paper's table has them: two decimals, fewer where they say nothing."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
