"""CI draws the same each time; `make fuzz` draws more and other things, and says how to repeat what fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz

CONFTEST = """
import os
from tests import conftest, fuzz
from tests.conftest import pytest_runtest_setup
def pytest_collection_modifyitems(items):
    if fuzz.SEED is not None:
        fuzz.vary(items)
    if "THIN" in os.environ:
        fuzz.thin(items)
"""
TESTS = """
import json
from pathlib import Path
from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.fuzz import seeded
DRAWN = {"property": [], "machine": [], "seeded": []}

@settings(max_examples=8)
@given(st.integers(0, 1 << 60))
def test_property(number):
    DRAWN["property"].append(number)
    assert number < FAILS

class Machine(RuleBasedStateMachine):
    @rule(number=st.integers(0, 1 << 60))
    def add(self, number):
        DRAWN["machine"].append(number)

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=8, stateful_step_count=2)

@seeded(3, first=10, also=[7])
def test_seeds(seed):
    DRAWN["seeded"].append(seed)

def test_at_the_end():
    Path("drawn.json").write_text(json.dumps(DRAWN))
"""
NEVER = 1 << 61


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tests that note what they draw, and with what `tests/conftest.py` does for it."""
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {Path(fuzz.__file__).parent.parent}\nmarkers = seeded\n"
        "addopts = --import-mode=importlib -p _hypothesis_pytestplugin -p pytest_timeout -p xdist\n"
    )
    (tmp_path / "conftest.py").write_text(CONFTEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(fuzz.ROUND, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def write(project: Path, fails: int = NEVER) -> None:
    (project / "test_it.py").write_text(TESTS.replace("FAILS", str(fails)))


def drawn(project: Path, round_: int | None = None) -> dict[str, list[int]]:
    """Run the tests; return what they drew."""
    variables = {} if round_ is None else {fuzz.ROUND: str(round_), "MAINSPRING_EXAMPLES": "4"}
    command = [sys.executable, "-m", "pytest", "-q", "test_it.py"]
    subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True)
    found: dict[str, list[int]] = json.loads((project / "drawn.json").read_text())
    return found


def test_the_same_is_drawn_each_time_and_other_things_in_each_round(project: Path) -> None:
    write(project)
    usual = drawn(project)
    assert usual == drawn(project)
    assert usual["seeded"] == [7, 10, 11, 12]
    one, other = drawn(project, 1), drawn(project, 2)
    assert one == drawn(project, 1), "a round is repeated by its number"
    for what, numbers in usual.items():
        assert len(one[what]) >= 3 * len(numbers)
        assert len(set(one[what]) & set(other[what])) < len(numbers), what


def test_what_runs_again_draws_a_part_of_the_examples_and_all_seeds(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project)
    usual = drawn(project)
    monkeypatch.setenv("THIN", "")
    thin = drawn(project)
    assert len(thin["property"]) == len(usual["property"]) / fuzz.FEWER
    assert 0 < len(thin["machine"]) < len(usual["machine"]) / 2
    assert thin["seeded"] == usual["seeded"]


def test_rounds_follow_until_one_fails_which_says_how_to_repeat_it(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(project, fails=2)
    assert fuzz.main(["1", "-n0", "test_it.py"]) == 1
    said = capfd.readouterr().out
    assert "test_property" in said
    assert "1 failed" in said
    (found,) = re.findall(rf"{fuzz.ROUND}=(\d+) pytest TEST", said)
    assert int(found) < fuzz.ROUNDS


def test_what_has_not_begun_when_the_time_is_over_is_skipped(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(project, fails=2)
    assert fuzz.main(["0", "-n0", "test_it.py"]) == 0
    assert re.search(r"\d+ skipped", capfd.readouterr().out)


def test_without_a_time_its_usage_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main([]) == 2
    assert "python -m tests.fuzz MINUTES" in capsys.readouterr().err
