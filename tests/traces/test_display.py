"""What a person sees of a run."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from mainspring.messages.codes import Reason
from mainspring.telemetry.report import Possible
from mainspring.traces.records import Records
from mainspring.traces.report import Progress, ProgressLine, progress_text, summarise, summary_table


def some_progress(**changes: float) -> Progress:
    values = dict.fromkeys(("offered", "goodput", "rejected", "late", "unsent", "in_flight"), 0) | {
        "elapsed_s": 1.5, "p50_ms": None, "p99_ms": 12.3, "lag_p99_us": 5.0,
    }  # fmt: skip
    return Progress(**values | changes)  # type: ignore[arg-type]


def test_the_line_shows_counts_and_warns_of_a_replayer_that_is_behind() -> None:
    line = progress_text(some_progress(offered=1234, goodput=90, rejected=10), 60).plain
    for part in ("1.5 / 60 s", "offered 1,234", "goodput 90 (90.0%)", "rejected 10", "p50 -", "p99 12.3 ms"):
        assert part in line
    assert "behind" not in line
    assert "replayer behind: p99 4.0 ms" in progress_text(some_progress(lag_p99_us=4000), 60).plain
    assert "unsent 3" in progress_text(some_progress(unsent=3), 60).plain


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    with ProgressLine(Console(file=output), 1) as line:
        line(some_progress())
    assert output.getvalue() == ""


def test_the_table_names_each_reason() -> None:
    records = Records()
    for key in range(3):
        records.error(records.sent(key, key, "m", 1, 5), key + 9, Reason.NO_WORKER)
    output = io.StringIO()
    Console(file=output, width=100).print(summary_table("run", summarise(records, start_ns=0)))
    assert "rejected: no worker" in output.getvalue()
    assert "3 (" in output.getvalue()


def test_the_table_says_what_was_reached_of_what_was_possible() -> None:
    summary = summarise(Records(), start_ns=0)
    for found, told in ((None, False), (Possible(requests=10, in_time=6, at_most=8.0), True)):
        output = io.StringIO()
        table = summary_table("run", msgspec.structs.replace(summary, possible=found))
        Console(file=output, width=100).print(table)
        assert ("of what was possible" in output.getvalue()) == told == ("75.00%" in output.getvalue())


def test_the_table_says_when_the_replayer_fell_behind() -> None:
    for lag_ns, behind in ((500_000, False), (2_000_000, True)):
        records = Records()
        records.error(records.sent(0, lag_ns, "m", 1, 5), 3_000_000, Reason.NO_WORKER)
        output = io.StringIO()
        Console(file=output, width=100).print(summary_table("run", summarise(records, start_ns=0)))
        assert ("fell behind" in output.getvalue()) == behind
