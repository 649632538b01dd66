"""What operators set, and the newest of what they asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from mainspring.messages.operating import (
    DrainWorker,
    PinModel,
    ResumeWorker,
    SetDefaultSlo,
    UnpinModel,
    Wish,
)

_UNKNOWN = "an operator"


class Operation(msgspec.Struct, frozen=True):
    """One wish that was granted."""

    at_ns: int
    who: str
    wish: Wish


class Operations:
    """Wishes in the order in which they were granted; what they set holds whoever comes and goes."""

    def __init__(self, most: int) -> None:
        """Remember at most so many wishes."""
        self.drained: dict[str, str] = {}
        """Workers that are to get nothing more, and who said so."""
        self.pinned: dict[str, None] = {}
        """Models, by the scheduler's names."""
        self.slos_ns: dict[str, int] = {}
        """Default SLOs, by what clients call the models."""
        self._log: deque[Operation] = deque(maxlen=most)

    def asked(self, now_ns: int, who: str, wish: Wish) -> None:
        """A wish was granted; one that is told of again changes nothing."""
        self._remember(Operation(now_ns, who, wish))
        match wish:
            case DrainWorker(worker=worker):
                self.drained[worker] = who
            case ResumeWorker(worker=worker):
                self.drained.pop(worker, None)
            case PinModel(model=model):
                self.pinned[model] = None
            case UnpinModel(model=model):
                self.pinned.pop(model, None)
            case SetDefaultSlo(model=model, slo_ns=None):
                self.slos_ns.pop(model, None)
            case SetDefaultSlo(model=model, slo_ns=slo_ns) if slo_ns is not None:
                self.slos_ns[model] = slo_ns

    def model_removed(self, model: str) -> None:
        """A model is served no more: one that comes by its name is not pinned."""
        self.pinned.pop(model, None)

    def drained_at(self, worker: str, now_ns: int) -> str:
        """Return who had a worker drained at an instant; empty for nobody."""
        who = self.drained.get(worker, "")
        for operation in reversed(self._log):
            if operation.at_ns <= now_ns:
                break
            match operation.wish:
                case DrainWorker(worker=name) if name == worker:
                    who = ""
                case ResumeWorker(worker=name) if name == worker:
                    who = _UNKNOWN
        return who

    def newest(self) -> Iterator[Operation]:
        """Yield the wishes, the newest first."""
        return reversed(self._log)

    def _remember(self, operation: Operation) -> None:
        """Put a wish into its place: a picture tells anew of what was asked for before it."""
        if operation in self._log:
            return
        later = []
        while self._log and self._log[-1].at_ns > operation.at_ns:
            later.append(self._log.pop())
        if self._log or len(later) < (self._log.maxlen or 0):
            self._log.append(operation)
        self._log.extend(reversed(later))

    def forget(self, keep_history: bool) -> None:
        """Forget what is set; also what was asked for unless history is kept."""
        self.drained.clear()
        self.pinned.clear()
        self.slos_ns.clear()
        if not keep_history:
            self._log.clear()
