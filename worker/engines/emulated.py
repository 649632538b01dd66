"""An emulated device: each job takes as long as its model's profile says, outputs are zeros.

It needs no model files, so a laptop can run the control plane of a hundred devices, like Clockwork's
dummy worker.
"""

from __future__ import annotations

import time

import numpy as np

from mainspring.messages.actions import Infer, Load
from mainspring.messages.curve import Curve
from mainspring.messages.model import ModelSpec, Profile
from mainspring.worker.core.jobs import Executor, Reservation
from mainspring.worker.engine import wait_until


class NoProfile(LookupError):
    """The model has no profile for this kind of device."""


class EmulatedEngine:
    """Sleeps for the profiled duration on ``device_kind``.

    ``jitter`` spreads durations: each is multiplied by ``1 + jitter * |x|`` with ``x`` from a normal
    distribution seeded by ``seed``, separately for EXEC and LOAD, so that both are reproducible. With
    ``open_ns`` EXEC takes that time to open an executable.
    """

    def __init__(
        self,
        device_kind: str,
        io_bytes: int,
        *,
        seed: int = 0,
        jitter: float = 0.0,
        spin_ns: int = 100_000,
        open_ns: int = 0,
    ) -> None:
        self.io = np.zeros(io_bytes, np.uint8)
        self._device_kind = device_kind
        self._jitter = jitter
        self._spin_ns = spin_ns
        self._profiles: dict[str, Profile] = {}
        self._curves: dict[str, Curve] = {}
        """Curves of the models with symbols, by the model's name."""
        self._open_ns = open_ns
        self._opened: set[str] = set()
        self._noise = {
            executor: np.random.default_rng([seed, index]) for index, executor in enumerate(Executor)
        }

    def fetch(self, model: ModelSpec) -> bool:
        """Check that the model has a profile; return whether its executable is open. Raises `NoProfile`."""
        profile = self._profiles[model.name] = _profile(model, self._device_kind)
        if model.symbols:
            self._curves[model.name] = Curve(model, profile)
        return not self._open_ns or model.executable in self._opened

    def prepare(self, model: ModelSpec) -> None:
        """Take the time to open the model's executable; raise `NoProfile` if it has no profile."""
        begin_ns = time.monotonic_ns()
        if not self.fetch(model):
            wait_until(begin_ns + self._open_ns, self._spin_ns)
            self._opened.add(model.executable)

    def release(self, name: str) -> None:
        """Forget the model's profile."""
        self._profiles.pop(name, None)
        self._curves.pop(name, None)

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
        profile = self._profiles[action.model]
        duration_ns = profile.load_ns
        if isinstance(action, Infer):
            duration_ns = profile.infer_ns[action.batch_size]
            if action.sizes:
                duration_ns = self._curves[action.model].share(action.batch_size, action.sizes)[0]
        if self._jitter:
            duration_ns = round(duration_ns * (1 + self._jitter * abs(self._noise[executor].normal())))
        wait_until(begin_ns + duration_ns, self._spin_ns)
        return time.monotonic_ns() - begin_ns


def _profile(model: ModelSpec, device_kind: str) -> Profile:
    """Return the model's profile on ``device_kind``; raise `NoProfile`, which names the known kinds."""
    profile = model.profiles.get(device_kind)
    if profile is None:
        known = ", ".join(sorted(model.profiles)) or "none"
        raise NoProfile(f"model {model.name} has no profile for {device_kind!r}; it has: {known}")
    missing = [size for size in model.batch_sizes if size not in profile.infer_ns]
    if missing:
        raise NoProfile(f"model {model.name}: its profile for {device_kind!r} lacks batch sizes {missing}")
    return profile
