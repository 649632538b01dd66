"""A local cluster that grows and shrinks: real processes on emulated devices."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import psutil
import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.jobs import Job
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import Backoff, Crew, LocalCluster, Process
from mainspring.client.client import Client
from mainspring.client.errors import DeadlineError, InvalidRequest, MainspringError, TimedOut
from mainspring.client.result import InferResult
from mainspring.compiler.artifact.profiles import EMULATED
from tests.cli.launcher.test_local import INPUT, ends_well, wait_for
from tests.patience import PATIENCE_S


def running(client: Client) -> tuple[int, int, int]:
    (kind,) = client.status().kinds
    return kind.wanted, kind.running, len(kind.leaving)


def scale(client: Client, count: int) -> None:
    client.scale_workers(EMULATED, count)
    wait_for(lambda: running(client) == (count, count, 0), f"{count} workers")


class Load:
    """Requests that are sent steadily from a thread of their own."""

    def __init__(self, client: Client, rate: float, slo_ms: float) -> None:
        self.futures: list[Future[InferResult]] = []
        self._client, self._gap_s, self._slo_ms = client, 1 / rate, slo_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            model = f"{('quick', 'slow')[len(self.futures) % 2]}-{len(self.futures) // 2 % 2 + 1}"
            self.futures.append(self._client.submit(model, INPUT, slo_ms=self._slo_ms))
            due_s += self._gap_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def end(self) -> Counter[str]:
        """Stop, and return what became of the requests."""
        self._stop.set()
        self._thread.join()
        found: Counter[str] = Counter()
        for future in self.futures:
            try:
                found["late" if future.result(PATIENCE_S).late else "in time"] += 1
            except MainspringError as error:
                refused = isinstance(error, DeadlineError) and not isinstance(error, TimedOut)
                found["refused" if refused else type(error).__name__] += 1
        return found


def test_it_grows_and_shrinks_under_load_and_loses_nothing(emulated: Callable[..., Config]) -> None:
    with (
        LocalCluster(make_plan(emulated(workers=2)), lambda _: None) as cluster,
        Client(cluster.address) as client,
    ):
        load = Load(client, rate=50, slo_ms=1000)
        for count in (4, 1, 2):
            scale(client, count)
        found = load.end()
        children = psutil.Process().children(recursive=True)
        workers = [each for each in children if "worker-" in " ".join(each.cmdline())]
        assert len(workers) == 2
    lost = sum(count for name, count in found.items() if name not in ("in time", "late", "refused"))
    assert not lost, found
    assert found["in time"] >= 0.9 * found.total(), found


def test_a_worker_that_dies_as_it_starts_is_told_and_tried_again(emulated: Callable[..., Config]) -> None:
    said: list[str] = []
    with (
        LocalCluster(make_plan(emulated(workers=1)), said.append) as cluster,
        Client(cluster.address) as client,
    ):
        supervisor = cluster.supervisor
        client.scale_workers(EMULATED, 2)
        wait_for(lambda: supervisor.runs("worker-1"), "the new worker's process")
        os.kill(supervisor.pid("worker-1") or 0, signal.SIGKILL)
        wait_for(lambda: "worker-1 died" in client.status().kinds[0].fault, "the fault in the status")
        wait_for(lambda: running(client) == (2, 2, 0), "the worker to come after all")
        wait_for(lambda: client.status().kinds[0].fault == "", "the fault to be over")
    assert any("worker-1 died (killed by signal 9)" in line for line in said)


def test_what_was_asked_for_lasts_over_a_death_of_the_controller(emulated: Callable[..., Config]) -> None:
    with (
        LocalCluster(make_plan(emulated(workers=1)), lambda _: None) as cluster,
        Client(cluster.address, connect_timeout_s=PATIENCE_S) as client,
    ):
        supervisor = cluster.supervisor
        client.scale_workers(EMULATED, 3)
        os.kill(supervisor.pid("controller") or 0, signal.SIGKILL)

        def settled() -> bool:
            try:
                return running(client) == (3, 3, 0)
            except (MainspringError, ValueError):
                return False

        wait_for(settled, "three workers after the controller's death")
        assert ends_well(client.submit("quick-1", INPUT, slo_ms=5000))


def test_what_cant_be_is_refused(emulated: Callable[..., Config]) -> None:
    with (
        LocalCluster(make_plan(emulated(workers=1, max_workers=3)), lambda _: None) as cluster,
        Client(cluster.address) as client,
    ):
        wait_for(lambda: bool(client.status().kinds), "the launcher to greet the controller")
        for kind, count, why in (
            (EMULATED, 0, "give at least 1"),
            (EMULATED, 4, "at most 3 workers"),
            (EMULATED, -2, "give 0 or more"),
            ("tpu", 1, "kinds are emulated"),
        ):
            with pytest.raises(InvalidRequest, match=why):
                client.scale_workers(kind, count)
        assert running(client) == (1, 1, 0)


def test_a_worker_without_keys_is_a_fault_until_it_has_some(emulated: Callable[..., Config]) -> None:
    plan = make_plan(emulated(workers=1))
    keys = plan.run_dir.parent / "keys"
    (keys / "worker-0").mkdir(parents=True)
    config = emulated(workers=1, keys=str(keys))
    pool = msgspec.structs.replace(plan.pool, config=config)
    processes: list[Process] = []

    def made(job: Job) -> Process:
        return Process(job, plan.run_dir, Backoff(1, 1))

    crew = Crew(pool, processes, made, lambda _: None)
    crew.run(EMULATED, ("worker-0", "worker-1"), {})
    (offer,) = crew.offers()
    assert offer.workers == ("worker-0", "worker-1")
    assert "mainspring keys issue worker worker-1" in offer.fault
    (keys / "worker-1").mkdir()
    crew.tend(time.monotonic_ns() + 10_000_000_000)
    assert crew.offers()[0].fault == ""
    assert [process.job.name for process in processes] == ["worker-1"]
    crew.run(EMULATED, ("worker-0",), {})
    assert processes == []


def test_what_is_lost_and_comes_back_is_told_where_it_was_started(emulated: Callable[..., Config]) -> None:
    """A worker that stands still, and a controller that is killed: no word of what a person can't change."""
    said: list[str] = []
    plan = make_plan(emulated(workers=1))
    with LocalCluster(plan, said.append) as cluster, Client(cluster.address) as client:
        worker = psutil.Process(cluster.supervisor.pid("worker-0"))
        worker.suspend()
        wait_for(lambda: any(text.startswith("worker worker-0 is lost: silent") for text in said), "the loss")
        worker.resume()
        wait_for(lambda: any(text.startswith("worker worker-0 is back after") for text in said), "the return")
        psutil.Process(cluster.supervisor.pid("controller")).kill()
        wait_for(lambda: any("controller died" in text for text in said), "the controller's death")
        wait_for(lambda: answers(client), "a new controller")
        scale(client, 2)
    assert not [text for text in said if "can't be scaled" in text or "hello" in text]
    log = (plan.run_dir / "controller.log").read_text()
    assert "WARNING mainspring.controller.sessions: worker worker-0 is back after" in log


def answers(client: Client) -> bool:
    try:
        return running(client) == (1, 1, 0)
    except (MainspringError, ValueError):
        return False
