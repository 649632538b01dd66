"""Text that fits a width, whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mainspring.console.terminal.lines import (
    Column,
    ago,
    bar,
    cut,
    milliseconds,
    percent,
    sparkline,
    table,
)


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cf", "Mn", "Me", "Cs"])),
    st.integers(0, 30),
    st.booleans(),
)
def test_a_text_takes_exactly_the_cells_it_is_given(text: str, width: int, right: bool) -> None:
    assert cell_len(cut(text, width, right=right)) == width


def test_what_does_not_fit_says_so() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("abc", 5, right=True) == "  abc"
    assert cut("日本語", 5) == "日本…"


def test_a_table_leaves_out_what_does_not_fit() -> None:
    columns = (Column("name", 6), Column("count", 5, right=True), Column("rest", 0))
    rows = [("longer name", "12", "why")]
    wide = [line.plain for line in table(columns, rows, 30)]
    assert wide == ["name   count rest             ", "longe…    12 why              "]
    assert [line.plain for line in table(columns, rows, 14)] == ["name   count  ", "longe…    12  "]
    assert [line.plain for line in table(columns, rows, 3)] == ["na…", "lo…"]


def test_bars_and_sparklines() -> None:
    assert bar(0.0, 4) == "····"
    assert bar(1.0, 4) == "████"
    assert bar(0.5, 4) == "██··"
    assert bar(7.0, 2) == "██"
    assert all(len(bar(share / 100, 6)) == 6 for share in range(101))
    assert sparkline([0, 5, 10], 8, 10) == " ▄█"
    assert sparkline([1, 2, 3, 4], 2, 4) == "▆█"
    assert sparkline([0.0], 3, 0) == " "


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (1.0, "100.0"), (0.99999, "99.9"), (0.5, "50.0"), (0.0, "0.0")]
)
def test_a_share_is_100_only_if_it_is_whole(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_times_are_readable() -> None:
    assert [milliseconds(value) for value in (None, 1.234, 12.34, 1234.5)] == ["-", "1.23", "12.3", "1,234"]
    second = 1_000_000_000
    assert [ago(at, 7_200 * second) for at in (None, 7_199 * second, 7_000 * second, 0)] == [
        "-",
        "1.0s",
        "3min",
        "2.0h",
    ]
