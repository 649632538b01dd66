"""The next INFER is prepared while one runs: whatever the order of events, each ends once, in its window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mainspring.messages.actions import Infer, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.batches import LATE_NS, Outbox
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Executor, Reservation
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Staged
from mainspring.worker.engines.emulated import EmulatedEngine
from mainspring.worker.executors import EXPIRY_NS, SOON_NS, Executors
from mainspring.worker.realtime import Rights
from tests.fuzz import seeded
from tests.patience import PATIENCE_S
from tests.worker.peers import MS, SECOND, infer, load, opening, spec


class _Prepared:
    def __init__(self, engine: Gated, action: Infer) -> None:
        self._engine = engine
        self.action = action

    def run(self) -> int:
        self._engine.ran(self.action, staged=True)
        return 1


class Gated(EmulatedEngine):
    """An engine that stages, and computes until the test lets it go on."""

    def __init__(self, takes_s: Callable[[], float] | None = None) -> None:
        """With ``takes_s`` it computes for that time instead."""
        super().__init__("cpu", MIB)
        self._takes_s = takes_s
        self.begun: list[tuple[int, bool]] = []
        """Actions in the order in which they ran, and whether they were staged."""
        self.gate = threading.Semaphore(0)
        self.declines = False
        self.fails: set[int] = set()
        self.spares: list[str] = []
        self.staged: list[tuple[int, int, int | None]] = []
        """Each staged action, that which ran then, and the same if it was staged itself."""
        self._inside = threading.Lock()

    def execute(self, action: Infer, io: Reservation) -> int:
        del io
        self.ran(action, staged=False)
        return 1

    def stage(self, action: Infer, io: Reservation, running: Infer, ahead: Staged | None) -> Staged | None:
        del io
        if self.declines:
            return None
        before = ahead.action.action_id if isinstance(ahead, _Prepared) else None
        self.staged.append((action.action_id, running.action_id, before))
        return _Prepared(self, action)

    def make_spare(self, name: str) -> None:
        self.spares.append(name)

    def ran(self, action: Infer, *, staged: bool) -> None:
        assert self._inside.acquire(blocking=False), "two runs at a time"
        self.begun.append((action.action_id, staged))
        if self._takes_s is not None:
            time.sleep(self._takes_s())
        else:
            assert self.gate.acquire(timeout=PATIENCE_S), f"nobody lets {action} end"
        self._inside.release()
        if action.action_id in self.fails:
            raise RuntimeError("the device coughs")


class Worker:
    """Executors with model ``m`` resident; the test is their network thread."""

    def __init__(self, engine: Gated) -> None:
        self.engine = engine
        self.core = WorkerCore("w", 2, PAGE_BYTES, MIB)
        self.outbox = Outbox()
        self.executors = Executors(self.core, engine, Rights(False), self.outbox, 0)
        self.results: list[Result] = []
        self.executors.start()
        engine.prepare(spec())
        self.core.residency.add(spec())
        self.submit(load(1))
        self.until(lambda: len(self.results) == 1)
        self.results.clear()

    def submit(self, action: Infer | Unload | object) -> None:
        with self.executors.driving() as core:
            self.results += core.submit(time.monotonic_ns(), action)  # type: ignore[arg-type]

    def infer(self, action_id: int, window: tuple[int, int] | None = None) -> None:
        """An INFER whose input is there."""
        self.submit(infer(action_id, window=window))
        self.input(action_id)

    def input(self, action_id: int) -> None:
        with self.executors.driving() as core:
            core.input_arrived(action_id, 1, time.monotonic_ns())

    def flush(self) -> None:
        self.executors.settle()
        while (end := self.outbox.pop()) is not None:
            result, io = end
            if io is not None:
                with self.executors.driving() as core:
                    core.outputs_sent(io.slot)
            if result is not None:
                self.results.append(result)
        with self.executors.driving() as core:
            core.validate()

    def until(self, condition: Callable[[], bool]) -> None:
        """Do what the network thread does until this holds."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{self.results} {self.engine.begun}"
            self.executors.expire(EXPIRY_NS)
            self.flush()
            time.sleep(0)

    def running(self, action_id: int) -> None:
        """Wait until the device computes this one."""
        self.until(lambda: bool(self.engine.begun) and self.engine.begun[-1][0] == action_id)

    def ended(self) -> list[tuple[int, Status]]:
        return [(result.action_id, result.status) for result in self.results]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(Gated())
    yield made
    made.engine.gate.release(1000)
    assert made.executors.stop(PATIENCE_S)
    assert not made.executors.broken
    made.outbox.close()


def test_the_next_one_begins_without_the_cores_lock(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    worker.infer(12)
    with worker.executors.driving() as core:
        assert core.staged is not None
        assert core.staged.action_id == 11
        worker.engine.gate.release()
        deadline_s = time.monotonic() + PATIENCE_S
        while worker.engine.begun[-1] != (11, True):
            assert time.monotonic() < deadline_s, "EXEC waits for the lock"
            time.sleep(0)
        running = core.running(Executor.EXEC)
        assert running is not None
        assert running.action.action_id == 10, "the core is told by whoever holds the lock next"
    worker.engine.gate.release(2)
    worker.until(lambda: len(worker.results) == 3)
    assert worker.ended() == [(10, "ok"), (11, "ok"), (12, "ok")]
    first, second, third = worker.results
    assert first.end_ns <= second.begin_ns <= second.end_ns <= third.begin_ns
    assert [each[:2] for each in worker.engine.staged] == [(11, 10), (12, 11)]
    assert [each[2] for each in worker.engine.staged] == [None, 11], "the engine knows what was staged"


def test_one_that_is_too_late_when_the_other_ends_does_not_begin(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    latest_ns = time.monotonic_ns() + 20 * MS
    worker.infer(11, (0, latest_ns))
    assert worker.core.staged is not None
    while time.monotonic_ns() <= latest_ns:
        time.sleep(0.001)
    worker.engine.gate.release()
    worker.until(lambda: len(worker.results) == 2)
    assert sorted(worker.ended()) == [(10, "ok"), (11, "too_late")]
    assert worker.engine.begun == [(10, False)]


def test_one_that_can_not_begin_any_more_is_told_while_the_other_runs(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    worker.infer(11, (0, time.monotonic_ns() + MS))
    worker.until(lambda: worker.ended() == [(11, "too_late")])


def test_an_earlier_action_takes_its_place(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    now_ns = time.monotonic_ns()
    worker.infer(11, (now_ns - 10, now_ns + 20 * SECOND))
    worker.submit(infer(12, window=(now_ns - 20, now_ns + 20 * SECOND)))
    assert worker.core.staged is None, "its inputs are missing, and it comes first"
    worker.input(12)
    assert worker.core.staged is not None
    assert worker.core.staged.action_id == 12
    worker.engine.gate.release(3)
    worker.until(lambda: len(worker.results) == 3)
    assert worker.ended() == [(10, "ok"), (12, "ok"), (11, "ok")]


def test_nothing_is_staged_behind_or_for_an_open_executable(worker: Worker) -> None:
    worker.core.residency.add_closed(spec("n"))
    worker.infer(10)
    worker.running(10)
    worker.submit(opening(11, "n"))
    worker.infer(12)
    assert worker.core.staged is None
    worker.engine.gate.release(2)
    worker.until(lambda: len(worker.results) == 3)
    assert worker.ended() == [(10, "ok"), (11, "ok"), (12, "ok")]
    assert worker.engine.begun == [(10, False), (12, False)]


def test_a_model_with_a_staged_action_is_not_unloaded(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    worker.submit(Unload(12, "w", "m"))
    assert worker.ended() == [(12, "busy")]


def test_a_failed_run_is_its_own_result(worker: Worker) -> None:
    worker.engine.fails = {10, 11}
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    worker.infer(12)
    worker.engine.gate.release(3)
    worker.until(lambda: len(worker.results) == 3)
    assert worker.ended() == [(10, "engine_error"), (11, "engine_error"), (12, "ok")]


def test_an_engine_that_can_not_stage_is_given_a_spare_and_runs_as_usual(worker: Worker) -> None:
    worker.engine.declines = True
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    assert worker.core.staged is None
    worker.until(lambda: worker.engine.spares == ["m"])
    worker.engine.gate.release(2)
    worker.until(lambda: len(worker.results) == 2)
    assert worker.engine.begun == [(10, False), (11, False)]


def test_a_stopping_worker_rejects_what_is_staged_and_has_not_begun(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    with worker.executors.driving() as core:
        worker.executors.withdraw()
        worker.results += core.stop(time.monotonic_ns())
    assert worker.ended() == [(11, "stopping")]
    worker.engine.gate.release()
    worker.until(lambda: len(worker.results) == 2)
    assert worker.ended() == [(11, "stopping"), (10, "ok")]
    assert worker.core.quiet


def test_what_exec_has_taken_is_not_withdrawn(worker: Worker) -> None:
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    with worker.executors.driving() as core:
        worker.engine.gate.release()
        deadline_s = time.monotonic() + PATIENCE_S
        while worker.engine.begun[-1] != (11, True):
            assert time.monotonic() < deadline_s
            time.sleep(0)
        worker.executors.withdraw()
        running = core.running(Executor.EXEC)
        assert running is not None
        assert running.action.action_id == 11
        assert core.abandon() == []
    worker.engine.gate.release()
    worker.until(lambda: worker.core.quiet)
    assert worker.ended() == [(10, "ok")], "its controller has lost the other"


def test_exec_gets_the_processor_to_note_what_it_has_taken(worker: Worker) -> None:
    """Between the two it may be stopped by the very thread that waits for it, if that goes before it."""
    worker.infer(10)
    worker.running(10)
    worker.infer(11)
    staging = worker.executors._staging
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        staging._next.append(taken)
        worker.engine.gate.release()
        deadline_s = time.monotonic() + PATIENCE_S
        while not staging.unsettled:
            assert time.monotonic() < deadline_s, "EXEC does not take what is laid out"
            time.sleep(0)

    staging.pause = sleep
    with worker.executors.driving() as core:
        taken = staging._next.pop()
        worker.executors.withdraw()
        running = core.running(Executor.EXEC)
        assert running is not None
        assert running.action.action_id == 11
    assert slept
    assert min(slept) > 0, "a sleep of 0 lets no thread of a lower priority run"
    worker.engine.gate.release()
    worker.until(lambda: len(worker.results) == 2)


def test_the_network_thread_looks_for_the_end_of_a_short_run_by_itself(worker: Worker) -> None:
    worker.engine.gate.release()
    worker.infer(10)
    worker.until(lambda: len(worker.results) == 1)
    usual_ns = worker.results[0].end_ns - worker.results[0].begin_ns
    worker.infer(11)
    worker.running(11)
    assert worker.executors.expire(50 * MS) == EXPIRY_NS, "EXEC wakes it if nothing is staged"
    worker.infer(12)
    assert worker.executors.expire(50 * MS) <= max(usual_ns + LATE_NS, SOON_NS)


@seeded(6)
def test_whatever_the_order_each_ends_once_and_inside_its_window(seed: int) -> None:
    random = np.random.default_rng(seed)
    durations = np.random.default_rng([seed, 1])
    worker = Worker(Gated(lambda: float(durations.uniform(0, 0.0005))))
    actions: dict[int, Infer] = {}
    count = 300
    for action_id in range(10, 10 + count):
        now_ns = time.monotonic_ns()
        earliest_ns = now_ns + int(random.integers(-200_000, 200_000))
        latest_ns = earliest_ns + int(random.choice([20_000, 200_000, 20 * SECOND]))
        action = infer(action_id, window=(earliest_ns, latest_ns))
        actions[action_id] = action
        worker.submit(action)
        if random.random() < 0.5:
            worker.flush()
        if random.random() < 0.05:
            with worker.executors.driving() as core:
                refused = core.input_refused(time.monotonic_ns(), action_id, 1, "bad")
            worker.results += [] if refused is None else [refused]
        worker.input(action_id)
        if random.random() < 0.1:
            with worker.executors.driving():
                worker.executors.withdraw()
        if random.random() < 0.3:
            worker.until(lambda: worker.core.outstanding < 4)
    worker.until(lambda: len(worker.results) == count)
    assert worker.executors.stop(PATIENCE_S)
    assert not worker.executors.broken
    worker.outbox.close()
    ended = {result.action_id: result for result in worker.results}
    assert ended.keys() == actions.keys()
    ran = [action_id for action_id, _ in worker.engine.begun]
    assert ran == [result.action_id for result in worker.results if result.status is Status.OK]
    before_ns = 0
    for action_id in ran:
        action, result = actions[action_id], ended[action_id]
        assert action.earliest_ns <= result.begin_ns <= action.latest_ns
        assert before_ns <= result.begin_ns <= result.end_ns
        before_ns = result.end_ns
    assert any(staged for _, staged in worker.engine.begun)
    assert any(not staged for _, staged in worker.engine.begun)
    assert worker.core.io.slots == 0
    assert worker.core.outstanding == 0
