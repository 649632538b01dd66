"""The models and workers that the controller told this gateway of. Pure.

A controller that welcomes the gateway anew tells it everything again. Until it has, what was known before
stays: a client does not hear "unknown model" because the controller was away for a moment.
"""

from __future__ import annotations

from mainspring.gateway.validation import Signature
from mainspring.messages.model import ModelSpec

_CONFIRM_NS = 1_000_000_000
"""Time from a welcome in which what was known before must be told again."""


class Catalog:
    """Signatures by model name, data addresses by worker."""

    def __init__(self) -> None:
        self.signatures: dict[str, Signature] = {}
        self.workers: dict[str, str] = {}
        self._old_models: dict[str, None] = {}
        self._old_workers: dict[str, None] = {}
        self._confirm_by_ns: int | None = None

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the models, by name."""
        return tuple(self.signatures[name].spec for name in sorted(self.signatures))

    def begin_session(self, now_ns: int) -> None:
        """Wait for a controller to confirm what is known."""
        self._old_models = dict.fromkeys(self.signatures)
        self._old_workers = dict.fromkeys(self.workers)
        self._confirm_by_ns = now_ns + _CONFIRM_NS

    def model_up(self, spec: ModelSpec) -> None:
        """Take requests for the model; raise ValueError if its spec makes no sense."""
        try:
            self.signatures[spec.name] = Signature(spec)
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"model {spec.name!r} has a spec that makes no sense: {error}") from error
        self._old_models.pop(spec.name, None)

    def model_down(self, name: str) -> None:
        """Take no more requests for the model."""
        self.signatures.pop(name, None)
        self._old_models.pop(name, None)

    def worker_up(self, worker: str, address: str) -> None:
        """Send inputs for the worker to this address."""
        self.workers[worker] = address
        self._old_workers.pop(worker, None)

    def worker_down(self, worker: str) -> None:
        """Send the worker nothing more."""
        self.workers.pop(worker, None)
        self._old_workers.pop(worker, None)

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next."""
        return self._confirm_by_ns

    def tick(self, now_ns: int) -> list[str]:
        """Forget what the controller did not confirm; return the workers among it."""
        if self._confirm_by_ns is None or now_ns < self._confirm_by_ns:
            return []
        self._confirm_by_ns = None
        for name in self._old_models:
            del self.signatures[name]
        gone = list(self._old_workers)
        for worker in gone:
            del self.workers[worker]
        self._old_models, self._old_workers = {}, {}
        return gone
