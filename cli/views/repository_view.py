"""A model repository's index as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from mainspring.messages.repository import IndexEntry, ModelState

_COLOURS = {
    ModelState.READY: "green",
    ModelState.LOADING: "yellow",
    ModelState.UNLOADING: "yellow",
    ModelState.UNAVAILABLE: "red",
}


def print_index(entries: Sequence[IndexEntry], console: Console | None = None) -> None:
    """Print the models, one line for each version, and how many are in which state."""
    console = console or Console(highlight=False)
    if not entries:
        console.print("the repository holds no model")
        return
    made = Table(box=None, pad_edge=False)
    made.add_column("model", no_wrap=True)
    made.add_column("version", justify="right")
    made.add_column("state", no_wrap=True)
    made.add_column("why", overflow="fold")
    for each in entries:
        made.add_row(each.name, each.version or "-", each.state, each.reason, style=_style(each))
    console.print(made)
    counts = {state: sum(each.state is state for each in entries) for state in ModelState}
    console.print(", ".join(f"{count:,} {state.lower()}" for state, count in counts.items() if count))


def _style(entry: IndexEntry) -> str:
    """Return the row's colour: what is served well needs none."""
    return "" if entry.state is ModelState.READY and not entry.reason else _COLOURS[entry.state]
