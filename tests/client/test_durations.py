"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.deadlines import BadDuration, format_duration, parse_duration_ns


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("50ms", 50_000_000),
        ("0.05s", 50_000_000),
        (" 50 MS ", 50_000_000),
        (".5us", 500),
        ("1e3ms", 10**9),
        ("2m", 120 * 10**9),
        ("7ns", 7),
        ("1.5 min", 90 * 10**9),
        (".5h", 1_800 * 10**9),
        ("none", None),
        ("-1s", -(10**9)),
    ],
)
def test_durations(text: str, duration_ns: int | None) -> None:
    assert parse_duration_ns(text) == duration_ns


@pytest.mark.parametrize(
    "text", ["50", "ms", "fast", "5 parsecs", "1e400s", "nan s", "1s 2ms", "999999999999s"]
)
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadDuration, match="write"):
        parse_duration_ns(text)


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        duration_ns = parse_duration_ns(text)
    except BadDuration:
        return
    assert duration_ns is None or abs(duration_ns) <= 2**62


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(None, "none"), (5, "5 ns"), (1_500, "1.5 us"), (12_345_678, "12.35 ms"), (-2 * 10**9, "-2 s")],
)
def test_durations_are_shown_for_people(duration_ns: int | None, text: str) -> None:
    assert format_duration(duration_ns) == text


def test_nothing_needs_no_unit() -> None:
    assert parse_duration_ns("0") == parse_duration_ns("0.0") == 0
    with pytest.raises(BadDuration, match="did you mean 5s or 5ms"):
        parse_duration_ns("5")
