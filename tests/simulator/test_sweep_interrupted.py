"""A sweep that is given up: Ctrl-C ends it and its processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SPEC = """
warm_up_s = 0.1
[[devices]]
[[models]]
name = "m"
infer_ms = { 1 = 2.6 }
[[workload]]
rate = 200
"""
LONG = ",".join(str(30_000 + place) for place in range(6))
"""More points than processes, each of minutes."""
SLOW_S = 300.0
"""These processes may have no more than the time that other tests leave."""


def is_gone(group: int) -> bool:
    """Return whether a group of processes ends in time."""
    until_s = time.monotonic() + SLOW_S
    try:
        while time.monotonic() < until_s:
            os.killpg(group, 0)
            time.sleep(0.02)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_ends_a_sweep_and_its_processes(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    words = ["simulate", "spec.toml", "--sweep", f"duration_s=0.2,{LONG}", "--processes", "2"]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "mainspring", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert sweep.stderr is not None
        assert sweep.stderr.readline().startswith("1/7")
        for _ in range(2):
            os.killpg(sweep.pid, signal.SIGINT)
        assert sweep.wait(SLOW_S) == 130
        assert sweep.stderr.read() == ""
        assert is_gone(sweep.pid)
    finally:
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
            sweep.wait()
