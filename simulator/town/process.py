"""A process of a town: it takes turns, may pause, crashes between two of them, and starts again empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from mainspring.simulator.environment import Agenda
from mainspring.simulator.town.clocks import Clock
from mainspring.simulator.town.ports import TownHub
from mainspring.simulator.town.streams import Network

SOON_NS: Final = 10_000
"""The least time between two turns that nothing else causes."""
LONGEST_NS: Final = 1_000_000_000
SPIN_TURNS: Final = 5_000
"""Turns in a tenth of a second beyond which a process spins: it computes all the time, for nothing."""


class Program(Protocol):
    """A program, from its process's start to its death."""

    def turn(self, now_ns: int) -> int:
        """Take what has come and do what is due; return when the next turn is, on the process's clock."""

    def check(self) -> None:
        """Raise AssertionError if its state is wrong."""


class Process:
    """One process on a host of its own."""

    def __init__(
        self, name: str, host: str, clock: Clock, agenda: Agenda, network: Network,
        start: Callable[[Process], Program],
    ) -> None:  # fmt: skip
        """``start`` makes what it runs, at each start."""
        self.name, self.host, self.clock = name, host, clock
        self.agenda, self.network = agenda, network
        self._start = start
        self.program: Program | None = None
        """Its program; None while it is dead."""
        self.hub = TownHub(network, host, self.poke)
        self.life = 0
        """Number of its starts."""
        self.paused_until_ns = 0
        self._turns, self._since_ns = 0, 0
        self._due_ns = -1
        """Instant of the turn that is planned; negative for none."""

    def now_ns(self) -> int:
        """Return what its clock reads."""
        return self.clock.reads(self.agenda.now_ns)

    def start(self) -> None:
        """Begin to run, empty."""
        if self.program is not None:
            return
        self.life += 1
        self.paused_until_ns = 0
        self.hub = TownHub(self.network, self.host, self.poke)
        self.program = self._start(self)
        self.poke()

    def crash(self, notice_ns: int | None = 0) -> None:
        """Die; the others notice after a time, or never (None)."""
        if self.program is not None:
            self.program = None
            self.hub.close((None, notice_ns))
            self._due_ns = -1

    def pause(self, until_ns: int) -> None:
        """Take no turn until an instant."""
        self.paused_until_ns = max(self.paused_until_ns, until_ns)

    def poke(self) -> None:
        """Take a turn now, or when the pause is over."""
        self._plan(self.agenda.now_ns)

    def wake(self, reads_ns: int) -> None:
        """Take a turn when the clock reads this."""
        self._plan(max(self.clock.true_ns(reads_ns), self.agenda.now_ns + SOON_NS))

    def _plan(self, at_ns: int) -> None:
        if self.program is None:
            return
        at_ns = max(at_ns, self.paused_until_ns)
        if self._due_ns < 0 or at_ns < self._due_ns:
            self._due_ns = at_ns
            self.agenda.at(at_ns, self._turn, at_ns)

    def _turn(self, at_ns: int) -> None:
        if at_ns != self._due_ns or self.program is None:
            return
        self._due_ns = -1
        if at_ns < self.paused_until_ns:
            self._plan(self.paused_until_ns)
            return
        self._turns += 1
        if at_ns - self._since_ns > 100_000_000:
            self._turns, self._since_ns = 0, at_ns
        assert self._turns < SPIN_TURNS, f"{self.name} spins: {SPIN_TURNS} turns within 0.1 s"
        program = self.program
        due_ns = program.turn(self.now_ns())
        if self.program is program:
            self.wake(min(due_ns, self.now_ns() + LONGEST_NS))
