"""Ctrl-C at any time: one line and exit code 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo
from tests.patience import PATIENCE_S

BEFORE = """
import os, signal, sys, threading
from mainspring.__main__ import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            after_s = {after_s}
            interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
            threading.Timer(after_s, interrupt).start() if after_s else interrupt()

sys.meta_path.insert(0, Interrupts())
sys.argv = ["mainspring", *{words!r}]
main()
"""
"""A program that is interrupted as it begins to import a module, or some time after that."""


def interrupted(words: list[str], module: str, after_s: float = 0.0) -> tuple[int, str]:
    program = BEFORE.format(module=module, words=words, after_s=after_s)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["status"], "mainspring.cli.main"),
        (["status"], "typer"),
        (["--help"], "mainspring.cli.verbs.zoo"),
        (["status"], "mainspring.client.client"),
        (["infer", "m"], "numpy"),
        (["zoo", "digits", "--store", "store"], "onnx"),
    ],
)
def test_while_modules_are_imported(
    words: list[str], module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert interrupted(words, module) == (130, "mainspring: interrupted\n")


def test_while_a_verb_waits(tmp_path: Path) -> None:
    words = ["top", "--once", "--controller", f"unix://{tmp_path}/nobody"]
    assert interrupted(words, "mainspring.console.terminal.running", 1.0) == (
        130,
        "mainspring: interrupted\n",
    )


def test_while_another_thread_computes_in_native_code(tmp_path: Path) -> None:
    """ONNX Runtime's threads go on until the process ends; without the interpreter they crash."""
    list(compile_zoo(["resnet20"], Store(tmp_path / "store"), batch_sizes=(1, 2)))
    words = ["profile", "--store", str(tmp_path / "store"), "--seconds", "60", "--no-realtime"]
    for after_s in (0.5, 0.8, 1.1):
        code, said = interrupted(words, "mainspring.cli.profiling.lone_device", after_s)
        assert (code, said) == (130, "mainspring: interrupted\n"), signal.Signals(-code) if code < 0 else said
