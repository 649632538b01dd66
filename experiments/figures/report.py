"""Report of every experiment: its numbers beside the paper's, and on which machine they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.bench.report import Machine
from mainspring.experiments.figures.options import OUTPUT
from mainspring.experiments.figures.paper import Fact


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity: of the paper, if it names it, and of each policy that was run."""

    name: str
    unit: str
    ours: dict[str, float | None]
    paper: Fact | None = None
    independent: float | None = None


def comparison_table(title: str, lines: Sequence[Line]) -> Table:
    """Return the table: the paper, then each policy."""
    made = Table(title=title, title_justify="left")
    made.add_column("what", no_wrap=True)
    made.add_column("paper", justify="right", no_wrap=True)
    checked = any(line.independent is not None for line in lines)
    if checked:
        made.add_column("independent", justify="right", no_wrap=True)
    policies = list(dict.fromkeys(policy for line in lines for policy in line.ours))
    for policy in policies:
        made.add_column(policy, justify="right", no_wrap=True)
    made.add_column("of the paper", no_wrap=True)
    for line in lines:
        cells = [line.name, line.paper.text() if line.paper else ""]
        if checked:
            cells.append(number(line.independent, line.unit))
        cells += [number(line.ours.get(policy), line.unit) for policy in policies]
        made.add_row(*cells, line.paper.where if line.paper else "")
    return made


def markdown(lines: Sequence[Line]) -> str:
    """Return the same as a table in Markdown."""
    policies = list(dict.fromkeys(policy for line in lines for policy in line.ours))
    checked = any(line.independent is not None for line in lines)
    head = ["", "paper", *(["independent"] if checked else []), *policies]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        paper = line.paper.text() if line.paper else ""
        middle = [number(line.independent, line.unit)] if checked else []
        ours = [number(line.ours.get(policy), line.unit) for policy in policies]
        rows.append([line.name, paper, *middle, *ours])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def number(value: float | None, unit: str) -> str:
    """Return a value with its unit, to four digits and without an exponent."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 else 3 if unit == "%" else 2 if abs(value) < 100 else 1
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}".rstrip()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``NAME.json`` that all experiments have in common; each adds what it measured."""

    name: str
    title: str
    form: str
    """``simulated`` or ``live``, and ``short`` or ``full``, or the engine and its device."""
    notes: list[str]
    machine: Machine
    took_s: float
    lines: list[Line]

    def text(self) -> str:
        """Return it as a section of Markdown."""
        when = f"{self.form}; {self.machine.date}, {self.took_s:g} s on {self.machine.cores} cores"
        return "\n\n".join([f"## {self.title}", when, markdown(self.lines), *self.notes])

    def show(self, stem: Path, console: Console) -> None:
        """Print it, with the files ``stem.json`` and ``stem.png`` that go with it."""
        console.print(comparison_table(f"{self.title} ({self.form})", self.lines))
        for note in self.notes:
            console.print(f"  {note}", highlight=False)
        where = f"{self.machine.machine}, {self.machine.cores} cores, {self.machine.date}"
        console.print(f"  {where}, {self.took_s:g} s; {stem}.json, .png", highlight=False)


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
