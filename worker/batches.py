"""The next INFER, prepared while one runs, so that EXEC begins it without the core's lock.

Whoever holds the lock has the core `stage` the head of EXEC's queue and the engine prepare it, and lays it
out. When a run has ended, EXEC takes what is laid out, if its window is open, and begins it at once: between
the two are a few microseconds. What that means for the core is a *turn*, which whoever holds the lock next
settles before anything else. So the core always sees a turn as one step, and results stay in order.

To lay out and to take are each one atomic operation on a deque, so it is never in doubt whether EXEC has
begun an INFER or somebody has taken it back.

`Overruns` ends INFERs that compute for far longer than predicted: values can make a model compute for ever,
such as the number of steps of a Loop, and all other models of the worker would wait. What counts is the
processor time of the EXEC thread, so a process that was stopped, or a host that was, costs no INFER its end.
`Outbox` passes the ends of actions from the executors' threads to the network thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.worker.core.jobs import Executor, Job, Reservation
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine, Given, Interrupts, Queues, Staged, Stages

LOG = logging.getLogger(__name__)

LOOKED_FOR_NS = 2_000_000
"""Longest run whose end the network thread looks for by the clock. To wake it costs EXEC's core up to 20 us
on a virtual machine, which counts in a run of less than a millisecond."""
LATE_NS = 20_000
"""Delay after the usual end of a run at which the network thread looks for it."""
AGAIN_NS = 50_000
"""Shortest time between two looks."""
NOTES_S = 20e-6
"""Time between two looks whether EXEC has noted its turn. Not 0: where EXEC has a lower priority on the same
core, it would never get to that."""
REMEMBERED = 4096
"""Most models and batch sizes whose durations are remembered."""


class Ended(NamedTuple):
    """The end of a job, before the core is notified."""

    job: Job
    begin_ns: int
    end_ns: int
    device_ns: int
    status: Status = Status.OK
    detail: str = ""


class Next(NamedTuple):
    """An INFER that EXEC may begin when the one before has ended."""

    job: Job
    latest_ns: int
    staged: Staged


class _Turn(NamedTuple):
    """EXEC has gone on from one INFER to the next; or has found the next one too late, if nothing ended."""

    ended: Ended | None
    begun: Next
    begin_ns: int


class Staging:
    """The INFERs laid out for EXEC, and the turns it took; the lock is held unless a method says else."""

    def __init__(
        self,
        core: WorkerCore,
        engine: Engine,
        finish: Callable[[Executor, Ended], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``finish`` lets a job's end take effect."""
        self._clock = clock
        self._core = core
        self._engine = engine if isinstance(engine, Stages) else None
        self._finish = finish
        self._next: deque[Next] = deque()
        """INFERs that are laid out, one at most."""
        self._turns: deque[_Turn] = deque()
        self._ahead: Staged | None = None
        """INFER that EXEC runs, if it was staged."""
        self._declined_id = 0
        """The action behind which the engine could stage nothing."""
        self._usual_ns: dict[tuple[str, int, tuple[int, ...]], int] = {}
        """Duration of the last run of a model, batch size and sizes of symbols."""
        self.lacking: list[str] = []
        """Models for which the engine has to `make_spare`; the caller takes them."""
        self.pause: Callable[[float], None] = time.sleep
        """Waits for a number of seconds; tests put another function in its place, compiled or not."""

    def take(self, ended: Ended) -> tuple[Next, int] | None:
        """EXEC, without the lock: take what is laid out; return it and the instant at which it begins."""
        try:
            following = self._next.pop()
        except IndexError:
            return None
        begin_ns = self._clock()
        if begin_ns > following.latest_ns:
            self._turns.append(_Turn(None, following, 0))
            return None
        self._turns.append(_Turn(ended, following, begin_ns))
        return following, begin_ns

    @property
    def unsettled(self) -> bool:
        """Return whether there is something to settle; the lock is not needed."""
        return bool(self._turns)

    def settle(self) -> None:
        """Let EXEC's turns take effect."""
        while self._turns:
            ended, begun, begin_ns = self._turns.popleft()
            if ended is None:
                self._core.unstage()
                continue
            self._finish(Executor.EXEC, ended)
            self._core.begin_staged(begin_ns)
            self._ahead = begun.staged

    def clear(self) -> None:
        """Lay nothing out any more: EXEC has ended a job, and begins what the core says."""
        self._next.clear()
        self._core.unstage()
        self._ahead = None

    def withdraw(self) -> None:
        """Give the staged INFER back to the core, unless EXEC has begun it: then that is settled."""
        if self._core.staged is None:
            return
        if self._next_is_back():
            self._core.unstage()
            return
        # EXEC has taken it, and notes its turn next.
        while not self._turns:
            self.pause(NOTES_S)
        self.settle()

    def withdraw_late(self, now_ns: int) -> None:
        """Withdraw an INFER that can no longer begin in its window."""
        staged = self._core.staged
        if staged is not None and staged.latest_ns < now_ns:
            self.withdraw()

    def fill(self) -> None:
        """Lay the next INFER out, if there is one that is ready."""
        if self._engine is None or self._turns:
            return
        if self._next and self._core.outranked:
            self.withdraw()
        if self._next or self._turns:
            return
        running = self._core.running(Executor.EXEC)
        if running is None or running.action.action_id == self._declined_id:
            return
        job = self._core.stage(self._clock())
        if job is None:
            return
        staged = self._stage(self._engine, job, running)
        if staged is None:
            self._declined_id = running.action.action_id
            self.lacking.append(job.model.name)
            self._core.unstage()
            return
        assert isinstance(job.action, Infer), f"{job} is staged"
        self._next.append(Next(job, job.action.latest_ns, staged))

    def learn(self, ended: Ended) -> None:
        """Remember how long an INFER took."""
        action = ended.job.action
        if isinstance(action, Infer) and self._engine is not None:
            if len(self._usual_ns) >= REMEMBERED:
                self._usual_ns.clear()
            self._usual_ns[kind_of_run(action)] = ended.end_ns - ended.begin_ns

    def look_ns(self, now_ns: int) -> int | None:
        """Return when the network thread should look if EXEC has gone on to what is laid out; None if
        never."""
        running = self._core.running(Executor.EXEC)
        if not self._next or running is None or not isinstance(running.action, Infer):
            return None
        usual_ns = self._usual_ns.get(kind_of_run(running.action), LOOKED_FOR_NS)
        if usual_ns >= LOOKED_FOR_NS:
            return None
        return max(running.begin_ns + usual_ns + LATE_NS, now_ns + AGAIN_NS)

    def _next_is_back(self) -> bool:
        try:
            self._next.pop()
        except IndexError:
            return False
        return True

    def _stage(self, engine: Stages, job: Job, running: Job) -> Staged | None:
        assert isinstance(job.action, Infer), f"{job} is staged"
        assert isinstance(running.action, Infer), f"{job} is staged behind {running}"
        assert job.io is not None, f"{job} has no IO memory"
        try:
            return engine.stage(job.action, job.io, running.action, self._ahead)
        except Exception as error:
            # `Engine.execute` meets it again, and it becomes the action's result.
            LOG.info("action %d is not prepared ahead: %s", job.action.action_id, error)
            return None


def kind_of_run(action: Infer) -> tuple[str, int, tuple[int, ...]]:
    """Return what INFERs of about the same duration have in common."""
    return action.model, action.batch_size, action.sizes


RECENT = 10
"""Runs of a kind of which the longest counts."""


class Committing:
    """The batches that a device which `Queues` was given; the core's lock is held unless a method says
    else."""

    def __init__(
        self, core: WorkerCore, engine: Engine, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock = clock
        self._core = core
        self.engine = engine if isinstance(engine, Queues) else None
        """Engine that takes batches ahead; None if it does not: then nothing is committed."""
        self._behind: Job | None = None
        """Last job that has begun and that the device was given: before, nothing may be given behind it."""
        self._given: Given | None = None
        """Batch that is committed; None if none is."""
        self._declined: Job | None = None
        """The job behind which nothing will be committed any more."""
        self._took_ns: dict[tuple[str, int, tuple[int, ...]], deque[int]] = {}
        """Durations of the last runs of a model, batch size and sizes of symbols."""

    def fill(self) -> None:
        """Give the device the next INFER if that may begin behind the one that runs."""
        engine, running = self.engine, self._core.running(Executor.EXEC)
        if engine is None or running is None or running is not self._behind or running is self._declined:
            return
        if self._core.committed:
            return
        now_ns = self._clock()
        job = self._core.stage(now_ns)
        if job is None:
            return
        action = job.action
        assert isinstance(action, Infer), f"{job} is staged"
        assert job.io is not None, f"{job} has no IO memory"
        end_ns = self._end_ns(running, now_ns)
        if end_ns is None or end_ns > action.latest_ns or not engine.takes_ahead(action):
            self._declined = running
            self._core.unstage()
            return
        self._given = engine.give(action, job.io)
        self._core.commit()

    def look_ns(self, now_ns: int) -> int | None:
        """Return when `fill` should be called again if nothing happens; None if never."""
        if self.engine is None or self._core.running(Executor.EXEC) is self._declined:
            return None
        stage_ns = self._core.stage_ns()
        return None if stage_ns is None or stage_ns < now_ns else stage_ns

    def begin(self) -> Job | None:
        """EXEC has ended a job: the device has gone on to what this returns; None if nothing is committed."""
        return self._core.begin_staged(self._clock()) if self._core.committed else None

    def give(self, engine: Queues, job: Job) -> tuple[Given, bool]:
        """EXEC, without the lock: return what the device was given for a job that has begun.

        And whether that was committed. If not, the device is given it now.
        """
        assert isinstance(job.action, Infer), f"{job} is given to the device"
        assert job.io is not None, f"{job} has no IO memory"
        given, self._given = self._given, None
        committed = given is not None
        if given is None:
            given = engine.give(job.action, job.io)
        self._behind = job
        return given, committed

    def learn(self, ended: Ended) -> None:
        """Remember how long an INFER took, and log one that the device began too late."""
        action = ended.job.action
        if self.engine is None or not isinstance(action, Infer) or ended.status is not Status.OK:
            return
        if len(self._took_ns) >= REMEMBERED:
            self._took_ns.clear()
        took_ns = self._took_ns.setdefault(kind_of_run(action), deque(maxlen=RECENT))
        took_ns.append(ended.end_ns - ended.begin_ns)
        if ended.begin_ns > action.latest_ns:
            late_us = (ended.begin_ns - action.latest_ns) / 1e3
            LOG.info("action %d began %.0f us too late on the device", action.action_id, late_us)

    def _end_ns(self, running: Job, now_ns: int) -> int | None:
        """Return when a job will have ended; None if nobody knows, or it should have ended by now."""
        assert isinstance(running.action, Infer), f"an Infer is staged behind {running}"
        took_ns = self._took_ns.get(kind_of_run(running.action))
        end_ns = 0 if took_ns is None else running.begin_ns + max(took_ns)
        return end_ns if end_ns >= now_ns else None


COMPUTED_PART = 0.5
"""Part of the time beyond the prediction in which the EXEC thread has to have computed."""


class Overruns:
    """Ends INFERs; the core's lock is held by who calls."""

    def __init__(self, core: WorkerCore, engine: Engine, limit_ns: int) -> None:
        """``limit_ns`` is how much longer than predicted an INFER may compute; 0: for any time."""
        self._core = core
        self._engine = engine if isinstance(engine, Interrupts) else None
        self._limit_ns = limit_ns
        self._late: Job | None = None
        """The INFER that was found to be overdue last."""
        self._computed_ns = 0
        """Processor time that EXEC had taken by then."""

    def look(self, now_ns: int, computed_ns: Callable[[], int]) -> None:
        """End what EXEC runs if it is due; ``computed_ns`` returns the processor time of its thread."""
        job = self._core.running(Executor.EXEC)
        if self._engine is None or not self._limit_ns or job is None or not isinstance(job.action, Infer):
            return
        late_ns = now_ns - job.begin_ns - job.action.predicted_duration_ns
        if late_ns <= 0:
            return
        if self._late is not job:
            self._late, self._computed_ns = job, computed_ns()
        elif late_ns >= self._limit_ns and self._computed(computed_ns()):
            self._engine.interrupt(job.action.action_id)

    def _computed(self, computed_ns: int) -> bool:
        return computed_ns - self._computed_ns >= COMPUTED_PART * self._limit_ns

    def interrupt(self) -> None:
        """End what EXEC runs now: nobody waits for its outputs."""
        job = self._core.running(Executor.EXEC)
        if self._engine is not None and job is not None and isinstance(job.action, Infer):
            self._engine.interrupt(job.action.action_id)


def told(job: Job, now_ns: int) -> str:
    """Return why a job's INFER was ended just now, for who sent its requests."""
    assert isinstance(job.action, Infer), f"{job} was ended"
    ran_ms = (now_ns - job.begin_ns) / 1e6
    predicted_ms = job.action.predicted_duration_ns / 1e6
    return (
        f"the model still computed after {ran_ms:.0f} ms, where {predicted_ms:.3g} ms were predicted, and "
        "was ended: these values may make it compute for ever (`[worker] overrun_ms`, or timeout_ms in the "
        "model.toml of a Python model)"
    )


class Outbox:
    """The ends in their order, with a bell that wakes the network thread."""

    def __init__(self, wake: Callable[[], object] | None = None) -> None:
        """``wake`` wakes the network thread where there is no bell."""
        self.bell = -1 if wake else os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._call = wake or partial(os.eventfd_write, self.bell, 1)
        self._ends: deque[tuple[Result | None, Reservation | None]] = deque()

    def put(self, result: Result | None, io: Reservation | None) -> None:
        """Add the end of an action; the caller holds the core's lock.

        ``result`` is None if the action was abandoned. ``io`` is where the outputs of an Infer that ended OK
        are: `WorkerCore.outputs_sent` has to follow.
        """
        self._ends.append((result, io))

    def ring(self) -> None:
        """Wake the network thread if there is something for it."""
        if self._ends:
            self._call()

    def call(self) -> None:
        """Wake the network thread."""
        self._call()

    @property
    def empty(self) -> bool:
        """Return whether there is nothing for the network thread."""
        return not self._ends

    def pop(self) -> tuple[Result | None, Reservation | None] | None:
        """Remove and return the oldest end, or None."""
        return self._ends.popleft() if self._ends else None

    def close(self) -> None:
        """Close the bell."""
        if self.bell >= 0:
            os.close(self.bell)


class Driving:
    """Holds the core; one object for all, because a request holds it five times and generators cost more."""

    def __init__(
        self, core: WorkerCore, lock: threading.Lock, settle: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._core = core
        self._lock = lock
        self._settle = settle
        self._wake = wake

    def __enter__(self) -> WorkerCore:
        self._lock.acquire()
        try:
            self._settle()
        except BaseException:
            self._lock.release()
            raise
        return self._core

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wake()
        finally:
            self._lock.release()


class Waker(Protocol):
    """Wakes one executor."""

    def notify(self) -> None:
        """Have it look for what it can begin."""
