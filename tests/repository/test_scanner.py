"""What a scanner keeps over restarts of its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from mainspring.repository.builds import Patience
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.model_config import read_config
from mainspring.repository.reconciler import Reconciler
from mainspring.repository.scanner import GIVEN_FILE, Scanner
from mainspring.repository.sent_files import FILES_FOLDER, Given
from tests.repository.nets import configure, put

CONFIG = read_config(
    'max_batch_size: 4 input [{ name: "x" dims: [4] format: FORMAT_NONE }]'
    ' version_policy { all {} } parameters { key: "max.seq" value { string_value: "9" } }',
    "net",
)
GIVEN = Given(CONFIG)


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


def versions(found: Scanner, name: str) -> tuple[int, ...]:
    model = asyncio.run(found.look(name))
    return () if model is None or model.fault or model.settling else model.numbers


def test_files_that_were_sent_take_the_place_of_the_folder_and_outlive_the_process(tmp_path: Path) -> None:
    first = scanner(tmp_path)
    one = first.sent.keep("net", {"3/model.onnx": b"a", "config.pbtxt": b"max_batch_size: 8"})
    first.override("net", Given(None, one))
    other = first.sent.keep("other", {"1/model.onnx": b"b"})
    first.override("other", Given(CONFIG, other))
    left = first.sent.keep("left", {"1/model.onnx": b"c"})
    for found in (first, scanner(tmp_path)):
        assert versions(found, "net") == (3,)
        assert most_rows(found) == 8
        assert versions(found, "other") == (1,)
        assert found.holds("net")
        assert not found.holds("other")
    assert not Path(left).exists(), "nothing names it"
    found.override("net", None)
    found.override("other", None)
    assert versions(found, "net") == (1,)
    assert versions(found, "other") == ()
    found.sent.drop_but([one], "net")
    found.sent.drop_but([], "other")
    assert [str(each) for each in (tmp_path / "state" / FILES_FOLDER).glob("*/*")] == [one]


def test_models_of_files_alone_are_among_the_names_and_make_no_news(tmp_path: Path) -> None:
    found = scanner(tmp_path)
    found.override("other", Given(None, found.sent.keep("other", {"1/model.onnx": b"b"})))
    model = asyncio.run(found.look("other"))
    assert model is not None
    asyncio.run(found.look_around())
    assert asyncio.run(found.look("other")) is model


@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_a_folder_that_vanishes_for_a_moment_is_no_news(tmp_path: Path, mode: str) -> None:
    put(tmp_path / "models", "net", 1, 2.0)
    put(tmp_path / "models", "other", 1, 2.0)
    config = RepositoryConfig(
        path=str(tmp_path / "models"), mode=mode, settle_ms=1e-6, store=str(tmp_path), vanish_grace_ms=1e9
    )
    reconciler = Reconciler(explicit=mode == "explicit", patience=Patience(1, 1))
    found = Scanner(config, reconciler, lambda: None)
    asyncio.run(found.look_around())
    (tmp_path / "models" / "net").rename(tmp_path / "aside")
    for _ in range(3):
        asyncio.run(found.look_around())
        assert not reconciler.records["net"].gone
    (tmp_path / "aside").rename(tmp_path / "models" / "net")
    asyncio.run(found.look_around())
    assert not reconciler.records["net"].gone
    (tmp_path / "models" / "net").rename(tmp_path / "aside")
    found._config = msgspec.structs.replace(config, vanish_grace_ms=0.0)
    asyncio.run(found.look_around())
    assert reconciler.records["net"].gone, "the grace is over"
    assert not reconciler.records["other"].gone
