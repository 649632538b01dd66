"""INFERs that compute for far longer than predicted: found by the clock, and ended by the engine.

Values can make a model compute for ever, such as the number of steps of a Loop, and EXEC does one thing at a
time: all other models of the worker would wait. What counts is the processor time of the EXEC thread, so a
process that was stopped, or a host that was, costs no INFER its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mainspring.messages.actions import Infer
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine, Interrupts

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


def told(job: Job) -> str:
    """Return why a job's INFER was ended, for who sent its requests."""
    assert isinstance(job.action, Infer), f"{job} was ended"
    ran_ms = (time.monotonic_ns() - job.begin_ns) / 1e6
    predicted_ms = job.action.predicted_duration_ns / 1e6
    return (
        f"the model still computed after {ran_ms:.0f} ms, where {predicted_ms:.3g} ms were predicted, and "
        "was ended: these values may make it compute for ever (`[worker] overrun_ms`)"
    )
