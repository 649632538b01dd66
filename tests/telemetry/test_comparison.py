"""Runs side by side: what is said of them, and what is not said where their work differs."""

from __future__ import annotations

from mainspring.messages.clients import Timing
from mainspring.telemetry.comparison import Run, rows, warnings
from mainspring.traces.records import Records
from mainspring.traces.report import summarise

MS = 1_000_000
AGAINST = "goodput against the first"


def a_run(name: str, *, freely: int = 0, answered: int = 90, slo_ms: int = 50, lag_ms: int = 0) -> Run:
    """Return a run of 100 requests with a deadline, ``freely`` without, and so many answers in time."""
    records = Records()
    for index in range(100 + freely):
        slo_ns = slo_ms * MS if index < 100 else None
        key = records.sent(index * 10 * MS, (index * 10 + lag_ms) * MS, f"m{index % 3}", 1, slo_ns)
        took_ms = 5 if index < answered or index >= 100 else 2 * slo_ms
        records.outputs(key, (index * 10 + took_ms) * MS, Timing(MS, 1, 1, 5, 1, False, "w"))
    return Run(name, name, summarise(records, start_ns=0, duration_ns=2_000 * MS))


def cells(runs: list[Run]) -> dict[str, tuple[str, ...]]:
    return {row.what.strip(): row.cells for row in rows(runs)}


def test_equal_work_is_compared_in_percent() -> None:
    runs = [a_run("a"), a_run("b", answered=45)]
    assert warnings(runs) == []
    table = cells(runs)
    assert table[AGAINST] == ("the measure", "-50.00 %")
    assert "with a deadline, in time" not in table, "all have one"
    assert table["late"] == ("10", "55")


def test_requests_with_a_deadline_and_without_are_told_apart() -> None:
    table = cells([a_run("a", freely=20), a_run("b", freely=20, answered=100)])
    assert table["with a deadline, in time"] == ("90 of 100 (90.00%)", "100 of 100 (100.00%)")
    assert table["best effort, answered"] == ("20 of 20 (100.00%)", "20 of 20 (100.00%)")
    assert table[AGAINST] == ("the measure", "+9.09 %")


def test_no_percentage_is_printed_of_unlike_work_and_one_sentence_says_why() -> None:
    first = a_run("a")
    for other, why in (
        (a_run("b", freely=50), "were offered different loads: 50.0 and 75.0 requests/s"),
        (a_run("b", slo_ms=75), "had different SLOs: 50 ms and 75 ms"),
    ):
        told = warnings([first, other])
        assert f"a and b {why}" in told
        assert told[-1] == "b's goodput is not given in % of a's, because they had different work"
        assert cells([first, other])[AGAINST] == ("the measure", "-")


def test_a_run_whose_replayer_fell_behind_is_pointed_out() -> None:
    told = warnings([a_run("a"), a_run("b", lag_ms=3)])
    assert len(told) == 1
    assert told[0].startswith("b: The replayer fell behind its schedule, by 3.0 ms at p99")
