"""One simulated worker: the unchanged worker core, and an engine that only takes time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mainspring.messages.actions import Action, Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import WorkerJoined
from mainspring.messages.model import PAGE_BYTES
from mainspring.simulator.faults import Faults
from mainspring.worker.core import WorkerCore
from mainspring.worker.jobs import Executor, Job

PREPARE_NS = 1_000_000
"""Duration of a simulated PREPARE."""

Later = Callable[[int, Callable[[int], None]], None]
"""Calls a function at an instant of virtual time."""


class SimulatedWorker:
    """Drives a `WorkerCore` in virtual time."""

    def __init__(
        self,
        name: str,
        kind: str,
        pages: int,
        *,
        faults: Faults,
        rng: np.random.Generator,
        later: Later,
        results: Callable[[int, Result], None],
        outputs: Callable[[int, Infer], None],
    ) -> None:
        self.name = name
        self.kind = kind
        self.pages = pages
        self.core = WorkerCore(name, pages, PAGE_BYTES, 1 << 40)
        self.alive = True
        self.busy_ns = 0
        """Time that EXEC has run for."""
        self._faults = faults
        self._rng = rng
        self._later = later
        self._results = results
        self._outputs = outputs
        self._early: set[tuple[int, int]] = set()

    def joined(self) -> WorkerJoined:
        """Return the event with which this worker joins, empty."""
        return WorkerJoined(self.name, self.kind, self.pages)

    def receive(self, now_ns: int, action: Action) -> None:
        """Take an action."""
        if not self.alive:
            return
        for result in self.core.submit(now_ns, action):
            self._results(now_ns, result)
        if isinstance(action, Infer):
            for request_id in action.request_ids:
                if (action.action_id, request_id) in self._early:
                    self._early.discard((action.action_id, request_id))
                    self.core.input_arrived(action.action_id, request_id, now_ns)
        self._run(now_ns)

    def receive_input(self, now_ns: int, action_id: int, request_id: int) -> None:
        """Take a request's inputs, which may come before their action."""
        if self.alive:
            if self.core.reservation(action_id) is None:
                self._early.add((action_id, request_id))
            self.core.input_arrived(action_id, request_id, now_ns)
            self._run(now_ns)

    def crash(self) -> None:
        """Die, with everything in memory."""
        self.alive = False

    def _run(self, now_ns: int) -> None:
        """Begin what can begin, and come back when time alone changes something."""
        if not self.alive:
            return
        for executor in Executor:
            begun = self.core.begin(executor, now_ns)
            for result in begun.results:
                self._results(now_ns, result)
            if begun.job is not None:
                self._start(now_ns, executor, begun.job)
            else:
                wake_ns = self.core.wake_ns(executor, now_ns)
                if wake_ns is not None:
                    self._later(max(wake_ns, now_ns + 1), self._run)

    def _start(self, now_ns: int, executor: Executor, job: Job) -> None:
        """Let a job's duration pass."""
        failed = self._rng.random() < self._faults.engine_error_probability
        duration_ns = self._duration_ns(job)
        status = Status.ENGINE_ERROR if failed else Status.OK

        def end(end_ns: int) -> None:
            if not self.alive:
                return
            result = self.core.finish(
                executor, job.action.action_id, now_ns, end_ns, device_ns=duration_ns, status=status
            )
            if executor is Executor.EXEC:
                self.busy_ns += duration_ns
                if job.io is not None and not failed:
                    self.core.outputs_sent(job.io.slot)
            if result is not None:
                if isinstance(job.action, Infer) and not failed:
                    self._outputs(end_ns, job.action)
                self._results(end_ns, result)
            self._run(end_ns)

        self._later(now_ns + duration_ns, end)

    def _duration_ns(self, job: Job) -> int:
        """Draw how long a job takes."""
        profile = job.model.profiles[self.kind]
        match job.action:
            case Infer(batch_size=size):
                nominal_ns = profile.infer_ns[size]
            case Load():
                nominal_ns = profile.load_ns
            case _:
                return PREPARE_NS
        duration_ns = nominal_ns * math.exp(self._faults.duration_jitter * self._rng.standard_normal())
        if self._rng.random() < self._faults.slow_probability:
            duration_ns += self._rng.random() * self._faults.slow_ns
        return max(1, round(duration_ns))
