"""A provider in virtual time: starts workers after a while, and stops those that it is not to run.

It is told and says what a live one is and does (`messages.scaling`), over links that take their time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mainspring.messages.events import Event
from mainspring.messages.scaling import Offer, Provide, ProviderLeft, ProviderSaid
from mainspring.simulator.environment import Agenda, Draws
from mainspring.simulator.fleet import Fleet


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of worker that can be had."""

    kind: str
    pages: int
    stem: str = "worker"
    most: int = 64
    workers: tuple[str, ...] = ()
    """Names of the workers that it runs among the cluster's first ones."""
    start_ns: int = 1_000_000_000
    """Time from the decision to the worker's hello."""
    failure_probability: float = 0.0
    """Probability that a start fails; it is tried again after as long."""


class SimulatedProvider:
    """Runs what it is told to."""

    def __init__(
        self,
        name: str,
        pools: Sequence[Pool],
        fleet: Fleet,
        agenda: Agenda,
        draws: Draws,
        tell: Callable[[Event], None],
        delay_ns: int,
    ) -> None:
        """``delay_ns`` is what a message takes either way; ``tell`` gives the controller an event now."""
        self.name = name
        self.connected = False
        self.stopped_busy = 0
        """Workers that were to be stopped while something ran on them, which no scheduler may have asked."""
        self._pools = {pool.kind: pool for pool in pools}
        self._runs = {pool.kind: list(pool.workers) for pool in pools}
        self._faults = {pool.kind: "" for pool in pools}
        self._starts: dict[str, int] = {}
        """Number of starts of each worker: the rest of a start that was called off is not the next one's."""
        self._fleet = fleet
        self._agenda = agenda
        self._draws = draws
        self._tell = tell
        self._delay_ns = delay_ns

    def connect(self) -> None:
        """Greet the controller, again after `disconnect`."""
        self.connected = True
        self._tell(ProviderSaid(self.name, self._offers(), greets=True))

    def disconnect(self) -> None:
        """Be lost to the controller; workers live on."""
        if self.connected:
            self.connected = False
            self._tell(ProviderLeft(self.name, "silent"))

    def send(self, now_ns: int, command: Provide) -> None:
        """Take a command that leaves the controller at an instant."""
        self._agenda.at(now_ns + self._delay_ns, self._provide, command)

    def _provide(self, command: Provide) -> None:
        if not self.connected:
            return
        runs, pool = self._runs[command.kind], self._pools[command.kind]
        for name in [name for name in runs if name not in command.workers]:
            runs.remove(name)
            self._stop(name)
        for name in command.workers:
            if name not in runs:
                runs.append(name)
                self._begin(pool, name)
        self._say()

    def _begin(self, pool: Pool, name: str) -> None:
        number = self._starts[name] = self._starts.get(name, 0) + 1
        self._agenda.at(self._agenda.now_ns + pool.start_ns, self._start, pool, name, number)

    def _start(self, pool: Pool, name: str, number: int) -> None:
        if name not in self._runs[pool.kind] or number != self._starts[name]:
            return
        if self._draws.uniform() < pool.failure_probability:
            self._faults[pool.kind] = f"{name} died as it started"
            self._begin(pool, name)
        else:
            self._faults[pool.kind] = ""
            self._fleet.join(name, pool.kind, pool.pages, None)
        self._say()

    def _stop(self, name: str) -> None:
        worker = self._fleet.workers.get(name)
        if worker is not None:
            self.stopped_busy += worker.alive and not worker.core.quiet
            self._fleet.leave(name)

    def _say(self) -> None:
        self._agenda.at(self._agenda.now_ns + self._delay_ns, self._said, self._offers())

    def _said(self, offers: tuple[Offer, ...]) -> None:
        if self.connected:
            self._tell(ProviderSaid(self.name, offers))

    def _offers(self) -> tuple[Offer, ...]:
        return tuple(
            [
                Offer(pool.kind, pool.stem, pool.most, tuple(self._runs[kind]), self._faults[kind])
                for kind, pool in self._pools.items()
            ]
        )
