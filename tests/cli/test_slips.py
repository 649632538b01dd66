"""Slips on the command line: the error names what was wrong, and the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mainspring.cli.configuration.config import read_config, read_tables
from mainspring.cli.launcher.repository import with_store
from mainspring.cli.main import build_app
from mainspring.cli.options import seconds
from mainspring.cli.verbs.infer import _named, _read_files
from mainspring.cli.verbs.status import some
from mainspring.messages.tables import ConfigError
from mainspring.planner.estimate import told_ms
from mainspring.scheduler.policies.options import ClipperOptions, read_options
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
    ("command", "option"),
    [
        (["up", "--store", ""], "--store"),
        (["up", "--store="], "--store"),
        (["up", "--run-dir", "-"], "--run-dir"),
        (["infer", "m", "--output-dir", "-"], "--output-dir"),
        (["log", "slice", "events", "-"], "OUT"),
        (["compile", ""], "model"),
        (["trace", "--perfetto", "-"], "--perfetto"),
    ],
)
def test_a_path_that_is_empty_or_a_dash_is_refused(command: list[str], option: str) -> None:
    told = CliRunner().invoke(build_app(), command)
    assert told.exit_code == 2
    said = " ".join(told.output.replace("│", " ").split())
    assert option in said
    assert "is not a path here" in said


@pytest.mark.parametrize(
    ("content", "why"), [(b"junk", "it is not an array"), (b"", "it is not an array"), (None, "No such file")]
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


@pytest.mark.parametrize(
    ("option", "value"), [("--rate", "1e308"), ("--time-scale", "1e300"), ("--concurrency", "9" * 30)]
)
def test_what_no_machine_could_send_is_refused_before_a_gateway_is_asked(option: str, value: str) -> None:
    said = said_of("replay", option, value)
    assert "less than or equal to" in said or "is not in the range" in said


def said_of(*words: str) -> str:
    """Run a verb that fails by its usage; return what it says, on one line."""
    told = CliRunner().invoke(build_app(), words)
    assert told.exit_code in {1, 2}
    return " ".join((told.output + str(told.exception)).replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("up --duration 5", "`mainspring demo`, `mainspring trace`, `mainspring replay` would take it"),
        (
            "status --watch",
            "`mainspring balance`, `mainspring top`, `mainspring plan` and 1 more would take it",
        ),
        ("up --worker 2", "did you mean --workers?"),
        ("up --http 80", "did you mean --http-port?"),
        ("up --gpu", "did you mean --device?"),
        ("infer m --deadline 5ms", "did you mean --slo?"),
        ("models list --stroe x", "did you mean --store?"),
        ("demo --nope", "`mainspring demo -h` lists those that there are"),
        ("models --all", "`mainspring models -h` lists those that there are"),
        ("-v", "`mainspring -h` lists those that there are"),
    ],
)
def test_an_option_that_there_is_not_is_told_with_the_nearest_or_with_verbs_that_have_it(
    words: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = CliRunner().invoke(build_app(), words.split(), prog_name="mainspring")
    assert told.exit_code == 2
    wrong = next(each for each in words.split() if each.startswith("-"))
    assert f" has no option {wrong}; {meant} " in " ".join(told.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["replay", "--workload", "possion"], "poisson"),
        (["top", "--view", "modles"], "models"),
        (["keys", "issue", "gatway", "name"], "gateway"),
        (["controller", "--log-level", "warn"], "WARNING"),
        (["controller", "--log-format", "jsn"], "json"),
        (["worker", "--engine", "onnx-runtime"], "onnxruntime"),
        (["worker", "--device", "gpu"], "cuda:0"),
        (["profile", "--engine", "onxruntime"], "onnxruntime"),
        (["compile", "m.onnx", "--name", "m", "--engine", "tmv"], "tvm"),
        (["compile", "m.onnx", "--name", "m", "--device", "gpu"], "cuda"),
        (["compile", "m.onnx", "--name", "m", "--precision", "fp15"], "fp16"),
        (["up", "--engine", "onxruntime"], "onnxruntime"),
        (["controller", "--policy", "clockwrok"], "clockwork"),
    ],
)
def test_a_value_that_there_is_not_is_told_with_the_nearest(
    words: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()
    assert f"did you mean '{meant}'?" in said_of(*words)


@pytest.mark.parametrize(
    ("table", "key", "value", "meant"),
    [
        ("gateway", "readiness", "strikt", "strict"),
        ("gateway", "compatibility", "trition", "triton"),
        ("repository", "mode", "pol", "poll"),
        ("cluster", "log_level", "warn", "WARNING"),
        ("cluster", "log_format", "jsn", "json"),
        ("cluster", "engine", "onxruntime", "onnxruntime"),
        ("cluster", "device", "gpu", "cuda"),
    ],
)
def test_a_value_of_a_key_that_there_is_not_is_told_with_the_nearest(
    table: str, key: str, value: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean '{meant}'\?"):
        read_config({table: {key: value}}, "a file")


def test_an_options_value_that_a_policy_has_not_is_told_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"batch_limit is 'aimed'; it is one of aimd, .* mean 'aimd'\?"):
        read_options("clipper", ClipperOptions, {"batch_limit": "aimed"})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["demo", "--duration", "0.5"], "0.5 is not a time from 1 s up"),
        (["demo", "--duration", "25 parsecs"], "'25 parsecs' is not a duration"),
        (["demo", "--slo", "none"], "none is not a time"),
        (["models", "--watch", "--interval", "1ms"], "1ms is not a time from 100 ms up"),
    ],
)
def test_durations_are_read_alike_everywhere(words: list[str], why: str) -> None:
    assert why in said_of(*words)


def test_where_a_number_has_had_a_unit_it_still_has() -> None:
    assert [seconds(text, "--x") for text in ("25", "25s", "0.5min", "0")] == [25, 25, 30, 0]
