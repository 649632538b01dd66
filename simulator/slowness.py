"""Spells of slowness: when a device is slow, and how long its work takes then.

Each spell of a spec is a two-state Markov process of its own, drawn from a seed as far as time has come. Work
that a spell's beginning or end falls into is slow for that part of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import final

import numpy as np

from mainspring.simulator.spec import Spell, matches

DRAWN = 64
"""Changes that are drawn at a time."""
SEED = 0x510
"""Sets the generators of spells apart from all others of a simulation, so that these draw what they would
without."""


@final
class Process:
    """The intervals in which one spell is under way, as the instants at which that changes."""

    def __init__(self, spell: Spell, rng: np.random.Generator) -> None:
        self._rng = rng
        self._means_ns = ((spell.every_s - spell.lasts_s) * 1e9, spell.lasts_s * 1e9)
        """Mean time between spells, and of one."""
        self._slow_first = bool(rng.random() < spell.lasts_s / spell.every_s)
        self._changes_ns = [0.0]

    def at(self, now_ns: float) -> tuple[bool, float]:
        """Return whether a spell is under way at an instant, and when that changes next."""
        changes_ns = self._changes_ns
        while changes_ns[-1] <= now_ns:
            self._draw()
        place = bisect_right(changes_ns, now_ns)
        return self._slow_first == (place % 2 == 1), changes_ns[place]

    def _draw(self) -> None:
        """Draw some more changes."""
        last_ns = self._changes_ns[-1]
        for length in self._rng.standard_exponential(DRAWN).tolist():
            slow = self._slow_first == (len(self._changes_ns) % 2 == 1)
            last_ns += length * self._means_ns[1 if slow else 0]
            self._changes_ns.append(last_ns)


@final
class Slowness:
    """The intervals in which one device is slow, by all spells that it has."""

    def __init__(self, spells: Sequence[Spell], processes: Sequence[Process]) -> None:
        """Each spell has the process at the same place."""
        self._infer_factors = [spell.infer_factor for spell in spells]
        self._load_factors = [spell.load_factor for spell in spells]
        self._processes = list(processes)

    def infer_ns(self, begin_ns: int, work_ns: float) -> float:
        """Return how long EXEC takes for what takes ``work_ns`` outside of spells."""
        return self._taken_ns(self._infer_factors, begin_ns, work_ns)

    def load_ns(self, begin_ns: int, work_ns: float) -> float:
        """Return the same of LOAD."""
        return self._taken_ns(self._load_factors, begin_ns, work_ns)

    def _taken_ns(self, factors: list[float], begin_ns: int, work_ns: float) -> float:
        now_ns, left_ns = float(begin_ns), work_ns
        while True:
            factor, until_ns = 1.0, float("inf")
            for index in range(len(factors)):
                slow, change_ns = self._processes[index].at(now_ns)
                until_ns = min(until_ns, change_ns)
                if slow:
                    factor *= factors[index]
            done_ns = (until_ns - now_ns) / factor
            if done_ns >= left_ns:
                return now_ns + left_ns * factor - begin_ns
            left_ns -= done_ns
            now_ns = until_ns


@final
class Spells:
    """The spells of a whole simulation."""

    def __init__(self, spells: Sequence[Spell], seed: int) -> None:
        self._spells = list(spells)
        self._seed = seed
        self._shared: dict[int, Process] = {}
        self._of: dict[str, Slowness | None] = {}

    def of(self, device: str) -> Slowness | None:
        """Return when a device is slow, the same each time; None if no spell has it."""
        if device not in self._of:
            mine = [place for place, spell in enumerate(self._spells) if matches(device, spell.devices)]
            processes = [self._process(place, device) for place in mine]
            found = Slowness([self._spells[place] for place in mine], processes) if mine else None
            self._of[device] = found
        return self._of[device]

    def _process(self, place: int, device: str) -> Process:
        """Return the process of a spell on a device: one for all of them where they are slow together."""
        spell = self._spells[place]
        if not spell.together:
            return Process(spell, self._generator(place, *device.encode()))
        if place not in self._shared:
            self._shared[place] = Process(spell, self._generator(place))
        return self._shared[place]

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([SEED, self._seed, *key])
