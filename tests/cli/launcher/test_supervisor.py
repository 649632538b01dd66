"""The supervisor on a machine that has run out of something: one death must not become everyone's."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.process_plan import Plan
from mainspring.cli.launcher.supervisor import Supervisor
from mainspring.gateway.config import GatewayConfig
from mainspring.repository.config import RepositoryConfig

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What is started from now on: processes that end as soon as their input does."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options["stdin"] = subprocess.PIPE
        started.append(popen([sys.executable, "-c", "input()"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield started
    for child in started:
        child.communicate()


def supervise(run_dir: Path, said: list[str]) -> Supervisor:
    """A supervisor whose two processes, ``a`` and ``b``, have been started."""
    cluster = SimpleNamespace(restart_delay_ms=0, restart_delay_max_ms=0)
    jobs = tuple(GatewayJob(name=name, gateway=GatewayConfig()) for name in ("a", "b"))
    workers = SimpleNamespace(workers=1, max_workers=1, stop_timeout_s=1.0)
    pool = SimpleNamespace(kinds=(), config=SimpleNamespace(cluster=workers))
    plan = SimpleNamespace(
        jobs=jobs, run_dir=run_dir, cluster=cluster, repository=RepositoryConfig(), pool=pool
    )
    supervisor = Supervisor(cast(Plan, plan), said.append)
    supervisor._serving = True
    for process in supervisor._processes:
        process.start()
    return supervisor


def fail(*_: object, **__: object) -> None:
    raise FULL


def test_a_process_that_dies_while_the_disk_is_full_is_started_again(
    tmp_path: Path, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = supervise(tmp_path, [])
    monkeypatch.setattr(Path, "write_bytes", fail)
    children[0].communicate()
    supervisor._tend()
    assert (supervisor.starts("a"), supervisor.starts("b")) == (2, 1)


def test_a_process_that_cannot_be_started_is_tried_again_and_the_others_go_on(
    tmp_path: Path, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    supervisor = supervise(tmp_path, said)
    children[0].communicate()
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", fail)
        supervisor._tend()
    assert supervisor.pid("b") == children[1].pid
    assert "a can't be started ([Errno 28] No space left on device); trying again in 0 ms" in said[-1]
    supervisor._tend()
    assert supervisor.pid("a") == children[2].pid
