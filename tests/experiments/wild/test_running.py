"""A run over many files: what it found stays, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring.experiments.wild import __main__ as wild
from mainspring.experiments.wild.__main__ import RESULTS, read_report, report_of, write
from mainspring.experiments.wild.files import WildFile
from mainspring.experiments.wild.trial import FAILED, SERVED, Row

NAMES = ("a", "b", "c")


class Stopped(BaseException):
    """Ends a run as a signal does."""


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files are tried without a cluster; the list has an entry for each cluster that was begun."""
    begun: list[str] = []

    @contextmanager
    def site(folder: Path, _say: Any) -> Iterator[Any]:
        begun.append(str(folder))
        yield type("Running", (), {"run_dir": folder / "run"})

    def tried(file: WildFile, *_: Any) -> Row:
        if file.group == "stops":
            raise Stopped
        if file.group == "breaks":
            raise RuntimeError("it broke")
        return Row(file.name, file.group)

    monkeypatch.setattr(wild, "site", site)
    monkeypatch.setattr(wild, "_try", tried)
    return begun


def files(**groups: str) -> list[WildFile]:
    return [WildFile(name, groups.get(name, "g"), Path(name)) for name in NAMES]


def run(tmp_path: Path, wanted: list[WildFile], rows: list[Row]) -> None:
    wild.try_all(wanted, tmp_path, rows, lambda: write(report_of(rows, []), tmp_path))


def test_a_file_that_the_experiment_fails_on_costs_no_other_its_result(
    tmp_path: Path, sites: list[str]
) -> None:
    rows: list[Row] = []
    run(tmp_path, files(b="breaks"), rows)
    assert [(row.name, row.status) for row in rows] == [("a", SERVED), ("b", FAILED), ("c", SERVED)]
    assert rows[1].sentence == "RuntimeError: it broke"
    assert len(sites) == 2, "the files behind it get another cluster"
    assert read_report(tmp_path / RESULTS).rows == rows


def test_a_run_that_was_ended_goes_on(tmp_path: Path, sites: list[str]) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, files(b="stops"), [])
    kept = wild.rows_of_last_run(tmp_path, files())
    assert [row.name for row in kept] == ["a"]
    run(tmp_path, files()[1:], kept)
    assert [row.name for row in read_report(tmp_path / RESULTS).rows] == ["a", "b", "c"]


def test_files_that_are_not_wanted_are_not_kept(tmp_path: Path) -> None:
    assert wild.rows_of_last_run(tmp_path, files()) == []
    write(report_of([Row("a", "g"), Row("other", "g")], []), tmp_path)
    assert [row.name for row in wild.rows_of_last_run(tmp_path, files())] == ["a"]
