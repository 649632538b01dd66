"""Reading trace files row by row, plain or gzipped, with errors that name file, line and column."""

from __future__ import annotations

import csv
import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from mainspring.traces.arrival import WorkloadError

GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_CHARACTERS = 1 << 20
"""A longer line is no row of a trace: it is refused before more of it is read."""


class TraceError(WorkloadError):
    """A trace file is missing, damaged or of another schema; the text says where and what would be right."""


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number from 1, cells)`` of every row that is not empty.

    The file's first bytes show whether it is gzipped, not its name. Raises `TraceError`.
    """
    line = 0
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == GZIP_MAGIC
        opener = gzip.open if gzipped else open
        with cast("TextIO", opener(path, "rt", encoding="utf-8", newline="")) as file:
            reader = csv.reader(_lines(path, file))
            for row in reader:
                line = reader.line_num
                if row:
                    yield line, row
    except OSError as error:
        where = f" after line {line}" if line else ""
        raise TraceError(f"{path}: cannot be read{where}: {error.strerror or error}") from error
    except (EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: damaged after line {line}: {error}") from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the file's lines; raise `TraceError` for one that is too long to be a row."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_CHARACTERS + 1)
        if not line:
            return
        if len(line) > MAX_LINE_CHARACTERS:
            raise TraceError(
                f"{path}:{number}: the line is longer than {MAX_LINE_CHARACTERS:,} characters; a trace has a"
                " row on each line"
            )
        yield line


def read_header(path: Path) -> list[str]:
    """Return the cells of the first row, stripped and in lower case; none for an empty file.

    Raises `TraceError`.
    """
    cells = next(read_rows(path), (0, []))[1]
    return [cell.strip().lstrip("\ufeff").lower() for cell in cells]


def check_models(models: tuple[str, ...]) -> None:
    """Raise WorkloadError unless there are models, each once."""
    if not models:
        raise WorkloadError("a workload needs at least one model to send requests to")
    if len(set(models)) != len(models):
        raise WorkloadError("a workload names a model twice; give each model once")
