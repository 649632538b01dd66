"""Output of every benchmark: a table with the target beside what was measured, and the same as JSON.

A target is a limit with a direction. Figures without one are there to explain those that have one.
"""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

OUTPUT = Path("out/bench")
_WIDTH = 150


class Figure(msgspec.Struct, frozen=True):
    """One measured number."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if the target was reached; None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


class Machine(msgspec.Struct, frozen=True):
    """The machine and the time of a measurement."""

    date: str
    machine: str
    cores: int
    kernel: str
    python: str
    load_average: float
    """Over the last minute, when the measurement ended: what it took itself is in it."""


def this_machine() -> Machine:
    """Return what a reader needs to judge a figure of this machine."""
    return Machine(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=_processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        load_average=round(os.getloadavg()[0], 2),
    )


def publish(name: str, title: str, figures: list[Figure], output: Path = OUTPUT, **more: Any) -> Path:
    """Print the table, write ``output``/``name``.json, and return its path; ``more`` goes into the file."""
    machine = this_machine()
    path = output / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"title": title, "machine": machine, "figures": figures, **more}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fields, enc_hook=float)) + b"\n")
    console = wide_console()
    console.print(table(title, figures))
    console.print(
        f"{machine.machine}, {machine.cores} cores, load {machine.load_average}, {machine.date}; {path}",
        highlight=False,
    )
    return path


def wide_console() -> Console:
    """Return a console that does not cut tables short where it writes into a file."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def table(title: str, figures: list[Figure]) -> Table:
    """Return the figures as a table, one row each."""
    made = Table(title=title, title_justify="left")
    for column, justify in (("what", "left"), ("target", "right"), ("measured", "right"), ("", "left")):
        # Only what explains may be wrapped.
        made.add_column(column, justify="right" if justify == "right" else "left", no_wrap=bool(column))
    for each in figures:
        if each.target is None:
            target, colour = "", ""
        else:
            target = f"{'>=' if each.at_least else '<='} {each.target:g} {each.unit}"
            colour = "[green]" if each.met else "[red]"
        made.add_row(each.name, target, f"{colour}{each.value:.4g} {each.unit}", each.note)
    return made


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
