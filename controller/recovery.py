"""Models served again: their files were repaired, the store became readable, or a worker holds them."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import Outbox
from mainspring.controller.registry import ModelRegistry, spec_fault
from mainspring.controller.sessions import WorkerSession
from mainspring.messages.events import ModelRestored
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Describe

_LOGGER = logging.getLogger(__name__)
DESCRIBED_AT_ONCE = 256
"""Models about which one message asks a worker."""


class Awaited:
    """Models that the start could not read, and those readable by now; another thread adds models."""

    def __init__(self, left_out: dict[str, str] | None = None, *, adopt: bool = False) -> None:
        """``left_out``: models, each with the reason. ``adopt``: nothing was readable, so serve what workers
        hold."""
        self.left_out = dict(left_out or {})
        self.adopt = adopt
        self.found: queue.SimpleQueue[ModelSpec] = queue.SimpleQueue()


class ModelRecovery:
    """Adds such models to the registry again; ``now_ns`` is on the controller's clock."""

    def __init__(
        self,
        scheduler: LoggedScheduler,
        registry: ModelRegistry,
        outbox: Outbox,
        memory: Memory,
        awaited: Awaited,
        own: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """``own``: whether a model is this controller's, of several."""
        self._own = own
        self._scheduler = scheduler
        self._registry = registry
        self._outbox = outbox
        self._memory = memory
        self._awaited = awaited

    def beat(self, now_ns: int) -> None:
        """Serve what has become readable, except models that are served already or were removed meanwhile."""
        while True:
            try:
                spec = self._awaited.found.get_nowait()
            except queue.Empty:
                return
            if self._own(spec.public_name):
                self._serve(now_ns, spec, "its manifest can be read again")
            self._registry.left_out.pop(spec.name, None)

    def restored(self, now_ns: int, session: WorkerSession, spec: ModelSpec) -> None:
        """Let a worker try a model again whose files have changed, perhaps by another compilation."""
        known = self._registry.models.get(spec.name)
        if known is None or not session.joined:
            return
        if known.artifact == spec.artifact:
            _LOGGER.warning("the files of %s have changed: %s tries it again", spec.name, session.name)
            self._scheduler.handle(now_ns, ModelRestored(session.name, spec.name))
        elif known.served_as or spec_fault(spec) or self._scheduler.core.prepared_anywhere(spec.name):
            _LOGGER.warning("%s has another artifact of %s than is served", session.name, spec.name)
        else:
            _LOGGER.warning("%s was compiled again: it is served as it is now", spec.name)
            self._memory.replaced(spec)
            self._registry.replace(now_ns, spec)

    def ask(self, session: WorkerSession) -> None:
        """Ask a worker that has just said hello about the models that it holds and the registry lacks.

        The answer arrives before the worker joins, so that the scheduler knows the models by then.
        """
        if not self._awaited.adopt:
            return
        names = [name for name in session.hello.prepared if name not in self._registry.models]
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            self._outbox.send(session, Describe(tuple(names[start : start + DESCRIBED_AT_ONCE])))

    def described(self, now_ns: int, session: WorkerSession, models: tuple[ModelSpec, ...]) -> None:
        """Serve models that a worker holds, because the store can't be read."""
        for spec in models:
            if self._awaited.adopt and session.hello.prepared.get(spec.name) == spec.artifact:
                self._serve(now_ns, spec, f"{session.name} holds it")

    def _serve(self, now_ns: int, spec: ModelSpec, why: str) -> None:
        if spec.name in self._registry.models or spec.name in self._memory.models:
            return
        refusal = self._registry.add(now_ns, spec)
        outcome = f"served again: {why}" if refusal is None else f"not served: {refusal[1]}"
        _LOGGER.warning("%s is %s", spec.name, outcome)
