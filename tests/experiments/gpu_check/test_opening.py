"""``open``: what the event log says of an OPEN beside requests, and what is judged of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from mainspring.experiments.gpu_check.opening import Executed, Span, executed_in, verdicts
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.messages.actions import Infer, Load, Open, Result
from mainspring.messages.codes import Status
from mainspring.telemetry.report import Summary

MS = 1_000_000


def infer(number: int) -> Infer:
    return Infer(number, "w", "m", 1, (number,), (1,), (False,), 0, 0, 0, 0)


def ended(number: int, begin_ms: int, end_ms: int, status: Status = Status.OK) -> Result:
    return Result(number, "w", status, begin_ms * MS, end_ms * MS, detail="why")


def played(late: int = 0) -> Summary:
    found = SimpleNamespace(late=late, missing=0, rejected_total=0, goodput_share=0.99, offered_rate=100.0)
    return cast(Summary, found)


def test_spans_of_exec_are_read_from_the_log() -> None:
    entries = [
        infer(1),
        Open(2, "w", "other", 0, 0, 0, 0),
        Load(3, "w", "m", (0,), 0, 0, 0, 0),
        ended(1, 0, 2),
        ended(3, 0, 9),
        ended(2, 3, 40),
        infer(4),
        ended(4, 41, 42, Status.TOO_LATE),
        Open(5, "w", "broken", 0, 0, 0, 0),
        ended(5, 50, 51, Status.ENGINE_ERROR),
    ]
    found = executed_in(enumerate(entries))
    assert found.infers == [Span(0, 2 * MS)]
    assert found.opens == [Span(3 * MS, 40 * MS)]
    assert found.failed == [f"{Status.ENGINE_ERROR}: why"]


@pytest.mark.parametrize(
    ("late", "infers", "missed"),
    [
        (0, [Span(0, 2 * MS), Span(40 * MS, 42 * MS)], []),
        (1, [Span(0, 2 * MS)], ["  requests late"]),
        (0, [Span(0, 4 * MS)], ["  INFERs that ran beside it"]),
    ],
)
def test_requests_beside_an_open_are_judged(late: int, infers: list[Span], missed: list[str]) -> None:
    found = verdicts(played(late), Executed([Span(3 * MS, 40 * MS)], infers, []), "")
    assert found[0].found == "37.00 ms"
    assert [each.what for each in found if each.state is State.MISSED] == missed


def test_without_an_open_it_is_said_why() -> None:
    for failed, not_added, reason in (
        ([], "", "the worker opens executables in PREPARE's thread"),
        (["engine_error: broken"], "", "engine_error: broken"),
        ([], "no such model", "no such model"),
    ):
        (told,) = verdicts(played(), Executed([], [], failed), not_added)
        assert (told.state, told.found) == (State.NOT_RUN, reason)
