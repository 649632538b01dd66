"""Whole clusters of real processes: one is stopped, killed or vanishes under load, and every request still
gets its one reply, in time for those that could be served elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest

from mainspring import Client, MainspringError
from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.result import InferResult
from mainspring.messages.status import ClusterStatus
from tests.patience import PATIENCE_S

INPUT = {"data": np.zeros((1, 1000), np.float32)}
SLO_MS = 2_000
CLIENT_PROGRAM = """
import sys, time
import numpy as np
from mainspring import Client
with Client(sys.argv[1]) as client:
    x = {"data": np.zeros((1, 1000), np.float32)}
    client.infer("quick-1", x, slo_ms=20_000)
    print("served", flush=True)
    while True:
        futures = [client.submit(f"quick-{n % 2 + 1}", x, slo_ms=2_000) for n in range(200)]
        [future.exception(20) for future in futures]
"""


@contextmanager
def local(emulated: Callable[..., Config], workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    with (
        LocalCluster(make_plan(emulated(workers=workers)), lambda _: None) as cluster,
        Client(cluster.address, connect_timeout_s=PATIENCE_S) as client,
    ):
        yield cluster, client


def load(
    client: Client, seconds: float, at: dict[int, Callable[[], None]], slo_ms: float = SLO_MS
) -> list[Future[InferResult]]:
    """Submit 200 requests a second, evenly over both models; do what ``at`` says before so many of them."""
    futures = []
    begin_s = time.monotonic()
    for number in range(round(200 * seconds)):
        if number in at:
            at[number]()
        futures.append(client.submit(f"quick-{number % 2 + 1}", INPUT, slo_ms=slo_ms))
        time.sleep(max(0.0, begin_s + number / 200 - time.monotonic()))
    return futures


def outcomes(futures: list[Future[InferResult]]) -> list[str]:
    """Wait for every reply; return what each was: "ok", or its reason."""
    found = []
    for future in futures:
        error = future.exception(30)
        assert error is None or isinstance(error, MainspringError), error
        found.append("ok" if error is None else str(error.reason))
    return found


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain for {what}"
        time.sleep(0.05)


def settled(status: ClusterStatus) -> bool:
    """Whether nothing is under way, and every request that was submitted has had its one ending."""
    seen = status.dropped_messages
    ended = seen.get("answered", 0) + seen.get("refused", 0) + seen.get("abandoned", 0)
    idle = status.requests_queued == 0 and not any(worker.outstanding for worker in status.workers)
    return idle and seen["submitted"] == ended and "scheduler_error" not in seen


@pytest.mark.timing("nine in ten of 200 requests a second are answered within two seconds")
@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_a_worker_stopped_and_continued_under_load(emulated: Callable[..., Config], seconds: float) -> None:
    """Shorter than the heartbeat's timeout it is only late; longer, it has left and joins again."""
    with local(emulated, 2) as (cluster, client):
        pid = cluster.supervisor.pid("worker-0") or 0
        at = {
            100: lambda: os.kill(pid, signal.SIGSTOP),
            100 + round(200 * seconds): lambda: os.kill(pid, signal.SIGCONT),
        }
        try:
            found = outcomes(load(client, 2.0 + seconds, at))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert found.count("ok") >= 0.9 * len(found), Counter(found)
        assert set(found[-100:]) == {"ok"}, Counter(found[-100:])
        wait_for(lambda: len(client.status().workers) == 2, "the worker to be back")
        wait_for(lambda: settled(client.status()), "everything to end")
        assert cluster.supervisor.starts("worker-0") == 1


def test_a_client_that_is_killed_with_requests_in_flight(emulated: Callable[..., Config]) -> None:
    with local(emulated, 1) as (cluster, client):
        command = [sys.executable, "-c", CLIENT_PROGRAM, cluster.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "served\n"
            futures = load(client, 1.5, {150: victim.kill}, slo_ms=5_000)
        assert set(outcomes(futures)) == {"ok"}
        wait_for(lambda: settled(client.status()), "the dead client's requests to be forgotten")


def test_a_gateway_that_is_killed_with_requests_in_flight(emulated: Callable[..., Config]) -> None:
    """Its clients are told; the next gateway serves, and nothing of the first is left in the way."""
    with local(emulated, 1) as (cluster, client):
        at = {150: lambda: os.kill(cluster.supervisor.pid("gateway") or 0, signal.SIGKILL)}
        found = outcomes(load(client, 1.0, at, slo_ms=5_000))
        assert set(found) <= {"ok", "gateway_unreachable", "None"}, Counter(found)
        wait_for(lambda: cluster.supervisor.starts("gateway") == 2, "the restart")
        wait_for(lambda: outcomes(load(client, 0.005, {}, 5_000)) == ["ok"], "the next gateway to serve")
        assert set(outcomes(load(client, 0.5, {}, slo_ms=5_000))) == {"ok"}
        wait_for(lambda: settled(client.status()), "everything to end")
