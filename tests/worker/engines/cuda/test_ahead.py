"""A worker's threads around a GPU that takes the next batch ahead: each answer is its model's."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mainspring.messages.actions import Action, Infer, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.batches import Ended, Outbox
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Executor, Job, Reservation
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engines.cuda.runs import Run
from mainspring.worker.executors import EXPIRY_NS, Executors
from mainspring.worker.realtime import Rights
from tests.fuzz import seeded
from tests.patience import PATIENCE_S
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.test_engine import Bench, rows
from tests.worker.peers import SECOND, infer, load

WINDOW_NS = 3_600 * SECOND
USUAL_NS = 1_000 * SECOND
PLACES = {"a": (0, 1), "b": (7, 3)}
ELSEWHERE = [(4, 5), (2, 8), (7, 3)]


class Served:
    """A worker with both models resident; the test is its network thread."""

    def __init__(self, folder: Path, *, ahead: bool = True) -> None:
        self.bench = Bench(folder)
        engine = self.engine = self.bench.engine
        if not ahead:
            engine.takes_ahead = lambda action: False  # type: ignore[method-assign]
        self.core = WorkerCore("w", engine.pages, PAGE_BYTES, MIB)
        self.outbox = Outbox()
        self.executors = Executors(self.core, engine, Rights(False), self.outbox, 0)
        self.results: dict[int, Result] = {}
        self.asked: dict[int, tuple[str, tiny.Floats]] = {}
        self.weights = {name: tiny.weights_file(ord(name)) for name in PLACES}
        self.committed = 0
        """How often the device was given a batch while it had another."""
        self.computing = threading.Event()
        """Cleared: no batch ends."""
        self.computing.set()
        self._hold()
        self.executors.start()
        for number, (name, pages) in enumerate(PLACES.items(), 1):
            spec = self.bench.store.manifest(name).spec()
            engine.prepare(spec)
            self.core.residency.add(spec)
            self.submit(load(number, pages, name))
            for size in tiny.SIZES:
                # What is known of a kind's duration is not to depend on how busy this machine is.
                action = infer(1, tuple(range(size)), model=name)
                self.executors._committing.learn(Ended(Job(action, spec, 0), 0, USUAL_NS, USUAL_NS))
        self.until(lambda: len(self.results) == len(PLACES))
        self.results.clear()

    def _hold(self) -> None:
        driver, engine = self.bench.driver, self.engine
        synchronize, give = driver.synchronize, engine.give

        def held(event: int) -> None:
            if threading.current_thread().name == Executor.EXEC:
                assert self.computing.wait(PATIENCE_S)
            synchronize(event)

        def counted(action: Infer, io: Reservation) -> Run:
            self.committed += engine._runs.busy
            return give(action, io)

        driver.synchronize = held  # type: ignore[method-assign]
        engine.give = counted  # type: ignore[method-assign]

    def submit(self, action: Action) -> Status | None:
        """Return how it ended at once, if it did."""
        with self.executors.driving() as core:
            results = core.submit(time.monotonic_ns(), action)
            if isinstance(action, Unload) and results[0].status is Status.OK:
                self.executors.unload(action.model)
        self.results |= {result.action_id: result for result in results}
        return results[0].status if results else None

    def infer(self, action_id: int, name: str, x: tiny.Floats) -> None:
        self.asked[action_id] = name, x
        window = (0, time.monotonic_ns() + WINDOW_NS)
        action = infer(action_id, tuple(range(len(x))), model=name, window=window)
        assert self.submit(action) is None
        io = self.core.reservation(action_id)
        assert io is not None
        for row, values in enumerate(x):
            start = io.slot.offset + row * tiny.ROW_BYTES
            self.engine.io[start : start + tiny.ROW_BYTES] = values.view(np.uint8)
            self.engine.transfers.send(io, row * tiny.ROW_BYTES, tiny.ROW_BYTES)
            with self.executors.driving() as core:
                core.input_arrived(action_id, row, time.monotonic_ns())

    def flush(self) -> None:
        self.executors.settle()
        while (end := self.outbox.pop()) is not None:
            result, io = end
            assert result is not None
            self.results[result.action_id] = result
            if io is not None:
                self.receive(result.action_id, io)
        with self.executors.driving() as core:
            core.validate()

    def receive(self, action_id: int, io: Reservation) -> None:
        """Compare the outputs, and spoil the slot before it is another's."""
        assert self.engine.transfers.receive(io) == ""
        name, x = self.asked[action_id]
        start = io.slot.offset + io.layout.outputs[0]
        found = self.engine.io[start : start + x.nbytes].view(np.float32).reshape(x.shape)
        np.testing.assert_allclose(found, tiny.expected(self.weights[name], x), rtol=1e-6)
        self.engine.io[io.slot.offset : io.slot.offset + io.slot.size] = 0xEE
        with self.executors.driving() as core:
            core.outputs_sent(io.slot)

    def until(self, condition: Callable[[], bool]) -> None:
        self.computing.set()
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{self.results} {self.executors.broken}"
            self.executors.expire(EXPIRY_NS)
            self.flush()
            time.sleep(0)
        self.computing.clear()

    def close(self) -> None:
        self.computing.set()
        assert self.executors.stop(PATIENCE_S)
        assert not self.executors.broken
        self.outbox.close()
        self.engine.close()
        assert not self.bench.driver.leaks


@pytest.fixture(autouse=True)
def _remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.worker.batches.RECENT", 1_000_000)


@seeded(2)
def test_models_move_between_pages_while_others_are_given_ahead(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    served = Served(tmp_path)
    action_id, infers, moved = 10, 0, 0
    while infers < 80 or not moved:
        action_id += 1
        if infers == 40:
            served.until(lambda: not served.core.outstanding)
        if random.random() < 0.1 and served.submit(Unload(action_id, "w", "b")) is Status.OK:
            action_id, moved = action_id + 1, moved + 1
            assert served.submit(load(action_id, ELSEWHERE[moved % 3], "b")) is None
            continue
        if action_id in served.results:
            continue
        infers += 1
        served.infer(action_id, "aab"[int(random.integers(3))], rows(1 + int(random.integers(2)), action_id))
        if random.random() < 0.2:
            served.until(lambda: served.core.outstanding < 3)
    served.until(lambda: served.core.outstanding == 0 and not served.core.io.slots)
    assert {served.results[each].status for each in served.asked} == {Status.OK}
    assert moved
    assert served.committed
    ended = sorted((served.results[each] for each in served.asked), key=lambda each: each.begin_ns)
    for before, after in itertools.pairwise(ended):
        assert before.begin_ns <= before.end_ns <= after.begin_ns
    served.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_the_device_does_the_same_with_and_without(tmp_path: Path, ahead: bool) -> None:
    served = Served(tmp_path, ahead=ahead)
    driver = served.bench.driver
    driver.done.clear()
    wanted = []
    for number in range(20):
        name, count = "aab"[number % 3], 1 + number % 2
        served.infer(10 + number, name, rows(count, number))
        wanted += ["addresses", f"kernel multiply_{count}", f"kernel add_{count}"]
    served.until(lambda: len(served.results) == 20 and not served.core.io.slots)
    assert [work.what for work in driver.done if work.engine == "compute"] == wanted
    assert bool(served.committed) is ahead
    served.close()
