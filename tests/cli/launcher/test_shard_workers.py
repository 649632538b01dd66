"""One runner of workers, and the controllers that each have a part of them."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.cli.launcher.running import ShardWorkers
from mainspring.cli.launcher.worker_jobs import shard_of, stem_at
from mainspring.messages.scaling import Offer

A, B = "tcp://a:1", "tcp://b:1"


class Runner:
    """Runs what it is told, at once."""

    def __init__(self, *workers: str) -> None:
        self.workers = workers
        self.fault = ""

    def offers(self) -> tuple[Offer, ...]:
        return (Offer("cpu", "worker", 9, self.workers, self.fault),)

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:
        assert kind == "cpu"
        assert not moved
        self.workers = workers


def offer(workers: ShardWorkers, shard: int) -> Offer:
    (found,) = workers.part(shard).offers()
    return found


def begun() -> tuple[Runner, ShardWorkers]:
    runner = Runner("worker-0", "worker-1")
    return runner, ShardWorkers(runner, (A, B), [("worker-0", 0), ("worker-1", 1)])


def test_each_controller_sees_its_own_workers_and_names_that_are_taken() -> None:
    runner, workers = begun()
    runner.fault = "worker-1: no keys"
    first, second = offer(workers, 0), offer(workers, 1)
    assert (first.workers, first.stem) == (("worker-0",), "worker")
    assert (first.taken, first.fault) == (("worker-1",), "")
    assert (second.workers, second.stem) == (("worker-1",), "worker@1")
    assert second.fault == "worker-1: no keys"


def test_a_name_says_for_which_shard_a_worker_came_later() -> None:
    assert shard_of(f"{stem_at('worker-v100', 3)}-12") == 3
    assert [shard_of(name) for name in ("worker-12", "worker-v100-3", "worker@x-1", "mine@1")] == [0] * 4


def test_what_one_controller_wants_leaves_the_others_workers_alone() -> None:
    runner, workers = begun()
    workers.part(0).run("cpu", ("worker-0", "worker-2"), {})
    assert set(runner.workers) == {"worker-0", "worker-1", "worker-2"}
    workers.part(1).run("cpu", (), {})
    assert set(runner.workers) == {"worker-0", "worker-2"}
    workers.part(1).run("cpu", ("worker-0",), {})
    assert set(runner.workers) == {"worker-0", "worker-2"}
    assert offer(workers, 1).workers == (), "it is another controller's"


def test_a_worker_that_moves_runs_on_and_is_the_others_until_that_speaks_of_it() -> None:
    runner, workers = begun()
    workers.part(0).run("cpu", (), {"worker-0": B})
    assert set(runner.workers) == {"worker-0", "worker-1"}
    assert offer(workers, 0).workers == ()
    second = offer(workers, 1)
    assert (set(second.workers), second.moved) == ({"worker-0", "worker-1"}, ("worker-0",))
    workers.part(0).run("cpu", (), {"worker-0": B})
    assert set(runner.workers) == {"worker-0", "worker-1"}, "said again, it changes nothing"
    workers.part(1).run("cpu", ("worker-0", "worker-1"), {})
    assert offer(workers, 1).moved == ()
    workers.part(1).run("cpu", ("worker-1",), {})
    assert runner.workers == ("worker-1",)


def test_a_worker_that_goes_to_a_controller_elsewhere_runs_on() -> None:
    runner, workers = begun()
    workers.part(0).run("cpu", (), {"worker-0": "tcp://elsewhere:1"})
    assert set(runner.workers) == {"worker-0", "worker-1"}
    assert offer(workers, 0).workers == offer(workers, 1).moved == ()
