"""``--rehearse``: every check runs to its end without a GPU, and nothing that it finds counts as met."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.experiments.gpu_check.parts import PARTS
from mainspring.worker.engines.cuda import driver as drivers

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(600)
def test_every_check_is_rehearsed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mainspring.experiments.gpu_check",
        "--rehearse",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["check"] for line in lines)) == list(PARTS)
    assert {line["verdict"]["state"] for line in lines} == {"", "rehearsed", "not run"}
    judged = {line["check"] for line in lines if line["verdict"]["state"] == "rehearsed"}
    assert judged == {*PARTS} - {"device", "compile", "pinning", "sessions"}
    assert "the figures mean nothing" in (tmp_path / "gpu-check.md").read_text()
    assert "0 met, 0 missed, 0 failed" in done.stdout


def test_what_stands_in_for_cuda_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drivers.BINDINGS, "mainspring.experiments.gpu_check.rehearsal.bindings")
    first, second = drivers.open_driver(0), drivers.open_driver(0)
    assert first is second, "who opens a device twice in a process has one memory"
    assert drivers.choose_bindings().describe_device(0)[:3] == (first.name(), first.bus_id(), first.arch())
    first.attach()
    kernel = first.function(first.load_module(b""), "of any name", 0)
    stream, event = first.stream(), first.event()
    first.launch(kernel, (1, 1, 1), (32, 1, 1), 0, id(kernel), stream)
    first.record(event, stream)
    first.synchronize(event)
