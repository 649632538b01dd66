"""``make gpu-check``: what it says without a GPU, how it is told what to run, and what it publishes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check import __main__ as command
from mainspring.experiments.gpu_check import parts
from mainspring.experiments.gpu_check.parts import PARTS, patience_s, run_alone
from mainspring.experiments.gpu_check.rehearsal import bindings
from mainspring.experiments.gpu_check.settings import LARGE, Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict, at_least, failed, not_run, told
from mainspring.worker.engines.cuda.devices import FoundDevice
from mainspring.worker.engines.cuda.driver import BINDINGS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.main)
    return app


@pytest.mark.parametrize(("flags", "code"), [([], 2), (["--skip-without-gpu"], 0)])
def test_without_a_gpu_it_says_why_and_checks_nothing(flags: list[str], code: int, tmp_path: Path) -> None:
    """The command line of ``make gpu-check``, where no GPU can be seen."""
    program = [sys.executable, "-m", "mainspring.experiments.gpu_check", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [*program, *flags], capture_output=True, text=True, env=environment, check=False, cwd=ROOT
    )
    assert found.returncode == code, found.stderr
    assert "gpu-check can't run: no GPU can be used here" in found.stdout
    assert "Nothing was checked" in found.stdout
    assert "pip install 'mainspring'" not in found.stdout, "the extra's name in brackets is lost"
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_counted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_devices", lambda: [FoundDevice(0, "NVIDIA H100", "0000:3b:00.0")])
    assert command.missing("cuda:0") == ""
    assert command.missing("cuda:2") == "there is no GPU 2: CUDA counts 1, beginning with 0"


def test_checks_are_chosen_by_name(app: typer.Typer) -> None:
    assert command.parse_parts("") == list(PARTS)
    assert command.parse_parts("cluster, load") == ["load", "cluster"]
    result = CliRunner().invoke(app, ["--only", "speed"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "no check 'speed'" in result.output


def test_a_rehearsal_publishes_a_table(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    monkeypatch.setenv(BINDINGS, "")

    def check(
        name: str, settings: Settings, limit_s: float, on_verdict: Callable[[Verdict], None]
    ) -> list[Verdict]:
        assert 0 < limit_s <= patience_s(name, settings)
        asked.append((name, settings.rehearsed))
        on_verdict(found := failed(name, "broke") if name == "load" else at_least(name, 2, 1, "GB/s"))
        return [found]

    monkeypatch.setattr(command, "run_alone", check)
    result = CliRunner().invoke(app, ["--rehearse", "--only", "load,large", "--output", str(tmp_path)])
    assert result.exit_code == 1, "a check that breaks is what a rehearsal is for"
    assert asked == [("load", True), ("large", True)]
    assert os.environ[BINDINGS] == bindings.__name__
    assert "1 met, 0 missed, 1 failed, 0 not run" in result.output
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [verdict["state"] for verdict in report["verdicts"]] == ["FAILED", "met"]
    assert "| large | >= 1 GB/s | 2 GB/s | met |" in (tmp_path / "gpu-check.md").read_text()
    recorded = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [(each["check"], each["verdict"]["state"]) for each in recorded] == [
        ("load", "FAILED"),
        ("large", "met"),
    ]


@pytest.mark.parametrize(("found", "code"), [(at_least("x", 2, 1), 0), (at_least("x", 0, 1), 1)])
def test_on_a_gpu_what_is_missed_is_an_error(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Verdict, code: int
) -> None:
    monkeypatch.setattr(command, "missing", lambda _device: "")
    monkeypatch.setattr(command, "run_alone", lambda _name, settings, *_: [found][settings.rehearsed :])
    result = CliRunner().invoke(app, ["--only", "load", "--output", str(tmp_path)])
    assert result.exit_code == code, result.output


def test_what_the_budget_leaves_no_time_for_is_not_run(settings: Settings) -> None:
    done = command.run_all(settings, ["load", "large"], 0.5, Console(quiet=True))
    assert [verdict.state for ran in done for verdict in ran.verdicts] == [State.NOT_RUN] * 2


def test_a_check_is_told_its_limit_and_not_begun_with_less_than_it_takes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[tuple[str, float, float]] = []

    def check(name: str, limited: Settings, limit_s: float, _: object) -> list[Verdict]:
        assert limited.limit_s == limit_s
        begun.append((name, limit_s, limited.compile_s))
        return []

    monkeypatch.setattr(command, "run_alone", check)
    elsewhere = msgspec.structs.replace(settings, folder=str(tmp_path))
    done = command.run_all(elsewhere, ["compile", "load", "cycle"], 50, Console(quiet=True))
    assert [name for name, _, _ in begun] == ["compile", "load"]
    (_, limit_s, compile_s), (_, load_s, _) = begun
    assert limit_s <= 50
    assert compile_s == limit_s - command.LAST_S, "it would be ended before it says what is missing"
    assert load_s == patience_s("load", elsewhere)
    (verdict,) = done[-1].verdicts
    assert (verdict.state, verdict.found) == (
        State.NOT_RUN,
        "it takes 60 s at least, and 50 of 50 s are left",
    )
    assert "60 s at least" in (tmp_path / "verdicts.jsonl").read_text()


def test_a_check_that_pins_more_than_there_is_is_not_begun(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(settings.store(settings.engine))
    weights = {name: store.manifest(name).weights_bytes for name in store.names()}
    assert parts.pinned_bytes("outputs", settings) == sum(weights[name] for name in settings.architectures)
    assert parts.pinned_bytes("exec", settings) == 2 * weights[settings.main] + weights[LARGE]
    assert parts.pinned_bytes("pinning", settings) == settings.pinned_mib << 20
    assert parts.no_room("exec", settings) == ""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    (ran,) = command.run_all(settings, ["exec"], 100, Console(quiet=True))
    (verdict,) = ran.verdicts
    assert verdict.state is State.NOT_RUN
    assert verdict.found.startswith("it pins 0.0 GB of host memory, and 0.0 GB are available")
    assert parts.no_room("device", settings) == ""


def test_a_check_in_its_own_process_gives_its_verdicts(settings: Settings) -> None:
    found = run_alone("large", settings, 60.0)
    assert [verdict.state for verdict in found] == [State.MET, State.TOLD]


def test_a_check_that_raises_or_hangs_costs_one_line(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = msgspec.structs.replace(settings, folder=str(tmp_path))
    (verdict,) = run_alone("load", elsewhere, 60.0)
    assert verdict.state is State.FAILED
    assert "digits" in verdict.found
    assert "in check_loading" in capfd.readouterr().err, "nobody knows where it was raised"
    (verdict,) = run_alone("steady", settings, 0.01)
    assert (verdict.state, verdict.found) == (State.FAILED, "it had not ended after 0 s")


def _found_and_then(what: str) -> Iterator[Verdict]:
    yield told("one", "1")
    yield told("two", "2")
    if what == "dies":
        os._exit(3)
    if what == "raises":
        raise RuntimeError("broke")
    time.sleep(600)


@pytest.mark.parametrize(
    ("what", "says"),
    [("dies", "its process died: exit code 3"), ("raises", "broke"), ("hangs", "it had not ended after 1 s")],
)
def test_what_a_check_had_found_before_it_was_cut_is_kept(what: str, says: str, settings: Settings) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=parts.carry_out, args=(lambda _: _found_and_then(what), "x", settings, theirs)
    )
    process.start()
    theirs.close()
    came = list(parts.received("x", process, ours, 1.0 if what == "hangs" else 60.0))
    assert [verdict.found for verdict in came] == ["1", "2", says]
    assert not process.is_alive()


def test_all_checks_have_time_within_the_budget() -> None:
    whole = Settings()
    expected = whole.compile_s + whole.infers_s + whole.cycled_s + 2 * whole.cluster_s
    assert expected < command.BUDGET_S
    assert all(patience_s(name, whole) <= command.BUDGET_S for name in PARTS)


@pytest.mark.parametrize(
    ("found", "code"), [(told("compiled", "38 models"), 0), (failed("x", "y"), 1), (not_run("x", "y"), 1)]
)
def test_compiling_alone_has_the_whole_budget_and_is_good_if_all_was_compiled(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Verdict, code: int
) -> None:
    limits: list[tuple[float, float]] = []

    def check(_name: str, settings: Settings, limit_s: float, _: object) -> list[Verdict]:
        limits.append((settings.compile_s, limit_s))
        return [found]

    monkeypatch.setattr(command, "missing", lambda _device: "")
    monkeypatch.setattr(command, "run_alone", check)
    flags = ["--only", "compile", "--budget", "580", "--output", str(tmp_path)]
    assert CliRunner().invoke(app, flags).exit_code == code
    ((compile_s, limit_s),) = limits
    assert compile_s == pytest.approx(580 - command.LAST_S, abs=5)
    assert compile_s < limit_s <= 580, "it would be ended before it says what is missing"


def test_models_are_compiled_beforehand_without_a_gpu(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def check(_name: str, settings: Settings, *_: object) -> list[Verdict]:
        asked.append(settings)
        return []

    monkeypatch.setattr(command, "run_alone", check)
    flags = ["--arch", "sm_90", "--output", str(tmp_path)]
    assert CliRunner().invoke(app, ["--only", "compile", *flags]).exit_code == 0
    assert [(settings.arch, settings.on_gpu) for settings in asked] == [("sm_90", True)]
    assert asked[0].compile_s == pytest.approx(command.COMPILE_S - command.LAST_S, abs=5)
    result = CliRunner().invoke(app, flags, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "only what compiles can do without a GPU" in result.output
