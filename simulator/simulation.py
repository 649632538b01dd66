"""A whole cluster in virtual time: clients, gateway, controller, workers, and the network between them.

The scheduler and the workers' cores are the unchanged ones; so is the gateway's with ``gateway_core``, which
else has a quick stand-in. What happens most often, an arrival at the gateway and then at the controller,
needs no entry in the agenda: both are rows in the order of time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from mainspring.messages.actions import Command, DropWorker, Infer, Load, Note, Reject, Result, Sent, Unload
from mainspring.messages.codes import Reason
from mainspring.messages.events import Event, ModelAdded, ModelRemoved, WorkerLeft
from mainspring.messages.model import ModelSpec
from mainspring.messages.queries import Chosen
from mainspring.messages.scaling import Provide
from mainspring.messages.targets import each_build
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.controller import Record, SimulatedController
from mainspring.simulator.costs import CostSpec, ProcessCosts
from mainspring.simulator.device import Preloaded, SimulatedWorker
from mainspring.simulator.environment import NEVER_NS, Agenda, Draws, Link
from mainspring.simulator.fleet import Fleet, Peer
from mainspring.simulator.gateway import Flight, SimulatedGateway
from mainspring.simulator.gateway_core import CoreGateway
from mainspring.simulator.graph_groups import GraphGroup
from mainspring.simulator.graphs import GraphGateway
from mainspring.simulator.outcomes import Ledger, Outcome
from mainspring.simulator.provider import Pool, SimulatedProvider
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival
from mainspring.traces.records import Records
from mainspring.traces.returning import again_ns
from mainspring.traces.source import Source

__all__ = ["Outcome", "Simulation"]

_INFER: Final = Infer
_LOAD: Final = Load
_UNLOAD: Final = Unload
_REJECT: Final = Reject
_RESULT: Final = Result


class Simulation:
    """One cluster from its start on."""

    def __init__(
        self,
        config: SchedulerConfig,
        models: Iterable[ModelSpec],
        workers: Iterable[tuple[str, str, int]],
        *,
        seed: int = 0,
        faults: Faults | None = None,
        processes: ProcessCosts | None = None,
        cost: CostSpec | None = None,
        preloaded: Mapping[str, Preloaded] | None = None,
        source: Source | None = None,
        records: Records | None = None,
        records_from_ns: int = 0,
        keep: bool | None = None,
        record: Record | None = None,
        validate_every: int = 0,
        gateway_core: bool = False,
        gateway: SimulatedGateway | None = None,
        graphs: Sequence[GraphGroup] = (),
    ) -> None:
        """Set a cluster up.

        ``workers`` are (name, device kind, pages); ``preloaded`` says by name what a worker holds at first.
        ``source`` is played; requests from ``records_from_ns`` on are entered in ``records``; `outcomes` and
        `commands` are kept by ``keep``, by default without ``records``. ``record`` gets the events. With
        ``validate_every`` all invariants are checked after that many turns of the controller. ``gateway``:
        one that several controllers share, with an agenda of this one's; ``graphs`` to play."""
        self.faults = faults or Faults()
        processes = processes or ProcessCosts()
        self._keep_commands = keep = records is None if keep is None else keep
        seeds = np.random.SeedSequence(seed)
        self.scheduler, self.commands = Scheduler(config), list[tuple[int, Command]]()
        self._source, self._source_due_ns = source, NEVER_NS
        self._graphs, self._seed = graphs, seed
        self._next_id = self._returning = 0
        self._input_bytes: dict[str, int] = {}
        self._input_ns = round(processes.worker_input_us * 1e3)
        self._agenda = agenda = Agenda() if gateway is None else gateway.agenda
        self._draws = draws = Draws(np.random.default_rng(seeds))
        self._to_gateway = Link(self.faults, draws)
        self.ledger = Ledger(records, records_from_ns, keep, source, self._comes_back)
        self.gateway = gateway or self._make_gateway(gateway_core, processes, Link(self.faults, draws))
        checks = (self.validate if validate_every else None, validate_every)
        self.controller = SimulatedController(self.scheduler, self._send, cost, record, *checks)
        self.controller.pieces = self.gateway.pieces
        children = seeds.spawn(1)[0]
        self.fleet = Fleet(self.faults, processes, agenda, draws, children, self._tell, self._outputs)
        self.provider: SimulatedProvider | None = None
        self._begin(models, workers, preloaded)

    def _make_gateway(self, core: bool, processes: ProcessCosts, to_controller: Link) -> SimulatedGateway:
        """Return a gateway around the live gateway's core, or its stand-in, which is quicker."""
        if self._graphs:
            own = self.faults, processes, self._agenda, to_controller, self.ledger
            return GraphGateway(*own, self._graphs, self._seed)
        if core or self.faults.worker_loss_notices:
            return CoreGateway(self.faults, processes, self._agenda, to_controller, self.ledger)
        return SimulatedGateway(self.faults, processes, self._agenda, to_controller, self.ledger)

    def _begin(
        self,
        models: Iterable[ModelSpec],
        workers: Iterable[tuple[str, str, int]],
        preloaded: Mapping[str, Preloaded] | None,
    ) -> None:
        """Add models and workers at instant 0."""
        for spec in models:
            self.fleet.opened.update([build.executable for build in each_build(spec)])
            self._tell(ModelAdded(spec))
        for name, kind, pages in workers:
            self.fleet.join(name, kind, pages, preloaded)
        if self._source is not None:
            self._look_at_source()

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return self._agenda.now_ns

    @property
    def workers(self) -> dict[str, SimulatedWorker]:
        """The workers by name."""
        return self.fleet.workers

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """Return the outcome of each request, by id; empty unless they are kept."""
        return self.ledger.outcomes

    def request(
        self,
        when_ns: int,
        request_id: int,
        model: str,
        rows: int = 1,
        slo_ns: int | None = None,
        sizes: tuple[int, ...] = (),
        priority: int = 0,
    ) -> None:
        """Let a request arrive at the gateway at an instant; ``sizes`` of the model's symbols."""
        arrival = Arrival(when_ns, model, rows, slo_ns, sizes=sizes, priority=priority)
        self._agenda.at(when_ns, self._submit, request_id, arrival)

    def cancel(self, when_ns: int, request_id: int) -> None:
        """Let a client give a request up at an instant."""
        self._agenda.at(when_ns, self._cancel, request_id)

    def join(self, when_ns: int, name: str, kind: str, pages: int, held: Preloaded | None = None) -> None:
        """Let a worker join at an instant."""
        self._agenda.at(when_ns, self.fleet.join, name, kind, pages, None if held is None else {name: held})

    def provide(self, pools: Sequence[Pool], name: str = "provider") -> SimulatedProvider:
        """Have a provider that starts and stops workers, which is connected from now on; return it."""
        provider = SimulatedProvider(
            name, pools, self.fleet, self._agenda, self._draws, self._tell, self.faults.delay_ns
        )
        self.provider = provider
        provider.connect()
        return provider

    def at(self, when_ns: int, function: Callable[[], None]) -> None:
        """Have anything else done at an instant."""
        self._agenda.at(when_ns, function)

    def feed(self, when_ns: int, event: Event) -> None:
        """Let any other event reach the controller at an instant."""
        self._agenda.at(when_ns, self._tell, event)

    def run(self, until_ns: int) -> None:
        """Let virtual time pass."""
        gateway, controller = self.gateway, self.controller
        agenda, ledger = self._agenda, self.ledger
        arriving, entries = gateway.arriving, agenda.entries
        while True:
            when_ns = entries[0][0] if entries else NEVER_NS
            what = 0
            if arriving and arriving[0][0] <= when_ns:
                when_ns, what = arriving[0][0], 1
            if self._source_due_ns < when_ns:
                when_ns, what = self._source_due_ns, 2
            if controller.due_ns < when_ns:
                when_ns, what = controller.due_ns, 3
            if gateway.sweep_ns < when_ns:
                when_ns, what = gateway.sweep_ns, 4
            if when_ns > until_ns:
                break
            agenda.now_ns = when_ns
            if what == 1:
                controller.receive(when_ns, arriving.popleft()[1])
            elif what == 2:
                self._take_from_source()
            elif what == 0:
                _, _, function, arguments = heapq.heappop(entries)
                function(*arguments)
                if ledger.completed:
                    # A closed loop may have its next request due earlier than before.
                    ledger.completed = False
                    self._look_at_source()
            elif what == 3:
                controller.turn(when_ns)
            else:
                gateway.sweep(when_ns)
        agenda.now_ns = max(agenda.now_ns, until_ns)

    def finished(self) -> bool:
        """Return whether the source is done and every request has its answer."""
        source = self._source
        done = source is None or (self._source_due_ns == NEVER_NS and source.done(self._agenda.now_ns))
        return done and not self.gateway.flights and not self._returning

    def validate(self) -> None:
        """Check every invariant of the scheduler and of the cores of gateway and workers."""
        self.scheduler.validate()
        self.gateway.validate()
        for worker in self.workers.values():
            if worker.alive:
                worker.core.validate()

    # --- clients ---

    def _look_at_source(self) -> None:
        assert self._source is not None
        due_ns = self._source.next_ns()
        self._source_due_ns = NEVER_NS if due_ns is None else due_ns + self.faults.client_delay_ns

    def _take_from_source(self) -> None:
        """Let the source's next request arrive at the gateway."""
        assert self._source is not None
        arrival = self._source.take()
        self._look_at_source()
        ledger = self.ledger
        key = ledger.key(arrival.time_ns, arrival.model, arrival.rows, arrival.slo_ns)
        self._next_id += 1
        flight = self.gateway.submit(self._agenda.now_ns, self._next_id, arrival, key)
        flight.retry_ns = arrival.retry_ns
        ledger.submitted(flight)
        if arrival.tenant:
            ledger.offered(flight)

    def _comes_back(self, now_ns: int, flight: Flight, reason: Reason) -> bool:
        """Have a refused client ask once more, if its deadline allows; return whether it does.

        `_returning` counts those that wait for that."""
        request = flight.request
        at_ns = again_ns(now_ns, flight.retry_ns, request.deadline_ns, reason)
        if at_ns is None or request.deadline_ns is None:
            return False
        left_ns = request.deadline_ns - at_ns
        arrival = Arrival(
            *(at_ns, request.model, request.rows, left_ns, flight.client, request.sizes),
            priority=request.priority,
            tenant=request.tenant,
        )
        self._returning += 1
        self._agenda.at(at_ns, self._ask_again, arrival, flight.key)
        return True

    def _ask_again(self, arrival: Arrival, key: int) -> None:
        self._returning -= 1
        self._next_id += 1
        self.ledger.submitted(self.gateway.submit(self._agenda.now_ns, self._next_id, arrival, key))

    def _submit(self, request_id: int, arrival: Arrival) -> None:
        self.ledger.submitted(self.gateway.submit(self._agenda.now_ns, request_id, arrival))

    def _cancel(self, request_id: int) -> None:
        self.gateway.cancel(self._agenda.now_ns, request_id)

    # --- the controller's commands ---

    def _tell(self, event: Event) -> None:
        """Give the controller an event."""
        if type(event) is _RESULT:
            pass
        elif isinstance(event, ModelAdded):
            self._input_bytes[event.model.name] = event.model.input_row_bytes
            self.gateway.model_up(event.model)
        elif isinstance(event, ModelRemoved):
            self.gateway.model_down(event.name)
        elif isinstance(event, WorkerLeft):
            self._worker_lost(event.worker)
        self.controller.receive(self._agenda.now_ns, event)

    def _send(self, now_ns: int, command: Command) -> None:
        """Carry a command out that leaves the controller at an instant."""
        if self._keep_commands:
            self.commands.append((now_ns, command))
        # To find that a command is not of a message's class takes longer than to find that it is.
        kind = type(command)
        if kind is _INFER or kind is _LOAD or kind is _UNLOAD:
            action = cast("Infer | Load | Unload", command)
            peer = self.fleet.peers[action.worker]
            self.fleet.send(now_ns, peer, action)
            if kind is _INFER:
                self._agenda.at(self._to_gateway.arrival_ns(now_ns), self._dispatched, peer, action)
        elif kind is _REJECT:
            self._agenda.at(self._to_gateway.arrival_ns(now_ns), self._rejected, command)
        elif not isinstance(command, Note):
            self._send_other(now_ns, command)

    def _send_other(self, now_ns: int, command: Sent) -> None:
        """Carry a command out that comes seldom."""
        if isinstance(command, Provide):
            if self.provider is not None:
                self.provider.send(now_ns, command)
            return
        assert not isinstance(command, Reject)
        if isinstance(command, Chosen):
            return
        peer = self.fleet.peers[command.worker]
        if not isinstance(command, DropWorker):
            self.fleet.send(now_ns, peer, command)
            return
        if command.to:
            self.fleet.leave(command.worker)
        else:
            self.fleet.drop(now_ns, peer)
        self._worker_lost(command.worker)

    def _rejected(self, command: Reject) -> None:
        self.gateway.rejected(self._agenda.now_ns, command)

    def _dispatched(self, peer: Peer, action: Infer) -> None:
        """Push a batch's inputs from the gateway to the worker, one request's behind the other's."""
        faults = self.faults
        pushed_ns = self.gateway.dispatched(self._agenda.now_ns, action)
        request_ids = action.request_ids
        if faults.input_loss_probability > 0:
            draw, chance = self._draws.uniform, faults.input_loss_probability
            request_ids = tuple([each for each in request_ids if draw() >= chance])
        if faults.input_ns_per_byte > 0:
            size = sum(action.rows) * self._input_bytes[action.model]
            free_ns = max(pushed_ns, peer.worker.link_free_ns)
            pushed_ns = peer.worker.link_free_ns = free_ns + round(size * faults.input_ns_per_byte)
        at_ns = peer.from_gateway.arrival_ns(pushed_ns) + self._input_ns
        self._agenda.at(at_ns, self._inputs, peer.worker, action.action_id, request_ids)

    def _inputs(self, worker: SimulatedWorker, action_id: int, request_ids: tuple[int, ...]) -> None:
        worker.receive_inputs(self._agenda.now_ns, action_id, request_ids)

    def _worker_lost(self, name: str) -> None:
        """Let the controller tell the gateway that a worker is gone, if that is simulated."""
        if self.faults.worker_loss_notices:
            at_ns = self._to_gateway.arrival_ns(self._agenda.now_ns)
            self._agenda.at(at_ns, self._gateway_loses, name)

    def _gateway_loses(self, name: str) -> None:
        self.gateway.worker_lost(self._agenda.now_ns, name)

    def _outputs(self, action: Infer, execute_ns: int) -> None:
        self.gateway.outputs(self._agenda.now_ns, action, execute_ns)
