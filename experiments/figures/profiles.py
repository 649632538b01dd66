"""The table of model profiles that an experiment serves: rows of Clockwork's appendix A."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import typer

from mainspring.compiler.artifact.profiles import COLUMNS, read_profile_table
from mainspring.experiments.figures.paper import RESNET50_ROW
from mainspring.messages.model import ModelSpec

RESNET50 = "resnet50_v2"
TUNED = "tuned"


class ProfilesMissing(ValueError):
    """An experiment needs the whole table of profiles and there is none."""


def resnet50_table(path: Path, io_kb: float | None = None) -> str:
    """Return the CSV text of ResNet-50 alone; of the paper's own line where there is no file at ``path``.

    With ``io_kb`` its tensors are of that size instead.
    """
    if path.is_file():
        return _chosen(path, (RESNET50,), io_kb)
    typer.echo(f"there is no table of profiles at {path} (--profiles): ResNet-50 is of the paper's table 1")
    names = ("family", *COLUMNS)
    return _written([dict(zip(names, RESNET50_ROW.split(","), strict=True))], io_kb)


def varieties_table(path: Path, io_kb: float | None = None) -> str:
    """Return the CSV text of the 61 varieties; raise `ProfilesMissing` where there is no file at ``path``."""
    if not path.is_file():
        raise ProfilesMissing(
            f"there is no table of profiles at {path}: name a CSV file in the columns of the paper's table 1"
            f" ({','.join(COLUMNS)}) with --profiles"
        )
    return _chosen(path, None, io_kb)


def read_models(table: str, copies: int) -> list[ModelSpec]:
    """Return ``copies`` models of each row, called as a local cluster calls them."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        path = Path(folder) / "profiles.csv"
        path.write_text(table, encoding="utf-8")
        return read_profile_table(path, copies)


def model_names(table: str, copies: int) -> list[str]:
    """Return the names of `read_models`: row by row, and copy by copy within a row."""
    rows = [row["model"] for row in csv.DictReader(io.StringIO(table))]
    return [row if copies == 1 else f"{row}-{copy}" for row in rows for copy in range(1, copies + 1)]


def _chosen(path: Path, names: tuple[str, ...] | None, io_kb: float | None) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    chosen = [row for row in rows if (row["model"] in names if names else TUNED not in row["model"])]
    if not chosen:
        raise ProfilesMissing(
            f"{path} has no row {' or '.join(names or ())}; name another table with --profiles"
        )
    return _written(chosen, io_kb)


def _written(rows: list[dict[str, str]], io_kb: float | None) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        sizes = {} if io_kb is None else {"input_kb": f"{io_kb:g}", "output_kb": f"{io_kb:g}"}
        writer.writerow(row | sizes)
    return out.getvalue()
