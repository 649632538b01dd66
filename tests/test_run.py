"""What the commands of the Makefile make of tests that fail: real runs of pytest over small files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run
from tests.run import Part

NOTHING_TO_RUN = 5
"""Pytest's exit code where it knew its arguments and found no test."""
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_that():\n    assert False\n"
DIES = "import os\ndef test_it():\n    os._exit(1)\n"
FAILS_ONCE = """
import pytest
from pathlib import Path
HERE = Path(__file__).with_suffix(".seen")
@pytest.mark.timing("counts what the host takes")
def test_late():
    before = HERE.exists()
    HERE.touch()
    assert before
"""
FAILS_TWICE = FAILS_ONCE.replace("assert before", "assert False")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tests with the fixture that watches the host."""
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {run.ROOT}\naddopts = --import-mode=importlib -p no:cacheprovider\n"
        "markers = timing\n"
    )
    (tmp_path / "conftest.py").write_text("from tests.conftest import watched_host\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "KEPT", tmp_path / "out" / "tests")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code", "again"),
    [
        (PASSES, 0, False),
        (PASSES + FAILS, 1, False),
        (FAILS_ONCE, 0, True),
        (FAILS_TWICE, 1, True),
        (FAILS_ONCE + FAILS, 1, False),
        (DIES, 1, False),
    ],
)
def test_only_timing_tests_run_once_more_with_what_the_host_took(
    project: Path, capfd: pytest.CaptureFixture[str], text: str, code: int, again: bool
) -> None:
    (project / "test_small.py").write_text(text)
    part = Part("small", ("test_small.py",))
    assert run.settle({part: run.run(part)}) == code
    said = capfd.readouterr().out
    assert ("once more, alone" in said) == (said.count("stolen by the host") == 2) == again
    assert part.kept.exists() == (text != DIES)


@pytest.mark.parametrize(("tested", "linted"), [(0, 0), (1, 0), (0, 3)])
def test_what_runs_beside_is_shown_whole_and_counts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tested: int, linted: int
) -> None:
    lints = f"import os; print('linted', os.getpriority(os.PRIO_PROCESS, 0)); raise SystemExit({linted})"
    monkeypatch.setattr(run, "CHECKS", (sys.executable, "-c", lints))
    monkeypatch.setattr(run, "run", lambda part: 4 * tested if part is run.UNIT else 0)
    assert run.main(["quick"]) == (4 * tested or linted)
    said = capfd.readouterr().out
    assert said.index("which ran beside") < said.index(
        f"linted {max(10, os.getpriority(os.PRIO_PROCESS, 0))}\n"
    )
    assert said.endswith("quick: FAILED\n" if tested or linted else "quick: passed\n")


STANDS_IN = """
import os, sys
print(sys.argv[1], os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)
sys.exit({"--tier=patient": PATIENT, "--tier=codegen": CODEGEN}[sys.argv[1]])
"""


@pytest.mark.parametrize(("patient", "codegen"), [(0, 0), (3, 0), (0, 4)])
def test_what_runs_beside_real_time_comes_after_it_and_counts(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    patient: int,
    codegen: int,
) -> None:
    program = STANDS_IN.replace("PATIENT", str(patient)).replace("CODEGEN", str(codegen))
    monkeypatch.setattr(run, "PYTEST", (sys.executable, "-c", program))
    ran: list[str] = []

    def note(part: Part) -> int:
        ran.append(part.name)
        return 0

    monkeypatch.setattr(run, "run", note)
    assert run.rest() == patient + codegen
    assert ran == ["cluster", "lab", "compiled"]
    said = capfd.readouterr().out
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    # Where this test runs on idle time itself, so does what it starts.
    assert f"--tier=patient {max(niceness, 10)} {os.sched_getscheduler(0) == os.SCHED_IDLE}" in said
    assert f"--tier=codegen {niceness} True" in said


def test_a_tier_is_found_by_its_name_though_a_folder_has_the_same() -> None:
    command = [*run.PYTEST, *run.tier("cluster").options, "--collect-only", "--ignore-glob=*/test_*"]
    found = subprocess.run(command, cwd=run.ROOT, text=True, capture_output=True, check=False)
    assert found.returncode == NOTHING_TO_RUN, found.stderr


def test_an_unknown_tier_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["all"]) == 2
    assert "quick|rest|unit|cluster|codegen|patient|lab" in capsys.readouterr().err


def test_a_tier_that_a_signal_ended_has_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run", lambda _: -9)
    assert run.main(["unit"]) == 9
    assert capfd.readouterr().out.endswith("unit: FAILED\n")
