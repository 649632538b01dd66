"""What every experiment reports: its numbers beside the paper's, and on which machine they were measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from mainspring.experiments.bench.report import Machine
from mainspring.experiments.figures.comparison import Line, comparison_table, markdown


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
