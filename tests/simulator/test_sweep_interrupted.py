"""A sweep that is given up: Ctrl-C ends it and its processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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


@contextmanager
def sweeping(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a sweep whose first point has ended, in a group of processes of its own."""
    (folder / "spec.toml").write_text(SPEC)
    words = ["simulate", "spec.toml", "--sweep", f"duration_s=0.2,{LONG}", "--processes", "2"]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "mainspring", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert sweep.stderr is not None
        assert sweep.stderr.readline().startswith("1/7")
        yield sweep
    finally:
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
            sweep.wait()
        assert sweep.stderr is not None
        sweep.stderr.close()


def test_ctrl_c_ends_a_sweep_and_its_processes(tmp_path: Path) -> None:
    with sweeping(tmp_path) as sweep:
        os.killpg(sweep.pid, signal.SIGINT)
        assert sweep.wait(SLOW_S) == 130
        assert sweep.stderr is not None
        assert sweep.stderr.read() == "mainspring: interrupted\n"
        assert is_gone(sweep.pid)


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.02])
def test_a_second_ctrl_c_leaves_no_process_behind(tmp_path: Path, pause_s: float) -> None:
    with sweeping(tmp_path) as sweep:
        os.killpg(sweep.pid, signal.SIGINT)
        time.sleep(pause_s)
        os.killpg(sweep.pid, signal.SIGINT)
        # It may come while the command line ends for the first, which is then as if nobody had caught it.
        assert sweep.wait(SLOW_S) in (130, -signal.SIGINT)
        assert is_gone(sweep.pid)
