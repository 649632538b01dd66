"""What the processes call while a request is under way, and that the architecture names it."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.experiments.request_path import ROOT, lines_of, paths

ELSEWHERE = {"gateway/grpc/inference.py", "worker/engines/cuda/engine.py"}
"""Files of the section that these requests do not pass: they go over ZeroMQ and HTTP, to emulated devices."""


def named() -> set[str]:
    """Return the files that the architecture says a request passes."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## One request through the files")[2].partition("\n## ")[0]
    return set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", section))


def test_a_request_passes_the_files_that_the_architecture_names(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert set(found) == {"zeromq", "http", "zeromq, with a LOAD"}
    assert set(found["zeromq"]) == {"client", "gateway", "controller", "worker"}
    assert lines_of(found["zeromq"]["client"]) > 500
    passed = set[str]().union(*[files for way in found.values() for files in way.values()])
    assert len(named()) > 15
    assert named() - passed == ELSEWHERE
