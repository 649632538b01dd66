"""Slips on the command line: the error names what was wrong, and the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mainspring.cli.configuration.config import read_config, read_tables
from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.launcher.repository import with_store
from mainspring.cli.main import build_app
from mainspring.cli.verbs.infer import _named, _read_files
from mainspring.cli.verbs.status import some
from mainspring.planner.estimate import told_ms
from tests.controller.peers import spec


def test_a_folder_in_the_place_of_a_configuration_says_which_flag_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"is a folder, .*: --store {tmp_path}, or --model-repository"):
        read_tables(tmp_path)


def test_a_store_in_the_place_of_a_repository_says_so(tmp_path: Path) -> None:
    for name in ("models", "executables", "weights"):
        (tmp_path / name).mkdir()
    config = read_config({"repository": {"path": str(tmp_path)}}, "the command line")
    with pytest.raises(ConfigError, match=f"is a model store.* serve it with --store {tmp_path}"):
        with_store(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "why"), [(b"junk", "it is no array"), (b"", "it is no array"), (None, "No such file")]
)
def test_an_input_that_is_no_array_is_refused_before_anything_is_asked(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    told = CliRunner().invoke(
        build_app(), ["infer", "m", "--input", f"data={path}", "--address", "tcp://127.0.0.1:1"]
    )
    assert told.exit_code == 2
    assert why in " ".join(told.output.replace("│", " ").split())


def test_an_input_that_the_model_has_not_is_told_with_the_nearest(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    files = _read_files([f"dtaa={tmp_path / 'x.npy'}"])
    with pytest.raises(typer.BadParameter, match="has no input 'dtaa'; did you mean 'data'"):
        _named(files, spec())
    assert list(_named(_read_files([str(tmp_path / "x.npy")]), spec())) == ["data"]


@pytest.mark.parametrize(("words", "meant"), [(["modles"], "models"), (["models", "lsit"], "list")])
def test_a_verb_that_there_is_not_is_told_with_the_nearest(words: list[str], meant: str) -> None:
    told = CliRunner().invoke(build_app(), words)
    assert told.exit_code == 2
    assert f"Did you mean '{meant}'?" in told.output


def test_a_duration_without_a_unit_is_told_with_one() -> None:
    told = CliRunner().invoke(build_app(), ["replay", "--duration", "5"])
    assert told.exit_code == 2
    assert "did you mean 5s or 5ms?" in " ".join(told.output.replace("│", " ").split())


def test_what_many_workers_say_is_said_once() -> None:
    assert some(["worker-0"]) == "worker-0"
    assert some([f"w{n}" for n in range(9)]) == "w0, w1, w2, w3 and 5 more"


def test_durations_of_a_plan_are_never_powers_of_ten() -> None:
    assert [told_ms(each) for each in (0.12345, 11_640.4, 1e7)] == ["0.1235 ms", "11,640 ms", "10,000,000 ms"]
