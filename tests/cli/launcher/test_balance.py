"""Models and a worker move between the controllers of a cluster that is serving."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import Plan, make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.main import build_app
from mainspring.client.client import Client
from mainspring.client.errors import InvalidRequest
from mainspring.client.result import InferResult
from mainspring.compiler.artifact.profiles import EMULATED
from tests.cli.launcher.test_local import INPUT, wait_for
from tests.cli.launcher.test_sharded import MODELS, sharded
from tests.patience import PATIENCE_S


class Load:
    """Asks for every model in turn, all the while it is entered."""

    def __init__(self, address: str, rate: float) -> None:
        self._address, self._pause_s = address, 1 / rate
        self._stop = threading.Event()
        self.futures: list[Future[InferResult]] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._address) as client:
            number = 0
            while not self._stop.wait(self._pause_s):
                self.futures.append(client.submit(MODELS[number % len(MODELS)], INPUT, slo_ms=1000))
                number += 1
            for future in self.futures:
                future.exception(PATIENCE_S)


def balance(plan: Plan, *arguments: str) -> None:
    """Run ``mainspring balance`` for a cluster."""
    app = build_app()
    app(["balance", "--controller", str(plan.run_dir), *arguments], standalone_mode=False)


def test_models_and_a_worker_move_and_no_request_is_refused_or_lost(
    emulated: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(sharded(emulated(workers=4, copies=8)))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        before = client.status()
        with Load(cluster.address, 40.0) as load:
            wait_for(lambda: len(load.futures) > 40, "requests")
            balance(plan, "--models", "5", "--from", "0", "--to", "1")
            balance(plan, "--worker", "worker-0", "--to", "1")
            balance(plan, "--model", "quick-1", "--model", "slow-1", "--to", "0")
            time.sleep(0.5)
        after = client.status()
    assert "moved 5 models and 0 workers" in capsys.readouterr().out
    failed = [error for future in load.futures if (error := future.exception()) is not None]
    assert not failed
    assert sum(each.models for each in after.shards) == sum(each.models for each in before.shards)
    assert [each.workers for each in after.shards] == [1, 3]
    assert after.map_version >= 2
    places = {each.name: each.prepared_on for each in after.models}
    assert places["quick-1"] == places["slow-1"] == ("worker-1",)


def test_a_worker_that_was_moved_is_sent_after_when_it_starts_again(
    emulated: Callable[..., Config],
) -> None:
    plan = make_plan(sharded(emulated(workers=3, copies=8)))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        balance(plan, "--worker", "worker-0", "--to", "1")
        supervisor = cluster.supervisor
        os.kill(supervisor.pid("worker-0") or 0, signal.SIGKILL)
        wait_for(lambda: supervisor.starts("worker-0") == 2, "the restart")
        wait_for(
            lambda: (
                [each.workers for each in client.status().shards] == [1, 2]
                and any(each.worker == "worker-0" for each in client.status().workers)
            ),
            "the worker at its new controller",
        )
        balance(plan, "--worker", "worker-0", "--to", "0")
        assert [each.workers for each in client.status().shards] == [2, 1]


def test_workers_are_scaled_over_all_shards_and_those_that_move_count_where_they_are(
    emulated: Callable[..., Config],
) -> None:
    plan = make_plan(sharded(emulated(workers=2, copies=8)))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:

        def kinds() -> list[tuple[int, int]]:
            return [(each.wanted, each.running) for shard in client.status().shards for each in shard.kinds]

        client.scale_workers(EMULATED, 4)
        wait_for(lambda: kinds() == [(2, 2), (2, 2)], "two workers for each controller")
        names = {each.worker for each in client.status().workers}
        assert names == {"worker-0", "worker-1", "worker-2", "worker@1-0"}
        before = cluster.supervisor.pid("worker-0")
        balance(plan, "--worker", "worker-0", "--to", "1")
        wait_for(lambda: kinds() == [(1, 1), (3, 3)], "the count to follow the worker")
        assert cluster.supervisor.pid("worker-0") == before, "it goes on as the process that it was"
        client.scale_workers(EMULATED, 5)
        wait_for(lambda: kinds() == [(2, 2), (3, 3)], "the new worker where there are fewest")
        client.scale_workers(EMULATED, 1, shard=1)
        wait_for(lambda: kinds() == [(2, 2), (1, 1)], "one worker of shard 1")
        wait_for(
            lambda: (
                [(each.wanted, each.running, each.leaving) for each in client.status().kinds] == [(3, 3, ())]
            ),
            "all together",
        )
        with pytest.raises(InvalidRequest, match="there is no shard 2; there are 0 to 1"):
            client.scale_workers(EMULATED, 1, shard=2)
        with pytest.raises(InvalidRequest, match="kinds are emulated"):
            client.scale_workers("v100", 1)


REFUSED = (
    (["--worker", "worker-9", "--to", "1"], "no shard has a worker 'worker-9'"),
    (["--model", "none", "--to", "1"], "no shard has a model 'none'"),
    (["--model", "quick-1", "--to", "7"], "there are shards 0 to 1"),
    (["--worker", "worker-1", "--to", "0"], "worker-1 is the only worker that stays here"),
    (["--model", "quick-1"], "goes --to a shard"),
)


def test_what_can_not_be_moved_is_named(emulated: Callable[..., Config]) -> None:
    plan = make_plan(sharded(emulated(workers=2)))
    with LocalCluster(plan, lambda _: None):
        for arguments, says in REFUSED:
            with pytest.raises(Exception, match=says):
                balance(plan, *arguments)
