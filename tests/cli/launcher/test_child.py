"""The processes of a local cluster, as the launcher starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.gateway.config import GatewayConfig
from tests.patience import PATIENCE_S

SAYS_ITS_CLASSES = """
import os, sys
from mainspring.cli.launcher import child, jobs

jobs.GatewayJob.run = lambda job, stop: print(os.sched_getscheduler(0))
child.main(sys.argv[1])
print(os.sched_getscheduler(0))
"""


@pytest.mark.parametrize("server", ["mainspring.worker.server", "mainspring.gateway.server"])
def test_a_process_starts_without_what_others_run(server: str) -> None:
    others = (
        "mainspring.scheduler.core",
        "mainspring.controller.recovery",
        "http.client",
        "importlib.metadata",
    )
    program = (
        f"import sys, mainspring.cli.launcher.child, {server}\n"
        f"print([name for name in {others} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("parents", "own"), [(5, 0), (5, 3)])
def test_niceness_is_added_to_that_of_the_launcher(tmp_path: Path, parents: int, own: int) -> None:
    gateway, controller = free_ports(2)
    job = GatewayJob(
        name="gateway",
        gateway=GatewayConfig(
            address=f"tcp://127.0.0.1:{gateway}",
            keyless_loopback=True,
            controller_address=f"tcp://127.0.0.1:{controller}",
        ),
        nice=own,
        parent_pid=os.getpid(),
        log_level="INFO",
    )
    path = tmp_path / "gateway.json"
    path.write_bytes(msgspec.json.encode(job))
    # `nice` and what it runs are one process, whose parent is this one.
    command = ["nice", "-n", str(parents), sys.executable, "-m", "mainspring.cli.launcher.child", str(path)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        give_up_s = time.monotonic() + PATIENCE_S
        while not listened(gateway):
            assert child.poll() is None
            assert time.monotonic() < give_up_s, "the gateway does not listen"
            time.sleep(0.02)
        expected = os.getpriority(os.PRIO_PROCESS, 0) + parents + own
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == expected
    finally:
        child.terminate()
        child.wait()


def test_what_ends_a_process_has_no_real_time_priority(tmp_path: Path) -> None:
    job = GatewayJob(
        name="gateway",
        gateway=GatewayConfig(address="tcp://127.0.0.1:1", keyless_loopback=True),
        priority=1,
        parent_pid=os.getpid(),
    )
    path = tmp_path / "gateway.json"
    path.write_bytes(msgspec.json.encode(job))
    run = [sys.executable, "-c", SAYS_ITS_CLASSES, str(path)]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.split()
    while_it_serves, at_the_end = map(int, said)
    assert while_it_serves in {os.SCHED_FIFO, os.SCHED_OTHER}, "the latter where the user may not"
    assert at_the_end == os.SCHED_OTHER


def listened(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    wanted = f":{port:04X} 00000000:0000 0A"
    return any(wanted in line for line in Path("/proc/net/tcp").read_text().splitlines())
