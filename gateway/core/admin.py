"""Commands to change or see the cluster, on their way to the controller and back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.controller_catalogs import Told, merged_metrics, merged_status
from mainspring.gateway.core.effects import Connection
from mainspring.gateway.graphs.checking import GraphError
from mainspring.gateway.graphs.served import Graphs
from mainspring.messages.clients import (
    AddGraph,
    AddModel,
    BoundQueue,
    Done,
    ErrorReply,
    GetStatus,
    RemoveGraph,
    RemoveModel,
    Scale,
    StatusReply,
    WeighModel,
)
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.operating import (
    AssignModel,
    AssignWorkers,
    ScaleWorkers,
    SetGoodputWeight,
    SetGraph,
    SetMaxQueue,
)
from mainspring.messages.peers import AdminReply, AdminRequest
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus


class GetMetrics(msgspec.Struct, frozen=True):
    """Ask the controller for its counts: the gateway's own command, when it is scraped."""

    key: int


class MetricsReply(msgspec.Struct, frozen=True):
    """The controller's counts."""

    key: int
    metrics: ClusterMetrics


AdminCommand = (
    AddModel
    | RemoveModel
    | Scale
    | BoundQueue
    | WeighModel
    | AssignWorkers
    | AddGraph
    | RemoveGraph
    | GetStatus
    | GetMetrics
)
Reply = Done | StatusReply | MetricsReply | ErrorReply


class _Asked:
    """A command, and what has been answered so far of those that all controllers are asked."""

    __slots__ = ("awaits", "connection", "expires_ns", "key", "metrics", "status")

    def __init__(self, connection: Connection, key: int, expires_ns: int, shards: Collection[int]) -> None:
        self.connection = connection
        self.key = key
        self.expires_ns = expires_ns
        self.awaits = set(shards)
        """Shards whose controllers have not answered."""
        self.status: dict[int, ClusterStatus] = {}
        self.metrics: dict[int, ClusterMetrics] = {}


class AdminTable:
    """Commands without an answer; each gets exactly one.

    Of several controllers, a command goes to the one that it is about; for a status, and for what is counted,
    all that are there are asked, and the answer has what came of them in time.
    """

    def __init__(self, config: GatewayConfig, shard_map: Callable[[], ShardMap]) -> None:
        """``shard_map`` returns the newest map."""
        self._timeout_ns = milliseconds(config.admin_timeout_ms)
        self._limit = config.max_admin_requests
        self._asked: dict[int, _Asked] = {}
        self._next_token = 0
        self._places = _places(config)
        self._map = shard_map

    def ask(
        self, now_ns: int, connection: Connection, command: AdminCommand, shards: Collection[int]
    ) -> AdminRequest | ErrorReply:
        """Return what to send to the controllers of these shards, or the refusal to send back."""
        if not shards:
            return ErrorReply(command.key, Reason.CONTROLLER_UNREACHABLE, "the gateway has no controller")
        if len(self._asked) >= self._limit:
            return ErrorReply(command.key, Reason.OVERLOADED, f"{self._limit} such requests wait already")
        token = self._next_token
        self._next_token += 1
        self._asked[token] = _Asked(connection, command.key, now_ns + self._timeout_ns, shards)
        match command:
            case AddModel():
                return AdminRequest(token, add=command.model)
            case RemoveModel():
                return AdminRequest(token, remove=command.name)
            case Scale(kind=kind, count=count):
                return AdminRequest(token, operate=ScaleWorkers(kind, count))
            case BoundQueue(name=name, size=size):
                return AdminRequest(token, operate=SetMaxQueue(name, size))
            case WeighModel(name=name, weight=weight):
                return AdminRequest(token, operate=SetGoodputWeight(name, weight))
            case AssignWorkers(name=name, workers=workers, max_batch=most, kind=kind):
                return AdminRequest(token, operate=AssignModel(name, workers, most, kind))
            case AddGraph(graph=graph):
                return AdminRequest(token, operate=SetGraph(graph.name, graph))
            case RemoveGraph(name=name):
                return AdminRequest(token, operate=SetGraph(name))
            case GetStatus():
                return AdminRequest(token, status=True)
            case GetMetrics():
                return AdminRequest(token, metrics=True)

    def awaits(self, token: int, shard: int) -> bool:
        """Return whether an answer of this shard's controller is waited for."""
        asked = self._asked.get(token)
        return asked is not None and shard in asked.awaits

    def answered(
        self, message: AdminReply, counts: Mapping[str, int], shard: int = 0
    ) -> tuple[Connection, Reply] | None:
        """Return who gets which reply; a status carries the gateway's ``counts`` too.

        None: nobody waits for it, or other controllers have yet to answer.
        """
        asked = self._asked.get(message.token)
        if asked is None or shard not in asked.awaits:
            return None
        asked.awaits.discard(shard)
        if message.metrics is not None:
            asked.metrics[shard] = message.metrics
        elif message.status is not None:
            asked.status[shard] = message.status
        elif message.reason is None or not (asked.awaits or asked.status or asked.metrics):
            del self._asked[message.token]
            if message.reason is None:
                return asked.connection, Done(asked.key)
            return asked.connection, ErrorReply(asked.key, message.reason, message.detail)
        return self._whole(message.token, asked, counts)

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next: commands expire in the order in which they came."""
        if not self._asked:
            return None
        return next(iter(self._asked.values())).expires_ns

    def tick(self, now_ns: int) -> list[tuple[Connection, Reply]]:
        """Return the replies to commands that were not answered in time."""
        due = [token for token, asked in self._asked.items() if asked.expires_ns <= now_ns]
        return [self._fail(each, Reason.TIMED_OUT, "the controller did not answer in time") for each in due]

    def controller_lost(self, shard: int = 0) -> list[tuple[Connection, Reply]]:
        """Return the replies to the commands that wait for this one: whether they were fulfilled is not
        known."""
        detail = "the controller was lost before it answered; it may have done what was asked or not"
        replies = []
        for token, asked in list(self._asked.items()):
            asked.awaits.discard(shard)
            if not asked.awaits:
                replies.append(self._fail(token, Reason.CONTROLLER_UNREACHABLE, detail))
        return replies

    def _whole(self, token: int, asked: _Asked, counts: Mapping[str, int]) -> tuple[Connection, Reply] | None:
        """Return the reply of all controllers, unless some have yet to answer."""
        if asked.awaits:
            return None
        del self._asked[token]
        return asked.connection, self._found(asked, counts)

    def _found(self, asked: _Asked, counts: Mapping[str, int]) -> Reply:
        """Return the reply from what has been answered."""
        if asked.metrics:
            return MetricsReply(asked.key, _one_of(asked.metrics) or merged_metrics(asked.metrics))
        shard_map = self._map()
        several = len(shard_map.shards) > 1
        status = merged_status(asked.status, shard_map) if several else asked.status[0]
        dropped = {**status.dropped_messages, **counts}
        status = msgspec.structs.replace(status, dropped_messages=dropped)
        return StatusReply(asked.key, status, self._places)

    def _fail(self, token: int, reason: Reason, detail: str) -> tuple[Connection, Reply]:
        asked = self._asked.pop(token)
        if asked.metrics or asked.status:
            return asked.connection, self._found(asked, {})
        return asked.connection, ErrorReply(asked.key, reason, detail)


def asked_of(command: AdminCommand, told: Told) -> list[int]:
    """Return the shards that a command concerns."""
    count = len(told.parts)
    if count == 1 or isinstance(command, GetStatus | GetMetrics):
        return list(range(count))
    if isinstance(command, Scale):
        return [command.shard or 0]
    if isinstance(command, AddGraph | RemoveGraph):
        return [0]  # The first controller tells every gateway.
    if isinstance(command, AddModel):
        return [told.map.place(command.model.name)]
    has_it = told.shard_of(command.name)
    return [told.map.place(command.name) if has_it is None else has_it]


def answered_here(command: AdminCommand, graphs: Graphs, shards: int) -> Done | ErrorReply | None:
    """Return the answer to a command that none of so many controllers has to see; None if one has."""
    fault = ""
    match command:
        case Scale(shard=shard):
            fault = wrong_shard(shard, shards)
        case RemoveModel(name=name):
            fault = graphs.needs(name)
        case AddGraph(graph=graph):
            try:
                graphs.check(graph)
            except GraphError as error:
                fault = f"graph {graph.name!r}: {error}"
            if command.check and not fault:
                return Done(command.key)
    return ErrorReply(command.key, Reason.BAD_INPUT, fault) if fault else None


def wrong_shard(shard: int | None, count: int) -> str:
    """Return what is wrong with the shard that is to have more workers or fewer; empty if nothing is."""
    if shard is None:
        several = f"there are {count} controllers: name the shard, 0 to {count - 1}, that is meant"
        return several if count > 1 else ""
    return "" if 0 <= shard < count else f"there is no shard {shard}; there are 0 to {count - 1}"


def _one_of(parts: Mapping[int, ClusterMetrics]) -> ClusterMetrics | None:
    """Return the only one, if it is."""
    return next(iter(parts.values())) if len(parts) == 1 else None


def _places(config: GatewayConfig) -> dict[str, str]:
    """Return the addresses of the listeners that a configuration names."""
    places = {
        "controller": config.controller_address,
        **config.protocols,
        "metrics": config.metrics_address,
        "console": config.console_address,
    }
    return {name: address for name, address in places.items() if address}
