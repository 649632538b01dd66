"""What `make test` makes of tests that fail: real runs of pytest over small folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import halves

PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    assert False\n"
FAILS_ONCE = """
from pathlib import Path
HERE = Path(__file__).with_suffix(".seen")
def test_it():
    before = HERE.exists()
    HERE.touch()
    assert before
"""
DIES = "import os\ndef test_it():\n    os._exit(1)\n"


@pytest.mark.parametrize(
    ("waits", "computes", "code"),
    [
        (PASSES, PASSES, 0),
        (FAILS_ONCE, PASSES, 0),
        (PASSES, FAILS_ONCE, 0),
        (FAILS_ONCE, FAILS_ONCE, 0),
        (FAILS, PASSES, 1),
        (FAILS_ONCE, FAILS, 1),
        (DIES, PASSES, 1),
        (FAILS_ONCE, DIES, 1),
        ("import nothing.such\n", FAILS_ONCE, 2),
    ],
)
def test_what_fails_twice_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], waits: str, computes: str, code: int
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for folder, text in (("gateway", waits), ("scheduler", computes)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(text)
    assert halves.main([], tmp_path / "tests") == code
    if DIES not in (waits, computes):
        assert {path.name for path in (tmp_path / "out" / "tests").iterdir()} == {
            "waiting.xml",
            "computing.xml",
        }
    once = FAILS_ONCE in (waits, computes)
    assert ("passed only when run alone" in capfd.readouterr().out) == (once and code == 0)


def test_many_failures_are_no_accident(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "FEW", 2)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number in range(3):
        (tmp_path / "tests" / f"folder{number}").mkdir(parents=True)
        (tmp_path / "tests" / f"folder{number}" / f"test_{number}.py").write_text(FAILS_ONCE)
    (tmp_path / "tests" / "scheduler").mkdir()
    (tmp_path / "tests" / "scheduler" / "test_it.py").write_text(PASSES)
    assert halves.main([], tmp_path / "tests") == 1
    assert "once more" not in capfd.readouterr().out
