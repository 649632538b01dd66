"""What became of all files: a table for people, JSON for programs, and the verdict."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx
import onnxruntime

from mainspring.experiments.wild.trial import FAILED, REFUSED, SERVED, SKIPPED, WRONG, Row

ERRATIC = 3.0
"""Durations whose 99th percentile is more than so many times their median are erratic."""
LONGEST_SENTENCE = 300
TABLE, RESULTS = "wild.md", "wild.json"
_COLUMNS = (
    *("file", "from", "status", "how", "rows", "shapes", "answers", "largest difference"),
    *("error p99", "of the median", "p99 / median", "until served", "why"),
)


class Missing(NamedTuple):
    """A source that could not be had."""

    name: str
    why: str


class Report(msgspec.Struct):
    """Everything of one run."""

    rows: list[Row]
    missing: list[Missing]
    when: str
    machine: str


def report_of(rows: list[Row], missing: list[Missing]) -> Report:
    """Return the report, of here and now."""
    machine = (
        f"Python {platform.python_version()}, ONNX Runtime {onnxruntime.__version__}, onnx "
        f"{onnx.__version__}, {platform.machine()}"
    )
    return Report(rows, missing, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), machine)


def is_bad(row: Row) -> bool:
    """Say whether the product did wrong: a refusal is an answer, a wrong answer or none is not."""
    return row.status in (WRONG, FAILED)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return lines that sum up the rows: the share served of all and of each source, and how."""
    lines = []
    sources = dict.fromkeys(source_of(row) for row in rows)
    for source in [*sources, "all"]:
        mine = [row for row in rows if source in (source_of(row), "all") and row.status != SKIPPED]
        if mine:
            served = sum(row.status == SERVED for row in mine)
            lines.append(f"{source}: {served} of {len(mine)} served ({served / len(mine):.0%})")
    hows = Counter(how for row in rows if row.status == SERVED for how in [how_of(row)])
    lines.append("served: " + (", ".join(f"{count} {how}" for how, count in hows.most_common()) or "none"))
    counts = Counter(row.status for row in rows)
    lines.append(", ".join(f"{status}: {counts[status]}" for status in (WRONG, FAILED, REFUSED, SKIPPED)))
    return lines


def source_of(row: Row) -> str:
    """Return the kind of source: packages are one."""
    known = ("made", "onnx, light")
    return next((each for each in known if row.group.startswith(each)), "packages")


def how_of(row: Row) -> str:
    """Return how a file is served, and whether its durations are erratic."""
    erratic = row.spread is not None and row.spread > ERRATIC
    return f"{row.how}, erratic" if erratic else row.how


def markdown(report: Report) -> str:
    """Return the report as a page."""
    rows = sorted(report.rows, key=source_of)
    lines = [
        *("# ONNX files in the wild, as they lie", "", f"{report.when}; {report.machine}", ""),
        *(f"* {line}" for line in summary(report.rows)),
        *(f"* not to be had: {each.name}: {each.why}" for each in report.missing),
        *("", f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"),
        *(f"| {' | '.join(cells)} |" for cells in map(list, map(_cells, rows))),
    ]
    return "\n".join(lines) + "\n"


def write(report: Report, folder: Path) -> None:
    """Write ``wild.md`` and ``wild.json``; whoever reads one meanwhile has all of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {TABLE: markdown(report).encode(), RESULTS: msgspec.json.format(msgspec.json.encode(report))}
    for name, text in texts.items():
        aside = folder / f"{name}.part"
        aside.write_bytes(text)
        aside.rename(folder / name)


def read_report(path: Path) -> Report:
    """Return the report that a run wrote as `RESULTS`; raise `msgspec.DecodeError` for another file."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def _cells(row: Row) -> Iterator[str]:
    answered = row.requests > 0
    yield from (row.name, row.group, row.status, how_of(row))
    yield str(row.most_rows) if row.most_rows else ""
    yield row.shapes
    yield str(row.requests) if answered else ""
    yield f"{row.largest_difference:.1e}" if answered else ""
    yield "" if row.error_p99_ms is None else f"{row.error_p99_ms:.2f} ms"
    yield "" if row.error_p99_part is None else f"{row.error_p99_part:.0%}"
    yield "" if row.spread is None else f"{row.spread:.1f}"
    yield f"{row.load_s:.1f} s"
    yield " ".join(row.sentence.split()).replace("|", "\\|")[:LONGEST_SENTENCE]
