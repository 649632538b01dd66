"""Findings of a check: one line for each thing that is judged, and the table of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from rich.markup import escape
from rich.table import Table


class State(StrEnum):
    """State of a line."""

    MET = "met"
    MISSED = "MISSED"
    FAILED = "FAILED"
    """The check itself could not be carried through."""
    NOT_RUN = "not run"
    REHEARSED = "rehearsed"
    """It would be judged on a GPU; what was found says nothing."""
    TOLD = ""
    """Nothing is wanted: it explains the others."""


_COLOURS = {
    State.MET: "green",
    State.MISSED: "red",
    State.FAILED: "red",
    State.NOT_RUN: "yellow",
    State.REHEARSED: "yellow",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    what: str
    state: State
    found: str
    wanted: str = ""
    note: str = ""


def at_least(what: str, value: float, limit: float, unit: str = "", note: str = "") -> Verdict:
    """Judge a value that may not be lower."""
    return _judged(what, value, limit, ">=", value >= limit, unit, note)


def at_most(what: str, value: float, limit: float, unit: str = "", note: str = "") -> Verdict:
    """Judge a value that may not be higher."""
    return _judged(what, value, limit, "<=", value <= limit, unit, note)


def told(what: str, found: str, note: str = "") -> Verdict:
    """Return a line that only explains."""
    return Verdict(what=what, state=State.TOLD, found=found, note=note)


def not_run(what: str, reason: str) -> Verdict:
    """Return a line about something that can't be checked here."""
    return Verdict(what=what, state=State.NOT_RUN, found=reason)


def failed(what: str, reason: str) -> Verdict:
    """Return a line about a check that went wrong."""
    return Verdict(what=what, state=State.FAILED, found=" ".join(reason.split()) or "no reason was given")


def as_rehearsed(verdict: Verdict) -> Verdict:
    """Return a line as a rehearsal gives it: what would be judged is not."""
    if verdict.state not in (State.MET, State.MISSED):
        return verdict
    return msgspec.structs.replace(verdict, state=State.REHEARSED)


def table(title: str, verdicts: Sequence[Verdict]) -> Table:
    """Return the table."""
    made = Table(title=title, title_justify="left")
    for column in ("what", "wanted", "found", "", "note"):
        made.add_column(column, overflow="fold")
    for each in verdicts:
        colour = _COLOURS.get(each.state)
        state = f"[{colour}]{each.state}[/]" if colour else ""
        made.add_row(escape(each.what), each.wanted, escape(each.found), state, escape(each.note))
    return made


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the same in Markdown, for docs/measurements.md."""
    rows = [["what", "wanted", "found", "", "note"], ["---"] * 5]
    rows += [[each.what, each.wanted, each.found, str(each.state), each.note] for each in verdicts]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many lines stand how, in one line."""
    counts = Counter(each.state for each in verdicts)
    names = {State.MET: "met", State.MISSED: "missed", State.FAILED: "failed", State.NOT_RUN: "not run"}
    if counts[State.REHEARSED]:
        names[State.REHEARSED] = "rehearsed"
    return ", ".join(f"{counts[state]} {name}" for state, name in names.items())


def good(verdicts: Sequence[Verdict]) -> bool:
    """Return True if something was met or rehearsed, nothing was missed and no check failed."""
    states = {each.state for each in verdicts}
    return bool(states & {State.MET, State.REHEARSED}) and not states & {State.MISSED, State.FAILED}


def _judged(what: str, value: float, limit: float, sign: str, met: bool, unit: str, note: str) -> Verdict:
    return Verdict(
        what=what,
        state=State.MET if met else State.MISSED,
        wanted=f"{sign} {limit:g} {unit}".rstrip(),
        found=f"{value:.5g} {unit}".rstrip(),
        note=note,
    )
