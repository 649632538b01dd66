"""The next INFER is given to a device that computes one: in its window, never twice, and told as it began."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from mainspring.messages.actions import Infer, Unload
from mainspring.messages.codes import Status
from mainspring.worker.batches import Ended
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Executor, Job, Reservation
from mainspring.worker.engine import DeviceLost, Ran
from mainspring.worker.engines.emulated import EmulatedEngine
from mainspring.worker.executors import EXPIRY_NS
from tests.fuzz import seeded
from tests.patience import PATIENCE_S
from tests.worker.peers import SECOND, infer, opening, spec
from tests.worker.test_staging import Worker

USUAL_NS = 1_000 * SECOND
"""How long a batch of model m is expected to take: no test takes as long."""
WINDOW_NS = 3_600 * SECOND


class Batch:
    """A batch that the device was given; it takes them one after the other."""

    def __init__(self, device: Queueing, action: Infer) -> None:
        self._device = device
        self.action = action
        self.given_ns = time.monotonic_ns()

    def wait(self) -> Ran:
        return self._device.ended(self)


class Queueing(EmulatedEngine):
    """A device with a queue, which ends a batch when the test lets it."""

    def __init__(self, *, held: bool = True) -> None:
        super().__init__("cpu", MIB)
        self.given: list[int] = []
        """Actions in the order in which the device was given them."""
        self.begun: list[int] = []
        """Those for whose ends EXEC waits, or has waited."""
        self.gate = threading.Semaphore(0)
        self.takes = True
        self.giving = threading.Event()
        self.gives = threading.Event()
        """Cleared: EXEC's calls to give the device a batch do not return."""
        self.gives.set()
        self.begins_ns: dict[int, int] = {}
        """When the device says that an action began, where the test says that."""
        self.fails: dict[int, Exception] = {}
        self._held = held
        self._ended = 0
        self._free_ns = 0

    def takes_ahead(self, action: Infer) -> bool:
        del action
        return self.takes

    def give(self, action: Infer, io: Reservation) -> Batch:
        del io
        self.giving.set()
        if threading.current_thread().name == Executor.EXEC:
            assert self.gives.wait(PATIENCE_S), f"nobody lets EXEC give {action}"
        assert len(self.given) - self._ended < 2, f"more than one ahead: {action} behind {self.given}"
        self.given.append(action.action_id)
        return Batch(self, action)

    def ended(self, batch: Batch) -> Ran:
        action = batch.action
        assert self.given[len(self.begun)] == action.action_id, "waited for in another order"
        begin_ns = self.begins_ns.get(action.action_id, max(self._free_ns, batch.given_ns))
        self.begun.append(action.action_id)
        if self._held:
            assert self.gate.acquire(timeout=PATIENCE_S), f"nobody lets {action} end"
        self._ended += 1
        if error := self.fails.get(action.action_id):
            raise error
        self._free_ns = max(begin_ns, time.monotonic_ns())
        return Ran(begin_ns, self._free_ns, self._free_ns - begin_ns)


class Bench(Worker):
    """A worker with such a device; batches of model m are expected to take `USUAL_NS`."""

    def __init__(self, device: Queueing) -> None:
        super().__init__(device)  # type: ignore[arg-type]
        self.device = device
        self.taught(USUAL_NS)

    def taught(self, took_ns: int) -> None:
        """A batch took so long; the longest of the last counts."""
        action = infer(2)
        with self.executors.driving():
            job = Job(action, spec(), 0)
            self.executors._committing.learn(Ended(job, 0, took_ns, took_ns))

    def infer(self, action_id: int, window: tuple[int, int] | None = None) -> None:
        super().infer(action_id, window or (0, time.monotonic_ns() + WINDOW_NS))

    def running(self, action_id: int) -> None:
        self.until(lambda: self.device.begun[-1:] == [action_id])


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(Queueing())
    yield made
    made.device.gate.release(1000)
    assert made.executors.stop(PATIENCE_S)
    assert not made.executors.broken
    made.outbox.close()


def test_the_device_has_the_next_one_before_the_first_ends(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    bench.infer(12)
    assert bench.device.given == [10, 11], "one ahead, in order"
    assert bench.core.committed
    bench.device.gate.release()
    bench.running(11)
    assert bench.device.given == [10, 11, 12], "EXEC gives it while the device computes"
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 3)
    assert bench.ended() == [(10, "ok"), (11, "ok"), (12, "ok")]
    first, second, third = bench.results
    assert first.end_ns == second.begin_ns
    assert second.end_ns == third.begin_ns
    assert second.device_ns == second.end_ns - second.begin_ns
    assert bench.core.quiet


def test_what_waits_already_is_given_behind_the_first_at_once(bench: Bench) -> None:
    with bench.executors.driving() as core:
        for action_id in (10, 11):
            action = infer(action_id, window=(0, time.monotonic_ns() + WINDOW_NS))
            assert core.submit(time.monotonic_ns(), action) == []
            core.input_arrived(action_id, 1, time.monotonic_ns())
    bench.running(10)
    assert bench.device.given == [10, 11]


def test_nothing_overtakes_what_exec_is_giving_the_device(bench: Bench) -> None:
    bench.device.gives.clear()
    bench.infer(10)
    assert bench.device.giving.wait(PATIENCE_S)
    bench.infer(11)
    assert bench.device.given == []
    bench.device.gives.set()
    bench.running(10)
    assert bench.device.given == [10, 11]


def test_one_whose_inputs_are_not_there_is_not_given_until_they_are(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.submit(infer(11, window=(0, time.monotonic_ns() + WINDOW_NS)))
    assert bench.device.given == [10]
    bench.input(11)
    assert bench.device.given == [10, 11]


def test_one_that_may_not_begin_yet_is_given_when_it_may(bench: Bench) -> None:
    """The network thread comes back by itself: nothing else happens then."""
    bench.infer(10)
    bench.running(10)
    earliest_ns = time.monotonic_ns() + SECOND
    bench.infer(11, (earliest_ns, earliest_ns + WINDOW_NS))
    begun_ns = time.monotonic_ns()
    assert bench.device.given == [10] or begun_ns >= earliest_ns
    assert bench.executors.expire(60 * SECOND) <= EXPIRY_NS
    bench.until(lambda: bench.device.given == [10, 11])
    assert time.monotonic_ns() >= earliest_ns
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 2)
    assert bench.results[1].begin_ns >= earliest_ns


@pytest.mark.parametrize("took_ns", [0, None], ids=["it should have ended", "nobody knows its kind"])
def test_nothing_is_given_behind_one_whose_end_nobody_can_foretell(bench: Bench, took_ns: int | None) -> None:
    bench.executors._committing._took_ns.clear()
    if took_ns is not None:
        bench.taught(took_ns)
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    assert bench.device.given == [10]
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 2)
    assert bench.ended() == [(10, "ok"), (11, "ok")]


def test_one_whose_latest_instant_would_have_passed_is_not_given(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11, (0, time.monotonic_ns() + USUAL_NS // 2))
    assert bench.device.given == [10]
    assert not bench.core.committed
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 2)
    assert bench.ended() == [(10, "ok"), (11, "ok")], "the first took less, so it was in time after all"


def test_one_that_became_late_is_told_as_ever_unless_the_device_has_it(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11, (0, time.monotonic_ns() - 1))
    bench.until(lambda: bench.ended() == [(11, "too_late")])
    assert bench.device.given == [10]


def test_one_that_the_device_began_too_late_says_when_it_began(bench: Bench) -> None:
    latest_ns = time.monotonic_ns() + 2 * USUAL_NS
    bench.device.begins_ns[11] = latest_ns + 7_000
    bench.infer(10)
    bench.running(10)
    bench.infer(11, (0, latest_ns))
    assert bench.core.committed
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 2)
    late = bench.results[1]
    assert (late.action_id, late.status, late.begin_ns) == (11, Status.OK, latest_ns + 7_000)


def test_a_device_that_does_not_take_it_ahead_gets_it_afterwards(bench: Bench) -> None:
    bench.device.takes = False
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    assert bench.device.given == [10]
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 2)
    assert bench.ended() == [(10, "ok"), (11, "ok")]


def test_an_earlier_action_comes_behind_what_the_device_has(bench: Bench) -> None:
    bench.infer(10, (5, time.monotonic_ns() + WINDOW_NS))
    bench.running(10)
    bench.infer(11, (5, time.monotonic_ns() + WINDOW_NS))
    bench.infer(12, (4, time.monotonic_ns() + WINDOW_NS))
    bench.device.gate.release(3)
    bench.until(lambda: len(bench.results) == 3)
    assert bench.ended() == [(10, "ok"), (11, "ok"), (12, "ok")]


def test_nothing_is_given_behind_or_ahead_of_an_open(bench: Bench) -> None:
    bench.core.residency.add_closed(spec("n"))
    bench.infer(10)
    bench.running(10)
    bench.submit(opening(11, "n", (0, time.monotonic_ns() + WINDOW_NS)))
    bench.infer(12)
    assert bench.device.given == [10]
    bench.device.gate.release(2)
    bench.until(lambda: len(bench.results) == 3)
    assert bench.ended() == [(10, "ok"), (11, "ok"), (12, "ok")]


def test_neither_pages_nor_slot_of_what_the_device_has_are_given_away(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    slots = bench.core.io.slots
    bench.submit(Unload(12, "w", "m"))
    assert bench.ended() == [(12, "busy")]
    bench.device.gate.release()
    bench.until(lambda: len(bench.results) == 2)
    assert bench.core.io.slots == slots - 1
    bench.submit(Unload(13, "w", "m"))
    assert bench.ended()[-1] == (13, "busy")
    bench.device.gate.release()
    bench.until(lambda: len(bench.results) == 4)
    bench.submit(Unload(14, "w", "m"))
    assert bench.ended()[-1] == (14, "ok")


@pytest.mark.parametrize("failing", [{10}, {11}, {10, 11}])
def test_a_run_that_fails_is_its_own_result_and_no_other(bench: Bench, failing: set[int]) -> None:
    bench.device.fails = {each: RuntimeError(f"{each} coughs") for each in failing}
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    bench.infer(12)
    bench.device.gate.release(3)
    bench.until(lambda: len(bench.results) == 3)
    assert bench.ended() == [(each, "engine_error" if each in failing else "ok") for each in (10, 11, 12)]
    assert {each.detail for each in bench.results} - {""} == {f"{each} coughs" for each in failing}


def test_a_lost_device_ends_the_worker_and_says_why(bench: Bench) -> None:
    bench.device.fails = {10: DeviceLost("GPU 0: gone")}
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    bench.device.gate.release(2)
    bench.until(lambda: bool(bench.executors.broken))
    assert "GPU 0: gone" in bench.executors.broken
    assert bench.results == [], "the controller counts all that a lost worker had as failed"
    assert bench.device.begun == [10], "nothing is asked of a lost device"
    bench.executors.broken = ""


def test_a_stopping_worker_lets_what_the_device_has_end(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    bench.infer(12)
    with bench.executors.driving() as core:
        bench.executors.withdraw()
        bench.results += core.stop(time.monotonic_ns())
    assert bench.ended() == [(12, "stopping")]
    bench.device.gate.release(2)
    assert bench.executors.stop(PATIENCE_S)
    bench.flush()
    assert bench.ended() == [(12, "stopping"), (10, "ok"), (11, "ok")]
    assert bench.core.quiet


def test_a_lost_controllers_actions_end_on_the_device_without_a_result(bench: Bench) -> None:
    bench.infer(10)
    bench.running(10)
    bench.infer(11)
    bench.infer(12)
    with bench.executors.driving() as core:
        bench.executors.withdraw()
        assert core.abandon() == [12]
        assert not core.quiet
    bench.device.gate.release()
    bench.running(11)
    assert not bench.core.quiet, "no hello before the device has ended it"
    bench.device.gate.release()
    bench.until(lambda: bench.core.quiet)
    bench.flush()
    assert bench.results == []
    # The next controller begins with the same numbers.
    bench.infer(11)
    bench.device.gate.release()
    bench.until(lambda: bench.ended() == [(11, "ok")])
    assert bench.device.given == [10, 11, 11]


@seeded(4)
def test_whatever_the_order_each_ends_once_and_none_begins_too_early(seed: int) -> None:
    random = np.random.default_rng(seed)
    worker = Bench(Queueing(held=False))
    actions: dict[int, Infer] = {}
    count = 300
    for action_id in range(10, 10 + count):
        now_ns = time.monotonic_ns()
        earliest_ns = now_ns + int(random.integers(-200_000, 200_000))
        latest_ns = earliest_ns + int(random.choice([20_000, 200_000, WINDOW_NS]))
        actions[action_id] = infer(action_id, window=(earliest_ns, latest_ns))
        worker.taught(int(random.choice([0, 1_000_000, USUAL_NS])))
        worker.device.takes = random.random() < 0.9
        worker.submit(actions[action_id])
        if random.random() < 0.5:
            worker.flush()
        if random.random() < 0.05:
            with worker.executors.driving() as core:
                refused = core.input_refused(time.monotonic_ns(), action_id, 1, "bad")
            worker.results += [] if refused is None else [refused]
        worker.input(action_id)
        if random.random() < 0.3:
            worker.until(lambda: worker.core.outstanding < 4)
    worker.until(lambda: len(worker.results) == count)
    assert worker.executors.stop(PATIENCE_S)
    assert not worker.executors.broken
    worker.outbox.close()
    ended = {result.action_id: result for result in worker.results}
    assert ended.keys() == actions.keys()
    ran = [result for result in worker.results if result.status is Status.OK]
    assert [result.action_id for result in ran] == worker.device.given == worker.device.begun
    before_ns = 0
    for result in ran:
        assert actions[result.action_id].earliest_ns <= result.begin_ns
        assert before_ns <= result.begin_ns <= result.end_ns
        before_ns = result.end_ns
    assert worker.core.running(Executor.EXEC) is None
    assert worker.core.io.slots == 0
    assert worker.core.outstanding == 0
