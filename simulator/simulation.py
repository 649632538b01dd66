"""A whole cluster in virtual time: one scheduler, simulated workers, arrivals in, outcomes out."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Reason
from mainspring.messages.commands import Command, DropWorker, Reject
from mainspring.messages.events import Event, ModelAdded, RequestArrived, Wakeup, WorkerLeft
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.device import SimulatedWorker
from mainspring.simulator.faults import Faults


@dataclass
class Outcome:
    """What became of one request, as its gateway saw it."""

    request: RequestArrived
    arrived_ns: int
    answered_ns: int | None = None
    reason: Reason | None = None
    """Why it was rejected; None if it got outputs, or nothing yet."""
    answers: int = 0
    """Outputs and rejections that came; more than one only where work was lost and done again."""
    cold: bool = False
    batch_size: int = 0

    @property
    def in_time(self) -> bool:
        """Whether outputs came by the deadline."""
        deadline_ns = self.request.deadline_ns
        return (
            self.answered_ns is not None
            and self.reason is None
            and (deadline_ns is None or self.answered_ns <= deadline_ns)
        )


class Simulation:
    """Feeds the scheduler, carries its commands to the workers, and their results back."""

    def __init__(
        self,
        config: SchedulerConfig,
        models: Iterable[ModelSpec],
        workers: Iterable[tuple[str, str, int]],
        *,
        seed: int = 0,
        faults: Faults | None = None,
        record: Callable[[int, Event | Command], None] | None = None,
        validate_every: int = 0,
    ) -> None:
        """Set a cluster up.

        ``workers`` are (name, device kind, pages). ``record`` gets the event stream. With
        ``validate_every`` the scheduler's and the cores' invariants are checked every so many events.
        """
        self.faults = faults or Faults()
        self.now_ns = 0
        self.scheduler = Scheduler(config)
        self.outcomes: dict[int, Outcome] = {}
        self.commands: list[tuple[int, Command]] = []
        self._record = record
        self._validate_every = validate_every
        self._events = 0
        self._rng = np.random.default_rng(seed)
        self._agenda: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0
        self._last_ns: dict[tuple[str, str], int] = {}
        self._link_free_ns: dict[str, int] = {}
        """When each worker's link has carried the inputs that were pushed so far."""
        self._specs: dict[str, ModelSpec] = {}
        self._wakeup_ns: int | None = None
        self._worker_seeds = np.random.SeedSequence(seed).spawn(1)[0]
        self.workers: dict[str, SimulatedWorker] = {}
        for spec in models:
            self._feed(ModelAdded(spec))
        for name, kind, pages in workers:
            self._join(name, kind, pages)
        for when_ns, name, down_ns in self.faults.crashes:
            self._at(when_ns, self._crash, name, down_ns)

    def request(
        self, when_ns: int, request_id: int, model: str, rows: int = 1, slo_ns: int | None = None
    ) -> None:
        """Let a request arrive at the gateway at an instant."""
        deadline_ns = None if slo_ns is None else when_ns + slo_ns
        self._at(when_ns, self._arrive, RequestArrived(request_id, model, rows, deadline_ns))

    def feed(self, when_ns: int, event: Event) -> None:
        """Let any other event reach the scheduler at an instant."""
        self._at(when_ns, lambda: self._feed(event))

    def run(self, until_ns: int) -> None:
        """Let virtual time pass."""
        while self._agenda and self._agenda[0][0] <= until_ns:
            when_ns, _, function, arguments = heapq.heappop(self._agenda)
            self.now_ns = when_ns
            function(*arguments)
        self.now_ns = max(self.now_ns, until_ns)

    def validate(self) -> None:
        """Check every invariant of the scheduler and of the workers' cores."""
        self.scheduler.validate()
        for worker in self.workers.values():
            if worker.alive:
                worker.core.validate()

    # --- inside ---

    def _at(self, when_ns: int, function: Callable[..., None], *arguments: Any) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (when_ns, self._entries, function, arguments))

    def _later(self, when_ns: int, function: Callable[[int], None]) -> None:
        self._at(when_ns, lambda: function(self.now_ns))

    def _carry(self, source: str, target: str, function: Callable[..., None], *arguments: Any) -> None:
        """Deliver a message after the network's delay, behind those sent before between the same two."""
        delay_ns = self.faults.delay_ns
        if self.faults.delay_jitter_ns:
            delay_ns += int(self._rng.integers(self.faults.delay_jitter_ns))
        when_ns = max(self.now_ns + delay_ns, self._last_ns.get((source, target), 0))
        self._last_ns[source, target] = when_ns
        self._at(when_ns, function, *arguments)

    def _join(self, name: str, kind: str, pages: int) -> None:
        worker = SimulatedWorker(
            name,
            kind,
            pages,
            faults=self.faults,
            rng=np.random.default_rng(self._worker_seeds.spawn(1)[0]),
            later=self._later,
            results=lambda _, result: self._carry(name, "controller", self._result, worker, result),
            outputs=lambda _, action: self._carry(name, "gateway", self._output, action),
        )
        self.workers[name] = worker
        self._feed(worker.joined())

    def _crash(self, name: str, down_ns: int) -> None:
        worker = self.workers[name]
        worker.crash()
        detected_ns = self.now_ns + min(down_ns, self.faults.detection_ns)
        self._at(detected_ns, lambda: self._feed(WorkerLeft(name, "crashed")))
        self._at(self.now_ns + down_ns, self._join, name, worker.kind, worker.pages)

    def _arrive(self, request: RequestArrived) -> None:
        self.outcomes[request.request_id] = Outcome(request, self.now_ns)
        self._carry("gateway", "controller", self._feed, request)

    def _result(self, worker: SimulatedWorker, result: Result) -> None:
        if self.workers.get(worker.name) is worker:
            self._feed(result)

    def _output(self, action: Infer) -> None:
        for request_id, cold in zip(action.request_ids, action.cold, strict=True):
            outcome = self.outcomes[request_id]
            outcome.answers += 1
            if outcome.answered_ns is None:
                outcome.answered_ns = self.now_ns
                outcome.cold = cold
                outcome.batch_size = action.batch_size

    def _feed(self, event: Event) -> None:
        """One turn of the driver: feed, schedule, send, re-arm."""
        if self._record is not None:
            self._record(self.now_ns, event)
        if isinstance(event, ModelAdded):
            self._specs[event.model.name] = event.model
        self.scheduler.handle(self.now_ns, event)
        for command in self.scheduler.schedule(self.now_ns):
            if self._record is not None:
                self._record(self.now_ns, command)
            self.commands.append((self.now_ns, command))
            self._send(command)
        wakeup_ns = self.scheduler.next_wakeup_ns()
        if wakeup_ns is not None and wakeup_ns != self._wakeup_ns:
            self._wakeup_ns = wakeup_ns
            self._at(max(wakeup_ns, self.now_ns), self._wake, wakeup_ns)
        self._events += 1
        if self._validate_every and self._events % self._validate_every == 0:
            self.validate()

    def _wake(self, wakeup_ns: int) -> None:
        if wakeup_ns == self._wakeup_ns:
            self._wakeup_ns = None
            self._feed(Wakeup())

    def _send(self, command: Command) -> None:
        if isinstance(command, Reject):
            self._carry("controller", "gateway", self._rejected, command)
            return
        worker = self.workers[command.worker]
        if isinstance(command, DropWorker):
            worker.crash()
            self._at(self.now_ns + 1_000_000, self._join, worker.name, worker.kind, worker.pages)
            return
        self._carry("controller", command.worker, lambda: worker.receive(self.now_ns, command))
        if isinstance(command, Infer):
            row_bytes = self._specs[command.model].input_row_bytes
            for request_id, rows in zip(command.request_ids, command.rows, strict=True):
                push = (worker, command.action_id, request_id, rows * row_bytes)
                self._carry("controller", "gateway", self._push_input, *push)

    def _push_input(self, worker: SimulatedWorker, action_id: int, request_id: int, size: int) -> None:
        """Put a request's inputs on the worker's link, behind those that are on it already."""
        if self._rng.random() >= self.faults.input_loss_probability:
            free_ns = max(self.now_ns, self._link_free_ns.get(worker.name, 0))
            free_ns += round(size * self.faults.input_ns_per_byte)
            self._link_free_ns[worker.name] = free_ns
            self._at(free_ns, self._carry_input, worker, action_id, request_id)

    def _carry_input(self, worker: SimulatedWorker, action_id: int, request_id: int) -> None:
        self._carry("gateway", worker.name, lambda: worker.receive_input(self.now_ns, action_id, request_id))

    def _rejected(self, command: Reject) -> None:
        outcome = self.outcomes[command.request_id]
        outcome.answers += 1
        if outcome.answered_ns is None:
            outcome.answered_ns = self.now_ns
            outcome.reason = command.reason
