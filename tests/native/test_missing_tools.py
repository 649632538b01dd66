"""Without the tools that compiling needs, set-up goes on and says what that costs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mainspring import extras
from mainspring.native import builder, store


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    changed = {**os.environ, store.FOLDER: str(folder), store.SWITCH: "", **environment}
    command = [sys.executable, "-m", "mainspring.native", *arguments]
    return subprocess.run(command, env=changed, text=True, capture_output=True, check=False)


def test_set_up_goes_on_without_a_compiler(tmp_path: Path) -> None:
    done = run(tmp_path / "store", CC="no-such-compiler -O2")
    assert done.returncode == 0
    assert "the scheduler" in done.stderr
    assert (
        "3 to 4 times the CPU: missing: the C compiler 'no-such-compiler' (apt-get install gcc" in done.stderr
    )
    assert not (tmp_path / "store").exists()


def test_strict_fails_without_a_compiler(tmp_path: Path) -> None:
    assert run(tmp_path, "--strict", CC="no-such-compiler").returncode == 1


def test_switched_off_nothing_is_compiled(tmp_path: Path) -> None:
    done = run(tmp_path, CC="no-such-compiler", **{store.SWITCH: "0"})
    assert done.returncode == 0
    assert done.stdout == "native: MAINSPRING_NATIVE=0: everything runs as Python\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file" / "store")
    assert done.returncode == 0
    assert f"{tmp_path / 'file' / 'store'} can't be written to" in done.stderr


def test_everything_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builder, "find_spec", lambda _: None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(builder.CannotCompile) as caught:
        builder.check_tools()
    for wanted in (extras.command("serve"), "apt-get install gcc", "apt-get install python3-dev"):
        assert wanted in str(caught.value)
