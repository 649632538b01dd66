"""The next INFER, given to the device while it computes one: the device goes on to it by itself.

What a device was given can't be taken back. So an INFER is *committed* only once nothing but the one that
runs keeps it from beginning: its earliest instant has passed, its weights and inputs are there, it heads
EXEC's queue, and the one that runs will have ended before its latest instant, if it takes no longer than the
longest of its kind of late. If that is not known, EXEC begins the next one as usual, after the other's end.
A committed INFER is like a running job: neither its weights nor its slot can be given away, and
`WorkerCore.stop` and `abandon` leave it to its end.

`mainspring.worker.staging` does the same for a device that is told what to begin.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from mainspring.messages.actions import Infer
from mainspring.messages.codes import Status
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine, Given, Queues
from mainspring.worker.staging import REMEMBERED, Ended, kind_of_run

LOG = logging.getLogger(__name__)

RECENT = 10
"""Runs of a kind of which the longest counts."""


class Committing:
    """The batches that a device which `Queues` was given; the core's lock is held unless a method says
    else."""

    def __init__(self, core: WorkerCore, engine: Engine) -> None:
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
        now_ns = time.monotonic_ns()
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
        return self._core.begin_staged(time.monotonic_ns()) if self._core.committed else None

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
