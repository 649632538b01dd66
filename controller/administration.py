"""Requests to change or see the cluster: from clients, through their gateways, and from operators.

Each is granted and carried out, or refused with what would be right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import Dropped, Outbox
from mainspring.controller.registry import (
    MAX_DURATION_NS,
    MAX_NAME_CHARACTERS,
    MAX_QUEUE_SIZE,
    ModelRegistry,
    Refusal,
)
from mainspring.controller.sessions import GatewaySession, Session, SessionTable
from mainspring.controller.shards import Moves, Shards
from mainspring.messages.codes import Reason
from mainspring.messages.durations import in_milliseconds
from mainspring.messages.events import OperatorAsked
from mainspring.messages.graphs import GraphSpec, graph_fault
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.operating import (
    AssignModel,
    LoadOn,
    MoveWorker,
    Operate,
    Operated,
    OperatorCommand,
    SetDefaultSlo,
    SetGoodputWeight,
    SetGraph,
    SetMaxQueue,
    described,
    subject,
    weight_fault,
)
from mainspring.messages.peers import AdminReply, AdminRequest
from mainspring.messages.served import ServedModel
from mainspring.messages.status import ClusterStatus, WorkerStatus

CONFIGURATION = "configuration"
"""Name under which a command is logged that the configuration asks for."""
MAX_GRAPHS = 4096
REPOSITORY = "repository"
"""Name under which a command is logged that a model's configuration in a repository asks for."""
_LOGGER = logging.getLogger(__name__)
STATUS_AGE_NS = 50_000_000
"""A status serves all who ask within this time: making one passes over every model."""
STATUS_COST_AGE = 20
"""A status also serves for this many times as long as making it took, so that people who watch a large
cluster get at most a twentieth of the controller's time."""


class Administration:
    """Answers an `AdminRequest` of a gateway and an `Operate` of a console.

    The memory keeps what was granted for the next start; an operator's command also goes to the scheduler
    and the event log, with the operator's name.
    """

    def __init__(
        self,
        scheduler: LoggedScheduler,
        registry: ModelRegistry,
        sessions: SessionTable,
        outbox: Outbox,
        dropped: Dropped,
        memory: Memory,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        shards: Shards,
        moves: Moves,
        graphs: Sequence[GraphSpec] = (),
    ) -> None:
        """``clock`` only measures how long it takes to make a status; ``graphs`` are the configured ones."""
        self._shards = shards
        self._moves = moves
        self.refuses = ""
        """Reason why no changes are made at present; empty if they are."""
        """True if the controller stops, so that changes are refused."""
        self._scheduler = scheduler
        self._registry = registry
        self._sessions = sessions
        self._outbox = outbox
        self._dropped = dropped
        self._memory = memory
        self._clock = clock
        self._kept = {
            ("graph", each.name): OperatorAsked(CONFIGURATION, SetGraph(each.name, each)) for each in graphs
        }
        """Settings of the configuration, and of operators from before the controller's restart, that have not
        been made (again) yet."""
        for name, own in scheduler.core.config.own_workers.items():
            self._kept["assignment", name] = OperatorAsked(CONFIGURATION, AssignModel(name, *own))
        self._kept |= memory.asked
        self._status: ClusterStatus | None = None
        self._status_until_ns = 0

    def answer(self, now_ns: int, gateway: GatewaySession, request: AdminRequest) -> None:
        """Carry out what a client asks, and answer its gateway."""
        commands = (
            *(request.add, request.remove, request.serve, request.load, request.operate),
            *(request.shard_map, request.move_worker),
        )
        asked = sum(command is not None for command in commands) + request.status + request.metrics
        reply = AdminReply(request.token)
        if asked != 1:
            detail = (
                f"{asked} of add, remove, serve, load, operate, shard_map, move_worker, status and metrics "
                "were asked for; ask for one"
            )
            reply = AdminReply(request.token, Reason.BAD_MESSAGE, detail)
        elif request.status:
            reply = AdminReply(request.token, status=self.status(now_ns))
        elif request.metrics:
            reply = AdminReply(request.token, metrics=self._metrics(now_ns))
        else:
            refusal = self._change(now_ns, gateway, request)
            if refusal is not None:
                reply = AdminReply(request.token, *refusal)
        self._outbox.send(gateway, reply)

    def operate(self, now_ns: int, asked: Operate) -> Operated:
        """Carry a command out unless it is refused; return the answer."""
        refusal = self._refusal(asked)
        if refusal is not None:
            return Operated(asked.token, False, refusal)
        command = asked.command
        event = OperatorAsked(asked.who, command)
        self._carry_out(now_ns, self._or_as_configured(event))
        self._memory.operated(event)
        _LOGGER.info("%s asked to %s", asked.who, described(command))
        return Operated(asked.token, True, described(command))

    def _or_as_configured(self, event: OperatorAsked) -> OperatorAsked:
        """Return the event, or where it takes an operator's bound of a queue back, that of the repository."""
        command = event.command
        if not isinstance(command, SetMaxQueue) or command.size is not None:
            return event
        served = self._registry.served.get(command.model)
        bound = None if served is None else served.max_queue_size or None
        return OperatorAsked(REPOSITORY, SetMaxQueue(command.model, bound))

    def restore(self, now_ns: int) -> None:
        """Set again, as far as possible by now, what operators set before the controller's restart.

        The caller calls this at the start and whenever a worker has joined: a worker that is to be drained
        must be there, and a pinned model needs room.
        """
        for event in list(self._kept.values()):
            if isinstance(event.command, SetDefaultSlo) or self._scheduler.refusal(event.command) is None:
                self._carry_out(now_ns, event)

    def recounted(self, kind: str) -> None:
        """Keep for the next start how many workers of a kind are wanted: some have come or gone by a move."""
        event = self._scheduler.asked(("kind", kind))
        if event is not None:
            self._memory.operated(event)

    def status(self, now_ns: int) -> ClusterStatus:
        """Return the cluster's status, of now or a moment ago (`STATUS_AGE_NS`, `STATUS_COST_AGE`)."""
        if self._status is None or now_ns > self._status_until_ns:
            began_ns = self._clock()
            status = self._scheduler.status()
            self._status = msgspec.structs.replace(
                status,
                workers=tuple(self._with_session(now_ns, worker) for worker in status.workers),
                dropped_messages={
                    **self._dropped.snapshot(),
                    **status.dropped_messages,
                    **self._dropped_by_workers(),
                },
                left_out=dict(self._registry.left_out),
            )
            cost_ns = self._clock() - began_ns
            self._status_until_ns = now_ns + max(STATUS_AGE_NS, STATUS_COST_AGE * cost_ns)
        return self._status

    def _serve(self, now_ns: int, model: ServedModel) -> Refusal | None:
        """Direct requests to versions of a repository's model, and bound its queue as that says."""
        refusal = self._registry.serve(now_ns, model)
        if refusal is None:
            self._memory.serving(model)
        command = SetMaxQueue(model.name, model.max_queue_size or None)
        asked = self._scheduler.asked(("queue", model.name))
        before = SetMaxQueue(model.name) if asked is None else asked.command
        if refusal is None and command != before and (asked is None or asked.who == REPOSITORY):
            self._carry_out(now_ns, OperatorAsked(REPOSITORY, command))
        return refusal

    def _change(self, now_ns: int, gateway: GatewaySession, request: AdminRequest) -> Refusal | None:
        self._status = None
        if self.refuses:
            return Reason.SHUTTING_DOWN, self.refuses
        if request.serve is not None:
            return self._serve(now_ns, request.serve)
        if request.add is not None:
            refusal = self._registry.add(now_ns, request.add)
            if refusal is None:
                self._memory.added(request.add)
            return refusal
        if request.operate is not None:
            return self._operated(now_ns, gateway, request.token, request.operate)
        if request.load is not None:
            return self._load(now_ns, gateway, request.load)
        if request.shard_map is not None:
            return self._shards.change(request.shard_map)
        if request.move_worker is not None:
            return self._operated(now_ns, gateway, request.token, request.move_worker)
        assert request.remove is not None
        registry = self._registry
        spec = registry.models.get(request.remove)
        if request.drain:
            refusal = registry.drain(now_ns, request.remove, request.moves)
        else:
            refusal = registry.remove(now_ns, request.remove)
        if refusal is None and spec is not None:
            self._memory.removed(spec.name)
        return refusal

    def _operated(
        self, now_ns: int, gateway: GatewaySession, token: int, command: OperatorCommand
    ) -> Refusal | None:
        answered = self.operate(now_ns, Operate(token, gateway.name, command))
        return None if answered.done else (Reason.BAD_INPUT, answered.detail)

    def _load(self, now_ns: int, gateway: GatewaySession, model: str) -> Refusal | None:
        command = LoadOn(model, idle=True)
        refusal = self._scheduler.refusal(command)
        if refusal is not None:
            return Reason.UNKNOWN_MODEL, refusal
        self._carry_out(now_ns, OperatorAsked(gateway.name, command))
        return None

    def _carry_out(self, now_ns: int, event: OperatorAsked) -> None:
        about = subject(event.command)
        if about is not None:
            self._kept.pop(about, None)
        self._scheduler.handle(now_ns, event)
        match event.command:
            case SetDefaultSlo(model=model, slo_ns=slo_ns):
                self._registry.send_default_slo(model, slo_ns)
            case SetGraph(name=name, graph=graph):
                self._registry.send_graph(name, graph)

    def _refusal(self, asked: Operate) -> str | None:
        if self.refuses:
            return self.refuses
        if not 0 < len(asked.who) <= MAX_NAME_CHARACTERS or not asked.who.isprintable():
            return (
                f"who asks can't be recorded: a name has 1 to {MAX_NAME_CHARACTERS} characters, all printable"
            )
        if _longest(asked.command) > MAX_NAME_CHARACTERS:
            return f"no model, worker or address has more than {MAX_NAME_CHARACTERS} characters"
        if isinstance(asked.command, SetDefaultSlo):
            return self._slo_refusal(asked.command)
        if isinstance(asked.command, SetGraph):
            return self._graph_refusal(asked.command)
        if isinstance(asked.command, SetMaxQueue):
            return self._bound_refusal(asked.command)
        if isinstance(asked.command, SetGoodputWeight):
            return self._weight_refusal(asked.command)
        if isinstance(asked.command, MoveWorker) and (fault := self._moves.refusal(asked.command)):
            return fault
        return self._scheduler.refusal(asked.command)

    def _bound_refusal(self, command: SetMaxQueue) -> str | None:
        if command.size is not None and not 1 <= command.size <= MAX_QUEUE_SIZE:
            return f"a max_queue_size of {command.size:,} can't be; give 1 to {MAX_QUEUE_SIZE:,}"
        return self._unknown(command.model)

    def _graph_refusal(self, command: SetGraph) -> str | None:
        """Gateways, which know what each model takes, have checked the rest."""
        if command.graph is None:
            known = self._registry.graph_named(command.name)
            return None if known else f"there is no graph {command.name!r}"
        if command.graph.name != command.name or (fault := graph_fault(command.graph)):
            return fault or f"the graph's name is {command.graph.name!r}, not {command.name!r}"
        if self._registry.is_known(command.name):
            return f"a model is called {command.name!r}: choose another name for the graph"
        if len(self._scheduler.cluster.graphs()) >= MAX_GRAPHS:
            return f"{MAX_GRAPHS} graphs are served, which is the bound; remove one first"
        return None

    def _weight_refusal(self, command: SetGoodputWeight) -> str | None:
        fault = None if command.weight is None else weight_fault(command.weight)
        return fault or self._unknown(command.model)

    def _unknown(self, name: str) -> str | None:
        """Return why a model can't be set anything; None if clients can ask for it."""
        if self._registry.is_known(name):
            return None
        return f"there is no model {name!r} that clients could ask for"

    def _slo_refusal(self, command: SetDefaultSlo) -> str | None:
        slo_ns, name = command.slo_ns, command.model
        if slo_ns is not None and not 0 < slo_ns <= MAX_DURATION_NS:
            given, most = in_milliseconds(slo_ns), in_milliseconds(MAX_DURATION_NS)
            return f"a default SLO of {given} can't be; give more than 0 and at most {most}"
        is_set = name in self._scheduler.core.default_slos_ns()
        if self._registry.is_known(name) or (slo_ns is None and is_set):
            return None
        spec = self._registry.models.get(name)
        if spec is not None:
            return f"{name!r} is a version of {spec.served_as!r}, which is what clients call it: name that"
        return f"there is no model {name!r} that clients could ask for"

    def _dropped_by_workers(self) -> dict[str, int]:
        """Return how many messages each connected worker could not use, as ``WORKER: REASON``."""
        return {
            f"{worker.name}: {why[:MAX_NAME_CHARACTERS]}": count
            for worker in self._sessions.workers.values()
            for why, count in worker.dropped.items()
        }

    def _metrics(self, now_ns: int) -> ClusterMetrics:
        """Return what is counted, and what the workers' GPUs said last."""
        found = self._scheduler.metrics(now_ns, len(self._registry.models))
        sessions = self._sessions.workers
        workers = tuple(
            msgspec.structs.replace(
                each,
                readings=sessions[each.worker].health.readings,
                **_clock_of(sessions[each.worker], now_ns),
            )
            if each.worker in sessions
            else each
            for each in found.workers
        )
        return msgspec.structs.replace(found, workers=workers)

    def _with_session(self, now_ns: int, worker: WorkerStatus) -> WorkerStatus:
        session = self._sessions.workers.get(worker.worker)
        if session is None:
            return worker
        notes = (*worker.notes, *session.hello.notes, *session.health.notes)
        return msgspec.structs.replace(worker, **_clock_of(session, now_ns), notes=notes)


def _clock_of(session: Session, now_ns: int) -> dict[str, Any]:
    """Return what is known of a peer's clock, as `WorkerStatus` and `WorkerActions` name it."""
    clock = session.clock
    return {
        "clock_offset_ns": clock.offset_ns(now_ns),
        "clock_error_ns": clock.error_ns(now_ns),
        "clock_rate_ppm": clock.rate * 1e6,
    }


def _longest(command: OperatorCommand) -> int:
    """Return the length of the longest name in a command."""
    return max(len(value) for value in msgspec.structs.astuple(command) if isinstance(value, str))
