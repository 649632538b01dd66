"""The parts of the scheduler that have to know when the cluster changes."""

from __future__ import annotations

from mainspring.scheduler.idle import Backlog
from mainspring.scheduler.pins import Pins
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.residency import Residency
from mainspring.scheduler.state import SchedulerState


class Changes:
    """Base of those that change the cluster while requests are served, each for its own reasons."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        residency: Residency,
        backlog: Backlog,
        lifecycle: RequestLifecycle,
        pins: Pins,
    ) -> None:
        self._state = state
        self._policy = policy
        self._residency = residency
        self._backlog = backlog
        self._lifecycle = lifecycle
        self._pins = pins
