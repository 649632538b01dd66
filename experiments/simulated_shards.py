"""Several controllers in virtual time behind one gateway: its unchanged core, and the unchanged map.

Each shard is a `Simulation` of its own models and workers without clients. All of them share one gateway,
which keeps the requests and routes them as live (`gateway.core.told`). They take turns of a link's delay,
within which nothing that one side sends can arrive at another; so the order of turns decides nothing.

A controller may die with all that it knows. The gateway notices after a while, keeps what can wait, and
submits it again to the controller that comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.effects import (
    Accepted,
    Answer,
    Arrive,
    Connection,
    Frame,
    Push,
    Refuse,
    Withdraw,
)
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.actions import Infer, Reject
from mainspring.messages.events import RequestArrived, RequestCancelled
from mainspring.messages.ids import gateway_number, shard_of
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Dispatch, Output, Rejected
from mainspring.messages.sharding import ShardMap
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.costs import CostSpec, ProcessCosts
from mainspring.simulator.device import Preloaded
from mainspring.simulator.environment import NEVER_NS, Agenda, Draws, Link
from mainspring.simulator.gateway import Flight, SimulatedGateway
from mainspring.simulator.outcomes import Ledger
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival
from mainspring.traces.records import Records
from mainspring.traces.source import Source

_NO_LIMIT: Final = 1 << 60
_CLIENT: Final = Connection("simulated", b"")


class Part(msgspec.Struct, frozen=True):
    """One shard's cluster."""

    models: tuple[ModelSpec, ...]
    workers: tuple[tuple[str, str, int], ...]
    """(name, kind, pages)"""
    preloaded: dict[str, Preloaded]


class Death(msgspec.Struct, frozen=True):
    """A controller that dies and comes back with nothing but the models and workers of its start."""

    shard: int
    at_ns: int
    down_ns: int
    noticed_ns: int = 1_000_000_000
    """Time from its death until the gateway notices."""


class _Side(SimulatedGateway):
    """The gateway as one shard's controller and workers see it."""

    def __init__(self, shard: int, shared: SharedGateway, faults: Faults, agenda: Agenda, link: Link) -> None:
        super().__init__(faults, ProcessCosts(), agenda, link, shared.ledger)
        self._shared = shared
        self._shard = shard
        self._link = link

    def send(self, now_ns: int, event: RequestArrived | RequestCancelled) -> None:
        self.arriving.append((self._link.arrival_ns(now_ns), event))

    def model_up(self, spec: ModelSpec) -> None:
        self._shared.model_up(self._shard, spec)

    def dispatched(self, now_ns: int, action: Infer) -> int:
        self._shared.dispatched(now_ns, action)
        return now_ns

    def outputs(self, now_ns: int, action: Infer, execute_ns: int) -> None:
        self._shared.outputs(now_ns, action, execute_ns)

    def rejected(self, now_ns: int, command: Reject) -> None:
        self._shared.rejected(now_ns, command)

    def worker_lost(self, now_ns: int, worker: str) -> None:
        self._shared.worker_lost(now_ns, worker)


class SharedGateway:
    """The live gateway's core and what controllers told it; request ids are the core's own."""

    def __init__(self, shard_map: ShardMap, faults: Faults, ledger: Ledger) -> None:
        self.ledger = ledger
        self.told = Told(Catalog(), shard_map.addresses)
        self.told.take_map(shard_map)
        config = GatewayConfig(
            max_in_flight=_NO_LIMIT, max_in_flight_per_connection=_NO_LIMIT, max_in_flight_bytes=_NO_LIMIT
        )
        self.core = GatewayCore(config, self.told.catalog.signatures, shards=self.told.shards)
        self.sides: list[_Side | None] = [None] * len(shard_map.shards)
        """The gateway as each shard sees it; None while the shard's controller is down."""
        self.flights: dict[int, Flight] = {}
        """Requests without an answer, by key."""
        self.now_ns = 0
        self._client_delay_ns = faults.client_delay_ns
        self._next_key = 0
        self._welcomes = [0] * len(shard_map.shards)

    def welcomed(self, shard: int, side: _Side) -> None:
        """Begin a session with a controller."""
        self.sides[shard] = side
        self._welcomes[shard] += 1
        self.core.controller_welcomed(self.now_ns, gateway_number(shard, self._welcomes[shard]))
        self._perform(self.now_ns)

    def lost(self, shard: int) -> None:
        """Notice that a controller is gone."""
        self.core.controller_lost(self.now_ns, shard)
        self._perform(self.now_ns)

    def model_up(self, shard: int, spec: ModelSpec) -> None:
        """Take requests for a model."""
        for name in self.told.model_up(shard, spec):
            self.core.model_moved(self.now_ns, name)

    def submit(self, now_ns: int, arrival: Arrival) -> None:
        """Take in a request that comes from its client now."""
        ledger, self.now_ns = self.ledger, now_ns
        signature = self.told.catalog.resolve(arrival.model)
        accepted = Accepted(
            arrival.model,
            arrival.rows,
            arrival.slo_ns,
            tuple(range(len(signature.inputs))),
            signature.every_output,
            signature,
            sizes=arrival.sizes,
        )
        key, self._next_key = self._next_key, self._next_key + 1
        record = ledger.key(arrival.time_ns, arrival.model, arrival.rows, arrival.slo_ns)
        deadline_ns = None if arrival.slo_ns is None else now_ns + arrival.slo_ns
        request = RequestArrived(key, arrival.model, arrival.rows, deadline_ns, sizes=arrival.sizes)
        self.flights[key] = flight = Flight(request, now_ns, NEVER_NS, record, arrival.client)
        ledger.submitted(flight)
        frames = _frames(signature.at(arrival.sizes).input_row_bytes, arrival.rows)
        self.core.submit(now_ns, _CLIENT, key, accepted, frames)
        self._perform(now_ns)

    def dispatched(self, now_ns: int, action: Infer) -> None:
        """Give the core a dispatch."""
        message = Dispatch(
            action.action_id, action.worker, action.request_ids, action.cold, action.batch_size
        )
        self.core.dispatched(now_ns, message)
        self._perform(now_ns)

    def outputs(self, now_ns: int, action: Infer, execute_ns: int) -> None:
        """Give the core a batch's outputs, one request after the other."""
        signature = self.told.catalog.resolve(action.model)
        for index, (request_id, rows) in enumerate(zip(action.request_ids, action.rows, strict=True)):
            row_bytes = signature.at(action.sizes_of(index)).output_row_bytes
            message = Output(action.action_id, request_id, execute_ns)
            self.core.outputs(now_ns, message, tuple(_frames(row_bytes, rows)))
        self._perform(now_ns)

    def rejected(self, now_ns: int, command: Reject) -> None:
        """Give the core a rejection."""
        self.core.rejected(now_ns, Rejected(command.request_id, command.reason, command.detail))
        self._perform(now_ns)

    def worker_lost(self, now_ns: int, worker: str) -> None:
        """Give the core the message that a worker is gone."""
        self.core.worker_lost(now_ns, worker)
        self._perform(now_ns)

    def tick(self, now_ns: int) -> None:
        """Let the core answer what has run out of time."""
        self.now_ns = now_ns
        wakeup_ns = self.core.next_wakeup_ns()
        if wakeup_ns is not None and wakeup_ns <= now_ns:
            self.core.tick(now_ns)
            self._perform(now_ns)

    def _perform(self, now_ns: int) -> None:
        for effect in self.core.drain():
            if isinstance(effect, Answer):
                flight = self.flights.pop(effect.key)
                self.ledger.outputs(now_ns + self._client_delay_ns, flight, effect.timing)
            elif isinstance(effect, Refuse):
                flight = self.flights.pop(effect.key)
                self.ledger.error(now_ns + self._client_delay_ns, flight, effect.reason)
            elif isinstance(effect, Arrive):
                event = RequestArrived(
                    effect.request_id, effect.model, effect.rows, effect.deadline_ns, sizes=effect.sizes
                )
                self._send(now_ns, effect.request_id, event)
            elif isinstance(effect, Withdraw):
                self._send(now_ns, effect.request_id, RequestCancelled(effect.request_id))
            else:
                assert isinstance(effect, Push), f"{effect} is not an effect of a gateway's core"

    def _send(self, now_ns: int, request_id: int, event: RequestArrived | RequestCancelled) -> None:
        side = self.sides[shard_of(request_id)]
        if side is not None:
            side.send(now_ns, event)


def _frames(row_bytes: tuple[int, ...], rows: int) -> list[Frame]:
    return [range(rows * size) for size in row_bytes]


class ShardedSimulation:
    """A cluster with several controllers, from its start on."""

    def __init__(
        self,
        config: SchedulerConfig,
        shard_map: ShardMap,
        parts: Sequence[Part],
        *,
        seed: int = 0,
        faults: Faults | None = None,
        cost: CostSpec | None = None,
        source: Source,
        records: Records,
        records_from_ns: int = 0,
        deaths: Sequence[Death] = (),
    ) -> None:
        """``parts`` by shard; ``source`` is played, and its requests from ``records_from_ns`` on are entered
        in ``records``."""
        self.now_ns = 0
        self.ledger = Ledger(records, records_from_ns, False, source)
        self._config, self._parts, self._cost = config, parts, cost
        self._faults = faults or Faults()
        self._slice_ns = self._faults.delay_ns
        self._seed = seed
        self._source = source
        self.gateway = SharedGateway(shard_map, self._faults, self.ledger)
        self.shards: list[Simulation | None] = [None] * len(parts)
        """Simulation of each shard; None while its controller is down."""
        self._due = sorted(
            [(death.at_ns, 0, death) for death in deaths]
            + [(death.at_ns + min(death.noticed_ns, death.down_ns), 1, death) for death in deaths]
            + [(death.at_ns + death.down_ns, 2, death) for death in deaths],
            key=lambda each: (each[0], each[1]),
        )
        for shard in range(len(parts)):
            self._begin(shard)

    def run(self, until_ns: int) -> None:
        """Let virtual time pass, in turns of a link's delay."""
        while self.now_ns < until_ns:
            now_ns = self.now_ns = min(until_ns, self.now_ns + self._slice_ns)
            while self._due and self._due[0][0] <= now_ns:
                _, what, death = self._due.pop(0)
                self._change(what, death.shard)
            self._take_from_source(now_ns)
            for shard in self.shards:
                if shard is not None:
                    shard.run(now_ns)
            self.gateway.tick(now_ns)

    def finished(self) -> bool:
        """Return whether the source is done and every request has its answer."""
        return self._source.next_ns() is None and not self.gateway.flights

    def validate(self) -> None:
        """Check every invariant of all shards and of the gateway's core."""
        self.gateway.core.validate()
        for shard in self.shards:
            if shard is not None:
                shard.scheduler.validate()

    def _begin(self, shard: int) -> None:
        part = self._parts[shard]
        # Each shard draws from its own numbers: what happens in one changes nothing in another.
        seed = int(np.random.SeedSequence((self._seed, shard)).generate_state(1)[0])
        agenda = Agenda()
        agenda.now_ns = self.now_ns
        link = Link(self._faults, Draws(np.random.default_rng((seed, 1))))
        side = _Side(shard, self.gateway, self._faults, agenda, link)
        self.gateway.now_ns = self.now_ns
        self.shards[shard] = Simulation(
            self._config,
            part.models,
            part.workers,
            seed=seed,
            faults=self._faults,
            cost=self._cost,
            preloaded=part.preloaded,
            keep=False,
            gateway=side,
        )
        self.gateway.welcomed(shard, side)

    def _change(self, what: int, shard: int) -> None:
        self.gateway.now_ns = self.now_ns
        if what == 0:
            self.shards[shard] = None
            self.gateway.sides[shard] = None
        elif what == 1:
            self.gateway.lost(shard)
        else:
            self._begin(shard)

    def _take_from_source(self, now_ns: int) -> None:
        delay_ns = self._faults.client_delay_ns
        while (due_ns := self._source.next_ns()) is not None and due_ns + delay_ns <= now_ns:
            self.gateway.submit(due_ns + delay_ns, self._source.take())


def divided(
    shard_map: ShardMap,
    models: Sequence[ModelSpec],
    workers: Sequence[Sequence[tuple[str, str, int]]],
    held: Mapping[int, dict[str, Preloaded]],
) -> list[Part]:
    """Return the parts of a cluster: models by the map, with each shard's workers and what these hold."""
    found: list[list[ModelSpec]] = [[] for _ in shard_map.shards]
    for model in models:
        found[shard_map.place(model.name)].append(model)
    return [
        Part(tuple(found[number]), tuple(workers[number]), held.get(number, {}))
        for number in range(len(shard_map.shards))
    ]
