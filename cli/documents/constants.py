"""Prints the default policy's constants as a table, from their docstrings."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import mainspring


def constants_table() -> str:
    """Return the table in Markdown; raise ValueError for a constant whose docstring lacks unit or origin."""
    lines = [
        "| constant | value | unit | what it is | origin | with a neighbour |",
        "|---|---|---|---|---|---|",
    ]
    body = ast.parse(_SOURCE).body
    for node, after in pairwise(body):
        match node, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if value is not None:
                lines.append(_row(name, str(ast.get_source_segment(_SOURCE, value)), " ".join(text.split())))
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                raise ValueError(f"{name} has no docstring")
    return "\n".join(lines)


def _row(name: str, value: str, text: str) -> str:
    what, found_unit, rest = text.partition(" Unit: ")
    unit, found_origin, rest = rest.partition(". Origin: ")
    origin, _, neighbours = rest.removesuffix(".").partition(". Neighbours: ")
    if not (found_unit and found_origin):
        raise ValueError(f"{name}'s docstring must end with its unit and its origin")
    return f"| `{name}` | {value} | {unit} | {what} | {origin} | {neighbours or '-'} |"


# The source, also where the module is imported compiled.
_SOURCE = (Path(mainspring.__file__).parent / "scheduler/policies/mainspring/constants.py").read_text("utf-8")

if __name__ == "__main__":
    print(constants_table())
