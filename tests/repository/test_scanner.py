"""What a scanner keeps over restarts of its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.repository.builds import Patience
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.model_config import read_config
from mainspring.repository.reconciler import Reconciler
from mainspring.repository.scanner import GIVEN_FILE, Scanner
from tests.repository.nets import configure, put

GIVEN = read_config(
    'max_batch_size: 4 input [{ name: "x" dims: [4] format: FORMAT_NONE }]'
    ' version_policy { all {} } parameters { key: "max.seq" value { string_value: "9" } }',
    "net",
)


def scanner(path: Path) -> Scanner:
    """Return the scanner of a process that begins, on a repository with one model."""
    put(path / "models", "net", 1, 2.0)
    configure(path / "models", "net", "max_batch_size: 2")
    config = RepositoryConfig(
        path=str(path / "models"),
        mode="explicit",
        settle_ms=1e-6,
        store=str(path),
        state_dir=str(path / "state"),
    )
    return Scanner(config, Reconciler(explicit=True, patience=Patience(1, 1)), lambda: None)


def most_rows(found: Scanner) -> int | None:
    model = asyncio.run(found.look("net"))
    assert model is not None
    assert not model.settling
    return model.config.max_batch_size


def test_a_given_configuration_outlives_the_process(tmp_path: Path) -> None:
    first = scanner(tmp_path)
    assert most_rows(first) == 2
    assert first.override("net", GIVEN) is None
    assert most_rows(first) == 4
    second = scanner(tmp_path)
    assert most_rows(second) == 4
    assert second.override("net", None) == GIVEN, "all of it is kept"
    assert most_rows(scanner(tmp_path)) == 2


def test_a_file_that_makes_no_sense_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scanner(tmp_path).override("net", GIVEN)
    (tmp_path / "state" / GIVEN_FILE).write_text("{")
    assert most_rows(scanner(tmp_path)) == 2
    assert GIVEN_FILE in caplog.text


def test_what_can_not_be_kept_counts_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    found = scanner(tmp_path)
    found.override("net", GIVEN)
    assert most_rows(found) == 4
    assert "can't keep configurations" in caplog.text
