"""The served models and a repository's index as tables; of served models one row for each, from two polls."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from mainspring.messages.model import ModelSpec
from mainspring.messages.repository import IndexEntry, ModelState
from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.repository.recipe import SEPARATOR

if TYPE_CHECKING:
    from mainspring.client.client import Client

LONG_NAME = 20
"""Characters of a name beyond which the table has no durations, so that it fits 80 columns."""
SHOWN_WORKERS = 3
"""Workers of a model that are named; more are counted."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one poll."""

    model: str
    pages: int
    resident_on: tuple[str, ...]
    prepared_on: tuple[str, ...]
    failed_on: tuple[str, ...]
    queued: int
    infer_ms: dict[str, dict[int, float]]
    """Duration of INFER by device kind and batch size, as profiled when it was compiled."""
    finished: int
    """Requests executed by their deadline since the last poll, like all that follow."""
    late: int
    rejected: int
    goodput_share: float | None
    """Share of what was executed by its deadline for any model; None if nothing was."""
    goodput_per_s: float | None
    """None at the first poll."""
    erratic: bool = False
    """True if how long its INFERs take differs too much for any estimate."""
    verified: bool = True
    """False if it is served on the operator's word, compared with nothing."""
    outliers: int = 0
    """INFERs and LOADs that took so much longer than expected that no estimate followed one alone; since the
    model was added."""


def public_name(name: str) -> str:
    """Return what clients call a model of this name, which may be one of a repository's artifacts."""
    return name.partition(SEPARATOR)[0]


def state_of(spec: ModelSpec, states: Mapping[str, ModelStatus]) -> ModelStatus | None:
    """Return the state of a model, of a repository's that of the version that clients are directed to."""
    if spec.name in states or not spec.served_as:
        return states.get(spec.name)
    artifacts = f"{spec.name}{SEPARATOR}{spec.version}-"
    return next((state for name, state in states.items() if name.startswith(artifacts)), None)


def rows(
    specs: Sequence[ModelSpec],
    status: ClusterStatus,
    before: Mapping[str, ModelStatus],
    seconds: float | None = None,
) -> list[Row]:
    """Return a row for each model; counts are since ``before``, ``seconds`` ago.

    A count that fell was started from zero, by another controller or a model added again, and counts whole.
    """
    profiles = {spec.name: spec.profiles for spec in specs}
    changes = {state.name: _change(state, before.get(state.name)) for state in status.models}
    total = sum(finished for finished, _, _ in changes.values())
    return [
        Row(
            model=state.name,
            pages=state.pages,
            resident_on=state.resident_on,
            prepared_on=state.prepared_on,
            failed_on=state.failed_on,
            queued=state.queued,
            infer_ms={
                kind: {size: duration / 1e6 for size, duration in profile.infer_ns.items()}
                for kind, profile in profiles.get(public_name(state.name), {}).items()
            },
            finished=changes[state.name][0],
            late=changes[state.name][1],
            rejected=changes[state.name][2],
            goodput_share=changes[state.name][0] / total if total else None,
            goodput_per_s=changes[state.name][0] / seconds if seconds else None,
            erratic=state.erratic,
            verified=state.verified,
            outliers=0 if state.outlier is None else state.outlier.count,
        )
        for state in status.models
    ]


def print_once(client: Client, *, as_json: bool) -> None:
    """Print the models as they are now, counted since the controller started."""
    found = rows(client.models(), client.status(), {})
    if as_json:
        print(json.dumps([msgspec.to_builtins(row, str_keys=True) for row in found], indent=2))
    else:
        Console(markup=False, highlight=False).print(table(found))


def watch_models(client: Client, interval_s: float, *, as_json: bool) -> None:
    """Show the models again after each interval, counted within it, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        _watch(client, interval_s, as_json=as_json)


def _watch(client: Client, interval_s: float, *, as_json: bool) -> None:
    from rich.live import Live

    before, at = _look(client)
    console = Console(markup=False, highlight=False)
    shown = Live(console=console, auto_refresh=False, screen=True)
    with shown if console.is_terminal and not as_json else contextlib.nullcontext() as live:
        while True:
            time.sleep(interval_s)
            specs, status, now = client.models(), client.status(), time.monotonic()
            found = rows(specs, status, before, now - at)
            before, at = {state.name: state for state in status.models}, now
            if as_json:
                print(json.dumps([msgspec.to_builtins(row, str_keys=True) for row in found]), flush=True)
            else:
                found.sort(key=lambda row: (-row.finished, row.model))
                if live is None:
                    console.print(table(found), "")
                else:
                    live.update(table(found), refresh=True)


def table(found: Sequence[Row]) -> Table:
    """Return the rows as a table that fits 80 columns, a line for each model where names are not long."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("model", no_wrap=True)
    made.add_column("pages", justify="right", no_wrap=True)
    made.add_column("on", overflow="fold")
    timed = all(len(row.model) <= LONG_NAME for row in found)
    if timed:
        made.add_column("INFER ms", no_wrap=True)
    made.add_column("queued", justify="right", no_wrap=True)
    made.add_column("in time", justify="right", no_wrap=True)
    made.add_column("late", justify="right", no_wrap=True)
    made.add_column("refused", justify="right", no_wrap=True)
    made.add_column("share", justify="right", no_wrap=True)
    for row in found:
        in_time = str(row.finished) if row.goodput_per_s is None else f"{row.goodput_per_s:.0f}/s"
        share = "-" if row.goodput_share is None else f"{row.goodput_share:.1%}"
        counts = (str(row.queued), in_time, str(row.late), str(row.rejected))
        times = (_profile(row),) if timed else ()
        place = _place(row) + "; erratic" * row.erratic + "; unverified" * (not row.verified)
        if row.outliers:
            place += f"; {row.outliers} outlier{'s' * (row.outliers > 1)}"
        made.add_row(row.model, str(row.pages), place, *times, *counts, share)
    return made


def _look(client: Client) -> tuple[dict[str, ModelStatus], float]:
    return {state.name: state for state in client.status().models}, time.monotonic()


def _change(now: ModelStatus, before: ModelStatus | None) -> tuple[int, int, int]:
    if before is None or now.arrived < before.arrived:
        return now.finished, now.late, now.rejected
    return (
        max(0, now.finished - before.finished),
        max(0, now.late - before.late),
        max(0, now.rejected - before.rejected),
    )


def _place(row: Row) -> str:
    if len(row.resident_on) > SHOWN_WORKERS:
        return f"{len(row.resident_on)} of {len(row.prepared_on)}"
    if row.resident_on:
        return ", ".join(row.resident_on)
    if row.prepared_on:
        return "host memory"
    return "failed" if row.failed_on else "not prepared"


def _profile(row: Row) -> str:
    """Return the milliseconds of the smallest and the largest batch, for each kind of device."""
    return "; ".join(
        (f"{kind}: " if len(row.infer_ms) > 1 else "")
        + "-".join(f"{durations[size]:.4g}" for size in sorted({min(durations), max(durations)}))
        for kind, durations in row.infer_ms.items()
        if durations
    )


_COLOURS = {
    ModelState.READY: "green",
    ModelState.LOADING: "yellow",
    ModelState.UNLOADING: "yellow",
    ModelState.UNAVAILABLE: "red",
}


def print_index(entries: Sequence[IndexEntry]) -> None:
    """Print the models, one line for each version, and how many are in which state."""
    console = Console(highlight=False)
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
