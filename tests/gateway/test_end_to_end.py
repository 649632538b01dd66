"""The real controller, real workers with the emulated engine, the real gateway and client."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.controller import running as controller_running
from mainspring.controller.config import ControllerConfig
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from tests.gateway.fakes import gateway, make_spec, wait_until
from tests.patience import PATIENCE_S

X = np.ones((2, 4), np.float32)
WORKER_PROGRAM = """
import sys, threading
from mainspring.worker.config import WorkerConfig
from mainspring.worker.server import run
name, controller = sys.argv[1:]
config = WorkerConfig(name=name, controller=controller, engine="emulated", device_kind="emulated", pages=4,
                      io_bytes=1 << 20, realtime=False, spin_us=0)
run(config, threading.Event())
"""


def emulated(name: str, infer_ns: int = 2_000_000) -> ModelSpec:
    """Return a model that takes as long for each batch as it says, and 1 ms to load."""
    profile = Profile(dict.fromkeys((1, 2, 4, 8), infer_ns), 1_000_000)
    # Models of one executable share what was learnt of it.
    executable = f"{infer_ns:064d}"
    return msgspec.structs.replace(make_spec(name), executable=executable, profiles={"emulated": profile})


@contextmanager
def real_controller(
    models: list[ModelSpec],
    address: str = "tcp://127.0.0.1:*",
    scheduler: SchedulerConfig = SchedulerConfig(),  # noqa: B008 - it is frozen
) -> Iterator[str]:
    stop = threading.Event()
    ready: queue.Queue[str] = queue.Queue()
    config = ControllerConfig(address=address, drain_timeout_ms=200.0)
    arguments = (config, scheduler, models, stop, ready.put)
    thread = threading.Thread(target=controller_running.run, args=arguments, daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@contextmanager
def real_worker(name: str, controller: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WORKER_PROGRAM, name, controller])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers_ready(client: Client, count: int, models: int) -> bool:
    try:
        workers = client.status().workers
    except mainspring.ControllerUnreachable:
        # The gateway has just started.
        return False
    return len(workers) == count and all(worker.prepared == models for worker in workers)


def test_requests_are_served_and_refused() -> None:
    with (
        real_controller([emulated("a"), emulated("b"), emulated("slow", 30_000_000_000)]) as controller,
        real_worker("one", controller),
        gateway(controller) as address,
        Client(address) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 3), 20)
        result = client.infer("a", {"data": X}, slo_ms=5_000)
        assert result["twice"].shape == (2, 4)
        assert result["sum"].shape == (2,)
        assert result.timing.worker == "one"
        assert result.timing.cold_start is True
        assert result.timing.execute_ns >= 2_000_000
        assert client.infer("a", {"data": X}, slo_ms=5_000).timing.cold_start is False
        with pytest.raises(mainspring.DeadlineUnreachable) as caught:
            client.infer("slow", {"data": X}, slo_ms=20_000)
        assert caught.value.earliest_finish_ms is not None
        futures = [client.submit("ab"[number % 2], {"data": X}, slo_ms=20_000) for number in range(300)]
        assert all(future.result(PATIENCE_S)["sum"].shape == (2,) for future in futures)
        assert client.infer("b", {"data": X}).timing.left_ns is None


def test_every_request_gets_a_reply_when_its_worker_is_killed() -> None:
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller) as victim,
        real_worker("two", controller),
        gateway(controller) as address,
        Client(address) as client,
    ):
        wait_until(lambda: workers_ready(client, 2, 1), 20)
        for _ in range(4):
            client.infer("a", {"data": X}, slo_ms=5_000)
        futures = [client.submit("a", {"data": X}, slo_ms=20_000) for _ in range(400)]
        victim.kill()
        futures += [client.submit("a", {"data": X}, slo_ms=20_000) for _ in range(100)]
        outcomes = Counter(type(future.exception(30)).__name__ for future in futures)
        assert outcomes == {"NoneType": 500}


def test_a_restarted_controller_is_found_again_and_what_waited_gets_its_reply() -> None:
    models = [emulated("a")]
    with real_controller(models) as controller:
        running = contextlib.ExitStack()
        running.enter_context(real_worker("one", controller))
        client = running.enter_context(Client(running.enter_context(gateway(controller))))
        wait_until(lambda: workers_ready(client, 1, 1), 20)
    with running:
        with pytest.raises(mainspring.ControllerUnreachable):
            client.infer("a", {"data": X}, slo_ms=50)
        waiting = client.submit("a", {"data": X}, slo_ms=60_000)
        with real_controller(models, controller):
            assert waiting.exception(30) is None
            assert client.infer("a", {"data": X}, slo_ms=5_000).timing.worker == "one"


def test_a_gateway_without_a_controller_says_what_to_start() -> None:
    with (
        gateway("tcp://127.0.0.1:1", controller_timeout_ms=1_000.0) as address,
        Client(address) as client,
        pytest.raises(mainspring.ControllerUnreachable, match="mainspring controller"),
    ):
        client.infer("a", {"data": X}, slo_ms=5_000)
