"""What was possible, on the terminal: its progress, and why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mainspring.simulator.cluster import Cluster
    from mainspring.simulator.run import SimulatedRun
    from mainspring.simulator.spec import SimulationSpec

Bound = Annotated[
    bool | None,
    typer.Option(
        "--bound/--no-bound",
        help="Say what share was reached of what was possible. By default if that takes seconds.",
    ),
]


def check_bound(spec: SimulationSpec, asked: bool | None) -> None:
    """Raise `run.NoBound` if a bound was asked for that there is not."""
    from mainspring.simulator.run import NO_BOUND, NoBound, closed_under_deadlines

    if asked and closed_under_deadlines(spec):
        raise NoBound(NO_BOUND)


def bounded_run(run: SimulatedRun, cluster: Cluster, asked: bool | None) -> SimulatedRun:
    """Return a run that says what was possible; say why if that was left out unasked."""
    from mainspring.simulator.bound.possible import deadlines
    from mainspring.simulator.run import NO_BOUND, bounded, closed_under_deadlines

    with shown() as progress:
        run = bounded(run, cluster, asked=asked, progress=progress)
    if run.summary.possible is None and asked is None:
        if closed_under_deadlines(run.spec):
            typer.echo(NO_BOUND, err=True)
        else:
            tell_left_out(deadlines(run.records))
    return run


@contextmanager
def shown() -> Iterator[Callable[[float], None]]:
    """Show which part of the bound is computed, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("what was possible"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share: progress.update(task, completed=share)


def tell_left_out(requests: int) -> None:
    """Say that the bound was left out because there are too many requests, and how to get it."""
    if requests:
        typer.echo(
            f"what was possible was left out, for {requests:,} requests take a while; --bound computes it",
            err=True,
        )
