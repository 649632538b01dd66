"""The workers of a simulation, their links, and their sessions with the controller.

A session is as live: what belongs to one that is over is dropped on both sides, and a worker that was given
up forgets what it was to do before it joins again with what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mainspring.messages.actions import Action, Infer, Result
from mainspring.messages.events import Event, WorkerLeft
from mainspring.simulator.costs import ProcessCosts
from mainspring.simulator.device import Preloaded, SimulatedWorker
from mainspring.simulator.environment import Agenda, Draws, Link
from mainspring.simulator.slowness import Spells
from mainspring.simulator.spec import Faults

QUIET_RETRY_NS = 1_000_000
"""Time between two looks of a worker that was given up whether its running jobs have ended."""


class Peer:
    """A worker with its links."""

    __slots__ = ("from_controller", "from_gateway", "session", "to_controller", "to_gateway", "worker")

    def __init__(self, worker: SimulatedWorker, faults: Faults, draws: Draws) -> None:
        self.worker = worker
        self.session = -1
        """The session that the controller has with it; -1 while it has none."""
        self.from_controller = Link(faults, draws)
        self.to_controller = Link(faults, draws)
        self.from_gateway = Link(faults, draws)
        self.to_gateway = Link(faults, draws)


class Fleet:
    """Starts workers, lets them die and come back, and carries what they are told and tell."""

    def __init__(
        self,
        faults: Faults,
        costs: ProcessCosts,
        agenda: Agenda,
        draws: Draws,
        seeds: np.random.SeedSequence,
        tell: Callable[[Event], None],
        outputs: Callable[[Infer, int], None],
    ) -> None:
        """``tell`` gives the controller an event now; ``outputs`` gives the gateway a batch's outputs now,
        with EXEC's duration."""
        self.workers: dict[str, SimulatedWorker] = {}
        self.peers: dict[str, Peer] = {}
        self._faults = faults
        self._costs = costs
        self._agenda = agenda
        self._draws = draws
        self._seeds = seeds
        self._spells = Spells(faults.spells, int(seeds.generate_state(1)[0]))
        self._tell = tell
        self._take_outputs = outputs
        self.opened: set[str] = set()
        """The executables that every worker opens when it starts."""
        self._left: set[str] = set()
        """Workers that were stopped and do not come back by themselves."""
        self._sessions = 0
        for when_ns, name, down_ns in faults.crashes:
            agenda.at(when_ns, self._crash, name, down_ns)
        for when_ns, name, notice_ns in faults.session_losses:
            agenda.at(when_ns, self._lose_session, name, notice_ns)

    def join(self, name: str, kind: str, pages: int, preloaded: Mapping[str, Preloaded] | None) -> None:
        """Start a worker's process, which joins at once."""
        self._left.discard(name)
        worker = SimulatedWorker(
            name,
            kind,
            pages,
            faults=self._faults,
            costs=self._costs,
            rng=np.random.default_rng(self._seeds.spawn(1)[0]),
            agenda=self._agenda,
            results=self._results,
            outputs=self._outputs,
            preloaded=None if preloaded is None else preloaded.get(name),
            opened=self.opened,
            slowness=self._spells.of(name),
        )
        self.workers[name] = worker
        self.peers[name] = Peer(worker, self._faults, self._draws)
        self._greet(worker)

    def leave(self, name: str) -> None:
        """Stop a worker's process for good, which the controller notices at once."""
        self._left.add(name)
        peer = self.peers[name]
        if peer.worker.alive:
            peer.worker.crash()
            self._give_up(peer, "it left")

    def send(self, now_ns: int, peer: Peer, action: Action) -> None:
        """Send a worker an action that leaves the controller at an instant."""
        at_ns = peer.from_controller.arrival_ns(now_ns)
        self._agenda.at(at_ns, self._deliver, peer.worker, action, peer.session)

    def drop(self, now_ns: int, peer: Peer) -> None:
        """Let a worker know that the scheduler has dropped it."""
        peer.session = -1
        self._agenda.at(now_ns + self._faults.delay_ns, self._abandon, peer.worker)

    # --- messages ---

    def _deliver(self, worker: SimulatedWorker, action: Action, session: int) -> None:
        worker.receive(self._agenda.now_ns, action, session)

    def _results(self, worker: SimulatedWorker, sent_ns: int, result: Result) -> None:
        at_ns = self.peers[worker.name].to_controller.arrival_ns(sent_ns)
        self._agenda.at(at_ns, self._result, worker.name, result, worker.session)

    def _result(self, name: str, result: Result, session: int) -> None:
        """Hand a result over, unless it belongs to a session that is over."""
        if self.peers[name].session == session:
            self._tell(result)

    def _outputs(self, worker: SimulatedWorker, sent_ns: int, action: Infer, execute_ns: int) -> None:
        chance = self._faults.output_loss_probability
        if chance > 0 and self._draws.uniform() < chance:
            return
        at_ns = self.peers[worker.name].to_gateway.arrival_ns(sent_ns)
        self._agenda.at(at_ns, self._take_outputs, action, execute_ns)

    # --- coming and going ---

    def _greet(self, worker: SimulatedWorker) -> None:
        """Let a worker join with what it holds, once nothing runs on it."""
        if not worker.alive or self.workers[worker.name] is not worker:
            return
        if not worker.core.quiet:
            self._agenda.at(self._agenda.now_ns + QUIET_RETRY_NS, self._greet, worker)
            return
        self._sessions += 1
        worker.session = self.peers[worker.name].session = self._sessions
        self._tell(worker.joined())

    def _crash(self, name: str, down_ns: int) -> None:
        peer, now_ns = self.peers[name], self._agenda.now_ns
        worker = peer.worker
        if worker.alive:
            worker.crash()
            self._agenda.at(now_ns + min(down_ns, self._faults.detection_ns), self._give_up, peer, "crashed")
            self._agenda.at(now_ns + down_ns, self._return, worker)

    def _return(self, worker: SimulatedWorker) -> None:
        """Start a worker's process again, unless it was stopped, or started, meanwhile."""
        if worker.name not in self._left and self.workers[worker.name] is worker:
            self.join(worker.name, worker.kind, worker.pages, None)

    def _give_up(self, peer: Peer, reason: str) -> None:
        """Let the controller give a worker up, if it has not yet."""
        if peer.session >= 0:
            peer.session = -1
            self._tell(WorkerLeft(peer.worker.name, reason))

    def _lose_session(self, name: str, notice_ns: int) -> None:
        peer = self.peers[name]
        if peer.session >= 0 and peer.worker.alive:
            self._give_up(peer, "silent")
            self._agenda.at(self._agenda.now_ns + notice_ns, self._abandon, peer.worker)

    def _abandon(self, worker: SimulatedWorker) -> None:
        if worker.alive:
            worker.abandon()
            self._greet(worker)
