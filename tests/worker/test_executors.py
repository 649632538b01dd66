"""When EXEC's thread gives an idle device a heartbeat, with a core that says what is about to begin."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from mainspring.worker.batches import Outbox
from mainspring.worker.core.jobs import Executor
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine
from mainspring.worker.executors import AHEAD_NS, BEATING_WAIT_NS, EXACT_NS, LONGEST_WAIT_NS, Executors
from mainspring.worker.realtime import Rights
from tests.patience import PATIENCE_S
from tests.worker.peers import MS


class Idle:
    """A core with nothing to begin; when it is asked, EXEC may have to begin ``away_ns`` later."""

    def __init__(self) -> None:
        self.away_ns: int | None = None
        self.unready = False
        """Whether an INFER waits for its inputs."""
        self.asked = 0
        """How often EXEC has asked for a job."""

    quiet = True
    """As `WorkerCore.quiet`."""

    def begin(self, executor: Executor, now_ns: int) -> tuple[None, list[object]]:
        """In `WorkerCore.begin`'s place."""
        self.asked += executor is Executor.EXEC
        return None, []

    def awaits(self, executor: Executor) -> bool:
        """In `WorkerCore.awaits`'s place."""
        return self.unready and executor is Executor.EXEC

    def wake_ns(self, executor: Executor, now_ns: int) -> int | None:
        """In `WorkerCore.wake_ns`'s place."""
        return None if self.away_ns is None or executor is not Executor.EXEC else now_ns + self.away_ns


class Heart:
    """An engine that notes when it was given a heartbeat."""

    def __init__(self) -> None:
        self.beats_ns: list[int] = []

    def heartbeat(self) -> None:
        """In `Awakened.heartbeat`'s place."""
        self.beats_ns.append(time.monotonic_ns())


class Bench:
    """The threads around both."""

    def __init__(self, heartbeat_ns: int) -> None:
        self.core, self.heart, self.outbox = Idle(), Heart(), Outbox()
        self.executors = Executors(
            cast(WorkerCore, self.core), cast(Engine, self.heart), Rights(False), self.outbox, 0,
            heartbeat_ns=heartbeat_ns,
        )  # fmt: skip

    def close(self) -> None:
        assert self.executors.stop(PATIENCE_S)
        assert self.executors.broken == ""
        self.outbox.close()


@pytest.fixture
def make() -> Iterator[Callable[[int], Bench]]:
    """Make benches, which are stopped at the end."""
    made: list[Bench] = []

    def bench(heartbeat_ns: int) -> Bench:
        made.append(Bench(heartbeat_ns))
        return made[-1]

    yield bench
    for each in made:
        each.close()


def wait_for(what: Callable[[], bool]) -> None:
    """Wait for a state."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.001)


def test_heartbeats_come_closer_together_than_the_longest_wait(make: Callable[[int], Bench]) -> None:
    bench = make(2 * MS)
    bench.executors.start()
    wait_for(lambda: len(bench.heart.beats_ns) >= 20)
    beats_ns = bench.heart.beats_ns[:20]
    gaps_ns = sorted(late - early for early, late in itertools.pairwise(beats_ns))
    assert gaps_ns[0] >= 2 * MS
    # Half of them may be late, on a machine that does other things.
    assert gaps_ns[len(gaps_ns) // 2] < BEATING_WAIT_NS


def test_a_device_gets_no_heartbeat_shortly_before_exec_may_have_to_begin(
    make: Callable[[int], Bench],
) -> None:
    bench = make(MS // 10)
    bench.core.away_ns = MS - 1
    bench.executors.start()
    wait_for(lambda: bench.core.asked >= 20)
    assert not bench.heart.beats_ns
    bench.core.away_ns = MS
    wait_for(lambda: len(bench.heart.beats_ns) >= 3)


def test_a_device_gets_no_heartbeat_while_inputs_may_come_at_any_moment(
    make: Callable[[int], Bench],
) -> None:
    bench = make(MS // 10)
    bench.core.unready = True
    bench.executors.start()
    wait_for(lambda: bench.core.asked >= 20)
    assert not bench.heart.beats_ns
    bench.core.unready = False
    wait_for(lambda: len(bench.heart.beats_ns) >= 3)


@pytest.mark.parametrize("heartbeat_ns", [0, 10 * MS + 50_000])
def test_no_wait_that_ends_late_comes_shortly_before_exec_may_have_to_begin(
    make: Callable[[int], Bench], monkeypatch: pytest.MonkeyPatch, heartbeat_ns: int
) -> None:
    """The longest wait, or a heartbeat, is due shortly before an action, which is then waited for exactly."""
    bench = make(heartbeat_ns)
    bench.core.away_ns = (BEATING_WAIT_NS if heartbeat_ns else LONGEST_WAIT_NS) + 100_000
    waker, waits_s = bench.executors._wakers[Executor.EXEC], list[float]()
    wait = waker.wait

    def note(timeout: float) -> bool:
        waits_s.append(timeout)
        return bool(wait(timeout))

    monkeypatch.setattr(waker, "wait", note)
    bench.executors.start()
    wait_for(lambda: len(waits_s) >= 2)
    assert max(waits_s) <= (bench.core.away_ns - EXACT_NS) / 1e9


def test_exec_sleeps_until_an_infer_that_waits_for_inputs_may_have_to_be_rejected(
    make: Callable[[int], Bench],
) -> None:
    bench = make(0)
    bench.executors.start()
    wait_for(lambda: bench.executors._due_ns[Executor.EXEC] > 0)
    asked = bench.core.asked
    bench.core.unready, bench.core.away_ns = True, AHEAD_NS + 200 * MS
    with bench.executors._lock:
        bench.executors._wake()
    looks_ns = bench.executors.expire(LONGEST_WAIT_NS)
    assert 0 < looks_ns <= bench.core.away_ns - AHEAD_NS // 2
    assert bench.core.asked == asked, "nothing can be done for a while"
    bench.core.away_ns = AHEAD_NS - 1
    with bench.executors._lock:
        bench.executors._wake()
    wait_for(lambda: bench.core.asked > asked)


def test_exec_is_told_at_once_when_it_is_to_begin_later(make: Callable[[int], Bench]) -> None:
    bench = make(0)
    bench.executors.start()
    wait_for(lambda: bench.executors._due_ns[Executor.EXEC] > 0)
    asked, bench.core.away_ns = bench.core.asked, AHEAD_NS + 200 * MS
    with bench.executors._lock:
        bench.executors._wake()
    wait_for(lambda: bench.core.asked > asked)
