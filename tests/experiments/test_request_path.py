"""What the processes run while a request is under way, and that the architecture names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mainspring.experiments import request_path
from mainspring.experiments.request_path import ROOT, lines_of, passed, paths

ELSEWHERE = {
    *("gateway/grpc/inference.py", "worker/engines/cuda/engine.py"),
    *("gateway/graphs/run.py", "messages/queries.py", "scheduler/queries.py"),
}
"""Files of the section that these requests do not pass: they go over ZeroMQ and HTTP, to one model on the
CPU, a row each."""


def named() -> set[str]:
    """Return the files that the architecture says a request passes."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## One request through the files")[2].partition("\n## ")[0]
    return set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", section))


def test_a_request_passes_the_files_that_the_architecture_names(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert {"zeromq", "http", "zeromq, with a LOAD", "a LOAD alone"} <= set(found)
    assert set(found["zeromq"]) == {"client", "gateway", "controller", "worker"}
    assert lines_of(found["zeromq"]["client"]) > 500
    passed = set[str]().union(*[files for way in found.values() for files in way.values()])
    assert len(named()) > 15
    assert named() - passed == ELSEWHERE


def test_a_struct_is_passed_where_a_line_that_ran_creates_it_or_a_function_that_ran_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_path, "ROOT", tmp_path)
    sources = {
        "messages/said.py": "import msgspec\n\n\nclass Said(msgspec.Struct):\n    text: str\n",
        "messages/told.py": "from mainspring.messages.said import Said\n\n\nclass Told(Said):\n    to: str\n",
        "gateway/rooms.py": "from typing import NamedTuple\n\n\nclass Room(NamedTuple):\n    seats: int\n",
        "gateway/act.py": (
            "from mainspring.gateway.rooms import Room\n"
            "from mainspring.messages.told import Told\n"
            "\n\n"
            "def hear(told: Told, room: Room) -> None:\n"
            "    print(told)\n"
            "\n\n"
            "def book() -> Room:\n"
            "    return Room(3)\n"
        ),
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    act = str(tmp_path / "gateway" / "act.py")
    assert passed([(act, 5)]) == {"gateway/act.py"}, "defined, not called"
    assert passed([(act, 6)]) == {"gateway/act.py", "messages/told.py"}
    assert passed([(act, 10)]) == {"gateway/act.py", "gateway/rooms.py"}
    assert passed([("/usr/lib/python3/os.py", 1), ("<string>", 1)]) == set()
