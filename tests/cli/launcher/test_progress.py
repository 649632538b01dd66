from __future__ import annotations

import io

import pytest

from mainspring.cli.launcher.up import Progress


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


STEPS = ["starting gateway", "waiting: 3 of 24 models", "waiting: 9 of 24 models", "waiting: 9 of 24 models"]


def test_a_file_gets_a_line_for_each_kind_of_step() -> None:
    file = io.StringIO()
    shown = Progress(file)
    shown.briefly("reading")
    for step in STEPS:
        shown(step)
    shown.say("worker-0 died")
    shown.clear()
    assert file.getvalue().splitlines() == [
        "mainspring: starting gateway ...",
        "mainspring: waiting: 3 of 24 models ...",
        "mainspring: worker-0 died",
    ]


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = Terminal()
    shown = Progress(file)
    for step in [*STEPS, "waiting: " + 100 * "x"]:
        shown(step)
    lines = file.getvalue().split("\r\x1b[K")
    assert len(lines) == 5, "the step that was shown already is not written again"
    assert "\n" not in file.getvalue()
    assert max(map(len, lines)) == 39, "a line that wraps could not be rewritten"
    shown.say("worker-0 died")
    assert file.getvalue().endswith("\r\x1b[Kmainspring: worker-0 died\n")
