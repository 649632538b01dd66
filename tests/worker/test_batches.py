"""Which INFERs the watch over EXEC ends, by a core, a clock and a thread's time that the tests set."""

from __future__ import annotations

from typing import cast

import pytest

from mainspring.messages.actions import Infer
from mainspring.worker.batches import COMPUTED_PART, Overruns
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine
from tests.worker.peers import MS, spec

PREDICTED_NS, LIMIT_NS, BEGIN_NS = 40 * MS, 100 * MS, 1_000 * MS


class Exec:
    """Core, engine and EXEC's thread in one."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.ended: list[int] = []
        self.computed_ns = 7

    def running(self, executor: Executor) -> Job | None:
        """In `WorkerCore.running`'s place."""
        return self.job if executor is Executor.EXEC else None

    def interrupt(self, action_id: int) -> None:
        """In `Interrupts.interrupt`'s place."""
        self.ended.append(action_id)

    def begin(self, action_id: int, begin_ns: int) -> None:
        action = Infer(
            action_id, "w", "m", 1, (1,), (1,), (False,), begin_ns, begin_ns, begin_ns, PREDICTED_NS
        )
        self.job = Job(action, spec(), begin_ns)


@pytest.fixture
def running() -> Exec:
    return Exec()


def watch(running: Exec, limit_ns: int = LIMIT_NS) -> Overruns:
    return Overruns(cast(WorkerCore, running), cast(Engine, running), limit_ns)


def play(overruns: Overruns, running: Exec, until_ns: int, share: float = 1.0, step_ns: int = 5 * MS) -> None:
    """Look every few milliseconds, of which EXEC's thread computes a share."""
    for now_ns in range(BEGIN_NS, until_ns + 1, step_ns):
        overruns.look(now_ns, lambda: running.computed_ns)
        running.computed_ns += round(share * step_ns)


def test_an_infer_is_ended_once_it_is_late_by_the_limit(running: Exec) -> None:
    overruns = watch(running)
    running.begin(1, BEGIN_NS)
    play(overruns, running, BEGIN_NS + PREDICTED_NS + LIMIT_NS - MS)
    assert not running.ended
    overruns.look(BEGIN_NS + PREDICTED_NS + LIMIT_NS, lambda: running.computed_ns)
    assert running.ended == [1]


def test_one_whose_thread_was_stopped_is_not_ended(running: Exec) -> None:
    overruns = watch(running)
    running.begin(1, BEGIN_NS)
    play(overruns, running, BEGIN_NS + PREDICTED_NS + LIMIT_NS, share=COMPUTED_PART / 2)
    assert not running.ended
    play(overruns, running, BEGIN_NS + PREDICTED_NS + 2 * LIMIT_NS)
    assert 1 in running.ended


def test_each_infer_has_its_own_time(running: Exec) -> None:
    overruns = watch(running)
    running.begin(1, BEGIN_NS)
    play(overruns, running, BEGIN_NS + PREDICTED_NS + LIMIT_NS // 2)
    running.begin(2, BEGIN_NS + PREDICTED_NS + LIMIT_NS // 2)
    play(overruns, running, BEGIN_NS + PREDICTED_NS + LIMIT_NS + MS)
    assert not running.ended


def test_none_is_ended_without_a_limit_or_if_the_engine_can_not(running: Exec) -> None:
    running.begin(1, BEGIN_NS)
    play(watch(running, 0), running, BEGIN_NS + 100 * LIMIT_NS, step_ns=LIMIT_NS)
    other = Overruns(cast(WorkerCore, running), cast(Engine, object()), LIMIT_NS)
    play(other, running, BEGIN_NS + 100 * LIMIT_NS, step_ns=LIMIT_NS)
    other.interrupt()
    assert not running.ended


def test_what_nobody_waits_for_is_ended_at_once(running: Exec) -> None:
    overruns = watch(running)
    overruns.interrupt()
    running.begin(3, BEGIN_NS)
    overruns.interrupt()
    assert running.ended == [3]
