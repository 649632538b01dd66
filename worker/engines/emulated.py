"""A device made of nothing: each job takes as long as its model's profile says, outputs are zeros.

It needs no model files, so a laptop can run the control plane of a hundred devices, as the original's
dummy worker did.
"""

from __future__ import annotations

import time

import numpy as np

from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import ModelSpec
from mainspring.worker.durations import profile_of, profiled_ns
from mainspring.worker.engine import wait_until
from mainspring.worker.jobs import Executor, Reservation


class EmulatedEngine:
    """Sleeps for the profiled duration on ``device_kind``.

    ``jitter`` spreads durations: each is multiplied by ``1 + jitter * |x|`` with ``x`` from a normal
    distribution seeded by ``seed``, separately for EXEC and LOAD so that either is reproducible.
    """

    def __init__(
        self, device_kind: str, io_bytes: int, *, seed: int = 0, jitter: float = 0.0, spin_ns: int = 100_000
    ) -> None:
        self.io = np.zeros(io_bytes, np.uint8)
        self._device_kind = device_kind
        self._jitter = jitter
        self._spin_ns = spin_ns
        self._models: dict[str, ModelSpec] = {}
        self._noise = {
            executor: np.random.default_rng([seed, index]) for index, executor in enumerate(Executor)
        }

    def prepare(self, model: ModelSpec) -> None:
        """Check that the model has a profile; raise `NoProfile` if not."""
        profile_of(model, self._device_kind)
        self._models[model.name] = model

    def release(self, name: str) -> None:
        """Forget the model's profile."""
        self._models.pop(name, None)

    def load(self, action: Load) -> int:
        """Take the profiled time of a LOAD."""
        return self._take(action, Executor.LOAD)

    def unload(self, name: str) -> None:
        """Nothing is kept."""

    def execute(self, action: Infer, io: Reservation) -> int:
        """Take the profiled time of the batch; its outputs are zeros."""
        if io.layout.outputs:
            start = io.slot.offset + io.layout.outputs[0]
            self.io[start : io.slot.offset + io.layout.size] = 0
        return self._take(action, Executor.EXEC)

    def close(self) -> None:
        """Nothing is kept."""

    def _take(self, action: Infer | Load, executor: Executor) -> int:
        begin_ns = time.monotonic_ns()
        duration_ns = profiled_ns(action, self._models[action.model], self._device_kind)
        if self._jitter:
            duration_ns = round(duration_ns * (1 + self._jitter * abs(self._noise[executor].normal())))
        wait_until(begin_ns + duration_ns, self._spin_ns)
        return time.monotonic_ns() - begin_ns
