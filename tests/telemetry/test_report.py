"""The report's files."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.telemetry.report import flat


class One(msgspec.Struct):
    a: int
    b: dict[str, int]


class Two(msgspec.Struct):
    c: int


class Clash(msgspec.Struct):
    a: int


def test_parts_of_a_report_stand_side_by_side_and_never_hide_each_other() -> None:
    assert flat(One(1, {"x": 2}), Two(3)) == {"a": 1, "b": {"x": 2}, "c": 3}
    with pytest.raises(ValueError, match=r"\['a'\].*more than one"):
        flat(One(1, {}), Clash(2))
