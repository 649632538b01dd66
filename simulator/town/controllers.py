"""A controller of a town: shell and scheduler as they are deployed, in the loop of `controller.server`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from mainspring.cluster.validate import remember
from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Dropped
from mainspring.controller.server import due_ns, turn
from mainspring.controller.shell import Shell
from mainspring.messages.actions import Infer
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.town.ports import TownListener
from mainspring.simulator.town.process import Process

PORT: Final = 7401
NEVER_COUNTED: Final = (
    *("internal_error", "scheduler_error", "bad_message", "bad_result", "bad_query"),
    *("not_loggable", "bad_framing", "protocol_mismatch"),
)
"""Reasons that no controller counts whose peers are sound: each is a bug."""


class Tap:
    """Stands where the event log does, and keeps each INFER's window, on the controller's clock."""

    problem = None
    run = 1

    def __init__(self) -> None:
        self.windows: dict[tuple[str, int], tuple[int, int]] = {}

    def append_all(self, records: Sequence[Any]) -> int:
        """Take records."""
        for _, entry in records:
            if type(entry) is Infer:
                self.windows[entry.worker, entry.action_id] = entry.earliest_ns, entry.latest_ns
        return 0

    def flush(self) -> None:
        """Nothing is buffered."""


class TownController:
    """See the module's docstring."""

    def __init__(
        self,
        process: Process,
        models: Sequence[ModelSpec],
        scheduler: SchedulerConfig,
        beat_ms: float,
        *,
        tells: bool = False,
    ) -> None:
        """``beat_ms``: between two pings to each peer; ``tells``: keep what tells of what goes wrong."""
        self.process = process
        address = f"tcp://{process.host}:{PORT}"
        self._config = ControllerConfig(address=address, heartbeat_interval_ms=beat_ms)
        self.dropped = Dropped()
        self.tap = Tap()
        self.scheduler = Scheduler(scheduler)
        if tells:
            remember(self.scheduler.cluster)
        self.logged = LoggedScheduler(self.scheduler, cast(Any, self.tap), self.dropped)
        self._listener = TownListener(process.hub, address)
        self.shell = Shell(self._config, self.logged, cast(Any, self._listener), self.dropped)
        now_ns = process.now_ns()
        for spec in models:
            refusal = self.shell.registry.add(now_ns, spec)
            assert refusal is None, f"{spec.name} is refused: {refusal}"
        self.shell.administration.restore(now_ns)

    def turn(self, now_ns: int) -> int:
        """Receive a burst, schedule, carry out, beat."""
        for _ in range(self._config.burst_messages):
            received = self._listener.receive()
            if received is None:
                break
            self.shell.receive(now_ns, *received)
        turn(self.shell, self.logged, now_ns)
        if self.shell.told_epoch > self.scheduler.config.epoch:
            # Another one leads.
            self.process.crash()
            return now_ns
        if self._listener.pending():
            return now_ns
        return due_ns(self.shell, self.logged, now_ns)

    def check(self) -> None:
        """Check the scheduler, and what no controller may count."""
        self.scheduler.validate()
        for why in NEVER_COUNTED:
            assert not self.dropped[why], f"{self.process.name} counts {self.dropped[why]} {why}"
