"""What the worker's core keeps of an action that has not begun."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Load, Prepare
from mainspring.messages.codes import Status
from mainspring.worker.admission import Ending
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

    def why_expired(self, *, resident: bool) -> Ending:
        """Return how it ends once its latest instant has passed; ``resident``: its model is."""
        if isinstance(self.action, Infer):
            if not resident:
                detail = f"model {self.action.model} was not loaded when it had to begin"
                return Status.NOT_RESIDENT, detail
            if self.missing:
                detail = f"inputs had not come when it had to begin: requests {sorted(self.missing)}"
                return Status.INPUT_MISSING, detail
        return Status.TOO_LATE, f"executor {self.executor} was not free when it had to begin"


def model_name(action: Infer | Load | Prepare) -> str:
    """Name of the action's model."""
    return action.model.name if isinstance(action, Prepare) else action.model
