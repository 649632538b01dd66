"""The whole command, short and with small models: it serves, kills, compares and writes down."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import typer

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.mixed.__main__ import main
from mainspring.experiments.mixed.offering import Tally

RIGHT = (
    "requests without a reply",
    "second and unasked replies",
    "wrong answers",
    "wrong answers of streams",
    "streams whose state was lost",
    "the killed worker was restarted",
)
"""What does not depend on how quick the machine is."""


class Written(msgspec.Struct):
    """What of the report is looked at."""

    figures: list[Figure]
    models: list[Tally]


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(typer.Exit):
        main(duration=8.0, capacity_s=1.0, slo_ms=2_000, small=True, output=tmp_path)
    written = msgspec.json.decode((tmp_path / "mixed.json").read_bytes(), type=Written)
    found = {each.name: each for each in written.figures}
    for name in RIGHT:
        assert found[name].met, found[name]
    assert len(written.models) == 15
    assert all(each.in_time for each in written.models)
    said = capsys.readouterr().out
    assert ("fell short: " in said) == any(each.met is False for each in written.figures)
