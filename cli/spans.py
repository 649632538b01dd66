"""The part of a log to read: the options ``--run``, ``--from``, ``--to`` and ``--last`` of several verbs.

An instant is written as seconds from the run's start (``90``, ``1.5s``, ``3min``), as seconds before its end
(``-30s``), or by the calendar in local time (``2026-11-22T04:10:00``, or ``04:10:00`` on the day on which the
run began); a zone such as ``+00:00`` or ``Z`` may follow.
"""

from __future__ import annotations

import re
from datetime import datetime, time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import EVENT_LOG
from mainspring.client.deadlines import BadDuration, parse_duration_ns
from mainspring.telemetry.runs import Run, choose_run, find_runs

RunNumber = Annotated[
    int | None,
    typer.Option("--run", min=1, help="Which run of the controller: 1 is the oldest. Default: the latest."),
]
Log = Annotated[Path | None, EVENT_LOG]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Seconds from the run's start (90, 1.5s, 3min), before its end (-30s), or local time "
        "(2026-11-22T04:10:00 or 04:10:00).",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", help="The end, written like --from; that instant itself is excluded.")
]
Last = Annotated[
    str | None,
    typer.Option("--last", help="Only the end of the run, such as its last 30s."),
]

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")


def chosen_run(
    log: Path, number: int | None, from_: str | None, to: str | None, last: str | None
) -> tuple[Run, int, int]:
    """Return the run and the span ``[from_ns, to_ns)`` of it that the options ask for.

    Without ``--run``, an instant of the calendar chooses the run that was going then. Raises BadParameter for
    options that make no sense, OSError or `telemetry.runs.LogProblem` for a log that can't be read.
    """
    if last is not None and (from_ is not None or to is not None):
        raise typer.BadParameter(
            "--last is a span of its own; leave --from and --to out", param_hint="--last"
        )
    run = choose_run(log, number) if number else _run_of(log, from_ or to)
    if last is not None:
        from_ns, to_ns = run.last_ns + 1 - abs(_duration_ns(last, "--last")), run.last_ns + 1
    else:
        from_ns = run.first_ns if from_ is None else _instant_ns(run, from_, "--from")
        to_ns = run.last_ns + 1 if to is None else _instant_ns(run, to, "--to")
    if from_ns >= to_ns:
        raise typer.BadParameter(
            f"that is {(from_ns - run.first_ns) / 1e9:.3f} s to {(to_ns - run.first_ns) / 1e9:.3f} s of a "
            f"run of {run.seconds:.3f} s: nothing; --from has to be before --to",
            param_hint="--from",
        )
    return run, max(from_ns, run.first_ns), min(to_ns, run.last_ns + 1)


def chosen_instant(log: Path, number: int | None, at: str | None) -> tuple[Run, int]:
    """Return the run and the instant of it that ``--run`` and ``--at`` ask for; its last one by default.

    Raises as `chosen_run` does, and BadParameter for an instant that is not in the run.
    """
    run = choose_run(log, number) if number else _run_of(log, at)
    at_ns = run.last_ns if at is None else _instant_ns(run, at, "--at")
    if not run.first_ns <= at_ns <= run.last_ns:
        raise typer.BadParameter(
            f"that is {(at_ns - run.first_ns) / 1e9:.3f} s from the start of a run of {run.seconds:.3f} s",
            param_hint="--at",
        )
    return run, at_ns


def _run_of(log: Path, instant: str | None) -> Run:
    """Return the run that was going at an instant of the calendar, or the last one."""
    runs = find_runs(log)
    if instant is not None and _date_and_time(instant) is not None:
        for run in reversed(runs):
            if run.first_unix_ns <= _calendar_ns(run, instant, "--from"):
                return run
    return runs[-1]


def _instant_ns(run: Run, text: str, option: str) -> int:
    """Return what an option means on the controller's clock."""
    plain = text.strip()
    if _NUMBER.fullmatch(plain) or (plain[:1] in "+-.0123456789" and not re.search(r"\d[:T-]\d", plain)):
        since_ns = _duration_ns(plain, option)
        return run.last_ns + 1 + since_ns if plain.startswith("-") else run.first_ns + since_ns
    return run.first_ns + _calendar_ns(run, plain, option) - run.first_unix_ns


def _duration_ns(text: str, option: str) -> int:
    plain = text.strip()
    try:
        found = parse_duration_ns(plain, "s")
    except BadDuration as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time; write it like 30s", param_hint=option)
    return found


def _date_and_time(text: str) -> datetime | None:
    """Return an instant of the calendar if it is a whole one, with its date."""
    try:
        return datetime.fromisoformat(text.strip()) if re.match(r"\s*\d{4}-", text) else None
    except ValueError:
        return None


def _calendar_ns(run: Run, text: str, option: str) -> int:
    """Return an instant of the calendar as Unix time."""
    whole = _date_and_time(text)
    if whole is None:
        began = datetime.fromtimestamp(run.first_unix_ns / 1e9)
        try:
            whole = datetime.combine(began.date(), time.fromisoformat(text.strip()))
        except ValueError:
            raise typer.BadParameter(
                f"{text!r} is not an instant; write seconds from the start (90, 1.5s), before the end "
                "(-30s), or local time (2026-11-22T04:10:00 or 04:10:00)",
                param_hint=option,
            ) from None
    return round(whole.timestamp() * 1e6) * 1000
