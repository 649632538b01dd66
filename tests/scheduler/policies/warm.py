"""A scheduler whose workers hold every model from the start, for tests of what a policy runs when."""

from __future__ import annotations

from mainspring.messages.actions import Command, Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, RequestArrived, Resident, WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler

MS = 1_000_000


class Warm:
    """Answers actions when it is told to; one row a request."""

    def __init__(self, config: SchedulerConfig, specs: list[ModelSpec], workers: int = 1) -> None:
        self.scheduler = Scheduler(config)
        self.now_ms = 0.0
        self._requests = 0
        for spec in specs:
            self.scheduler.handle(0, ModelAdded(spec))
        for index in range(workers):
            resident = [
                Resident(spec.name, spec.artifact, (number,)) for number, spec in enumerate(specs)
            ]  # fmt: skip
            prepared = {spec.name: spec.artifact for spec in specs}
            self.scheduler.handle(0, WorkerJoined(f"w{index}", "gpu", len(specs), prepared, tuple(resident)))
        assert self.scheduler.schedule(0) == []

    def ask(self, now_ms: float, model: str, slo_ms: float, count: int = 1) -> list[tuple[float, Infer]]:
        """Let requests arrive; return the INFERs that were sent by then, with the instants of sending."""
        sent = self.until(now_ms)
        for _ in range(count):
            self._requests += 1
            deadline_ns = round((now_ms + slo_ms) * MS)
            arrived = RequestArrived(self._requests, model, 1, deadline_ns)
            self.scheduler.handle(round(now_ms * MS), arrived)
            sent += self._sent(self.scheduler.schedule(round(now_ms * MS)))
        return sent

    def until(self, now_ms: float) -> list[tuple[float, Infer]]:
        """Let time pass; return the INFERs that were sent, with the instants of sending."""
        sent: list[tuple[float, Infer]] = []
        while (wakeup_ns := self.scheduler.next_wakeup_ns()) is not None and wakeup_ns <= now_ms * MS:
            self.now_ms = max(self.now_ms, wakeup_ns / MS)
            sent += self._sent(self.scheduler.schedule(round(self.now_ms * MS)))
            self.scheduler.validate()
        self.now_ms = now_ms
        return sent

    def end(self, now_ms: float, action: Infer | Load) -> list[tuple[float, Infer]]:
        """Let an action end well at an instant."""
        sent = self.until(now_ms)
        now_ns = round(now_ms * MS)
        begin_ns = now_ns - action.predicted_duration_ns
        self.scheduler.handle(now_ns, Result(action.action_id, action.worker, Status.OK, begin_ns, now_ns))
        return sent + self._sent(self.scheduler.schedule(now_ns))

    def _sent(self, commands: list[Command]) -> list[tuple[float, Infer]]:
        return [(self.now_ms, command) for command in commands if isinstance(command, Infer)]
