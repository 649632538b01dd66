"""The paper's numbers beside ours: as a table on the console and as data."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from mainspring.experiments.figures.paper import Fact


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity: of the paper, if it names it, and of each policy that was run."""

    name: str
    unit: str
    ours: dict[str, float | None]
    """By policy; None where there was nothing to count."""
    paper: Fact | None = None
    independent: float | None = None
    """Of the independent simulation in `paper.INDEPENDENT_FIGURE5`."""


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
