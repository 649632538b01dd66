"""Watching a GPU while it serves: its state through NVML once a second, and whether it still answers.

A thread of its own reads, so that neither EXEC nor the network waits for the driver's monitor. A device that
is lost shows in the next EXEC; while there is none, the monitor asks the device itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mainspring.messages.metrics import DeviceHealth
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.nvml import NvmlMissing
from mainspring.worker.engines.cuda.state import GpuState, Problem, graph_health, problems, readings

LOG = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Time between two readings."""
OVER_S = 60.0
"""Time without a problem after which the log says that it is over; it doubles each time the problem has come
back. Under load, a GPU at its power limit has its clocks held down again and again."""
LONGEST_OVER_S = 86_400.0
"""Longest value that this time grows to."""


@dataclass(slots=True)
class _Told:
    """A problem that the log has told of."""

    seen_s: float
    """Time at which it was last seen."""
    over_s: float = OVER_S
    """Time without it after which it is over."""
    over: bool = False


class StateReader(Protocol):
    """A reader of a GPU's state: `nvml.Reader`."""

    def read(self) -> GpuState:
        """Return the present state; raise `NvmlMissing` if it can't be read."""

    def close(self) -> None:
        """Give the monitor of the driver back."""


class GpuMonitor:
    """A thread that monitors one GPU from when `health` is first asked for; one thread asks."""

    def __init__(
        self,
        reader: StateReader | None,
        probe: Callable[[], None],
        refused: Callable[[], Sequence[str]] = tuple,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """``probe`` raises `DeviceLost` if the device does not answer any more; it may do nothing.

        ``refused`` returns, for each executable without a graph, why it has none.
        """
        self._reader = reader
        self._probe = probe
        self._refused = refused
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._since_s: dict[str, float] = {}
        """Time since which each problem has been seen, by its cost: a problem's finding may have other
        numbers each time."""
        self._told: dict[str, _Told] = {}
        """Problems that were logged, by their cost."""
        self._health = DeviceHealth()
        self._lost: DeviceLost | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)

    def stop(self) -> None:
        """End the thread and give the driver's monitor back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        elif self._thread.ident is None and self._reader is not None:
            self._reader.close()

    def health(self) -> DeviceHealth:
        """Return what was seen last; raise `DeviceLost` if the device is lost."""
        if self._thread.ident is None:
            self._thread.start()
        if self._lost is not None:
            raise self._lost
        return self._health

    def look(self, now_s: float) -> None:
        """Read the state and ask the device whether it answers; ``now_s`` is of any clock that goes on."""
        state, graphs = self._state(now_s), graph_health(self._refused())
        self._health = DeviceHealth(graphs.notes + state.notes, graphs.readings + state.readings)
        try:
            self._probe()
        except DeviceLost as error:
            LOG.error("the GPU does not answer any more: %s", error)
            self._lost = error
            self._stop.set()
        except EngineError as error:
            LOG.warning("the GPU could not be asked whether it answers: %s", error)

    def _state(self, now_s: float) -> DeviceHealth:
        if self._reader is None:
            return DeviceHealth()
        try:
            state = self._reader.read()
        except NvmlMissing as error:
            return DeviceHealth((f"the GPU's state can't be read any more: {error}",))
        return DeviceHealth(self._notes(state, problems(state), now_s), readings(state))

    def _notes(self, state: GpuState, found: list[Problem], now_s: float) -> tuple[str, ...]:
        before, self._since_s = self._since_s, {}
        notes = []
        for each in found:
            since_s = self._since_s[each.costs] = before.get(each.costs, now_s)
            if self._is_news(each.costs, now_s):
                LOG.warning("GPU at %s: %s; %s", state.bus_id, each.found, each.costs)
            lasted = f" (for {now_s - since_s:.0f} s)" if now_s - since_s >= 1 else ""
            notes.append(f"GPU at {state.bus_id}: {each.found}{lasted}; {each.costs}")
        for costs, told in self._told.items():
            if not told.over and now_s - told.seen_s >= told.over_s:
                told.over = True
                LOG.info("GPU at %s: no longer so that %s", state.bus_id, costs)
        return tuple(notes)

    def _is_news(self, costs: str, now_s: float) -> bool:
        """Note that a problem is seen; return whether it is to be logged."""
        told = self._told.get(costs)
        if told is None:
            self._told[costs] = _Told(now_s)
            return True
        returned, told.over, told.seen_s = told.over, False, now_s
        if returned:
            told.over_s = min(2 * told.over_s, LONGEST_OVER_S)
        return returned

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.look(time.monotonic())
            except Exception:
                LOG.exception("the GPU can't be watched any more")
                break
        if self._reader is not None:
            self._reader.close()
