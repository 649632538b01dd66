"""``mainspring up`` as a person runs it: a process, its output, and signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S

PROFILES = """model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms
quick,4,4,20,2,2,3,4,6,9
patient,4,4,20,2,300,300,300,300,300
"""
INPUT = {"data": np.zeros((1, 1000), np.float32)}


@contextmanager
def up(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a cluster from flags; yield it with its gateway's address once it says that it is ready."""
    (folder / "profiles.csv").write_text(PROFILES)
    command = [sys.executable, "-m", "mainspring", "up", "--engine", "emulated", "--profiles", "profiles.csv"]
    with subprocess.Popen(
        [*command, "--pages", "8", "--port", "0", *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready tcp://127.0.0.1:"), (
                line + process.communicate(timeout=PATIENCE_S)[1]
            )
            yield process, line.split()[1]
        finally:
            process.kill()


def second_signal(process: subprocess.Popen[str]) -> int:
    """Return how the process ended at a second signal, sent again in case it had not seen the first."""
    for _ in range(10):
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(2)
    raise AssertionError("it goes on")


def gone(pids: list[int], timeout_s: float = PATIENCE_S) -> bool:
    give_up = time.monotonic() + timeout_s
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_ready_once_and_a_signal_drains_it(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path) as (process, address), Client(address) as client:
        assert "output" in client.infer("quick", INPUT, slo_ms=5000)
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(children) == 4, "gateway, controller, console and a worker"
        running = client.submit("patient", INPUT, slo_ms=5000)
        wait_until(lambda: client.status().dropped_messages["submitted"] == 2)
        assert process.stdout is not None
        block = [process.stdout.readline() for _ in range(4)]
        process.send_signal(number)
        assert "output" in running.result(PATIENCE_S), "what was accepted should be answered before it leaves"
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "")
        assert [line.split()[0] for line in block] == ["http", "grpc", "metrics", "console"]
        assert all(len(line) <= 80 for line in block)
        said = err.splitlines()
        assert said[0] == "mainspring: checking the addresses ..."
        steps = ["starting controller ...", "starting worker-0 ...", "stopping: requests in flight have"]
        found = [next(n for n, line in enumerate(said) if step in line) for step in steps]
        assert found == sorted(found)
        assert "died" not in err
        assert gone(children)


def answers(client: Client) -> bool:
    try:
        return "output" in client.infer("quick", INPUT, slo_ms=1_000)
    except MainspringError:
        return False


def test_it_serves_on_and_stops_on_sigterm_though_nobody_reads_what_it_says(tmp_path: Path) -> None:
    with up(tmp_path) as (process, address), Client(address) as client:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        children = psutil.Process(process.pid).children(recursive=True)
        (worker,) = [each for each in children if any("worker-0" in word for word in each.cmdline())]
        worker.kill()
        worker.wait(PATIENCE_S)
        wait_until(lambda: answers(client))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with up(tmp_path, "--drain-timeout", "60min") as (process, _):
        children = psutil.Process(process.pid).children(recursive=True)
        for child in children:
            child.suspend()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None, "it should be waiting for its children to drain"
        assert second_signal(process) == 130
        assert gone([child.pid for child in children])


def test_what_does_not_drain_in_the_stated_time_is_killed(tmp_path: Path) -> None:
    with up(tmp_path, "--drain-timeout", "500ms") as (process, _):
        children = psutil.Process(process.pid).children(recursive=True)
        for child in children:
            child.suspend()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "did not stop in 0.5 s: killed" in err
        assert gone([child.pid for child in children])


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with up(tmp_path) as (process, _):
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        process.wait(PATIENCE_S)
        assert gone(children), "processes of a cluster outlived it"
