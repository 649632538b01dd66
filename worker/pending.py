"""What the worker's core keeps of an action that has not begun."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Load, Prepare
from mainspring.worker.jobs import Executor, Reservation


class Pending:
    """An action that waits for its executor."""

    __slots__ = ("action", "executor", "inputs_ns", "io", "missing")

    def __init__(
        self, executor: Executor, action: Infer | Load | Prepare, io: Reservation | None = None
    ) -> None:
        self.executor = executor
        self.action = action
        self.io = io
        self.missing = set(action.request_ids) if isinstance(action, Infer) else set[int]()
        self.inputs_ns = 0
        """When the last of the inputs was in place; 0 while some are missing."""


def model_name(action: Infer | Load | Prepare) -> str:
    """Name of the action's model."""
    return action.model.name if isinstance(action, Prepare) else action.model
