"""Prints the reports in out/experiments as Markdown, for docs/experiments.md.

``python -m mainspring.experiments.figures.tables [FOLDER]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.experiments.figures.options import OUTPUT
from mainspring.experiments.figures.report import Report


def read_report(path: Path) -> Report:
    """Read what an experiment wrote; raise ValueError naming the file if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: is not a report of an experiment: {error}") from None


def main(folder: Annotated[Path, typer.Argument(help="Where the JSON files are.")] = OUTPUT) -> None:
    """Print every report of a folder."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(f"there is no report in {folder}; `make experiments` writes them")
    for path in paths:
        typer.echo(read_report(path).text() + "\n")


if __name__ == "__main__":
    typer.run(main)
