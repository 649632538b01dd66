"""Commands to change or see the cluster, on their way to the controller and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Connection
from mainspring.messages.clients import AddModel, Done, ErrorReply, GetStatus, RemoveModel, StatusReply
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.peers import AdminReply, AdminRequest


class GetMetrics(msgspec.Struct, frozen=True):
    """What does the controller count? The gateway's own command, when it is scraped."""

    key: int


class MetricsReply(msgspec.Struct, frozen=True):
    """What it counts."""

    key: int
    metrics: ClusterMetrics


AdminCommand = AddModel | RemoveModel | GetStatus | GetMetrics
Reply = Done | StatusReply | MetricsReply | ErrorReply


class _Asked(msgspec.Struct, frozen=True):
    connection: Connection
    key: int
    expires_ns: int


class AdminTable:
    """Commands without an answer; each gets exactly one."""

    def __init__(self, config: GatewayConfig) -> None:
        self._timeout_ns = milliseconds(config.admin_timeout_ms)
        self._limit = config.max_admin_requests
        self._asked: dict[int, _Asked] = {}
        self._next_token = 0
        self._places = _places(config)

    def ask(
        self, now_ns: int, connection: Connection, command: AdminCommand, connected: bool
    ) -> AdminRequest | ErrorReply:
        """Return what to send to the controller, or the refusal to send back."""
        if not connected:
            return ErrorReply(command.key, Reason.CONTROLLER_UNREACHABLE, "the gateway has no controller")
        if len(self._asked) >= self._limit:
            return ErrorReply(command.key, Reason.OVERLOADED, f"{self._limit} such requests wait already")
        token = self._next_token
        self._next_token += 1
        self._asked[token] = _Asked(connection, command.key, now_ns + self._timeout_ns)
        match command:
            case AddModel():
                return AdminRequest(token, add=command.model)
            case RemoveModel():
                return AdminRequest(token, remove=command.name)
            case GetStatus():
                return AdminRequest(token, status=True)
            case GetMetrics():
                return AdminRequest(token, metrics=True)

    def answered(self, message: AdminReply, counts: Mapping[str, int]) -> tuple[Connection, Reply] | None:
        """Return who gets which reply; a status carries the gateway's ``counts`` too. None: nobody waits."""
        asked = self._asked.pop(message.token, None)
        if asked is None:
            return None
        if message.reason is not None:
            return asked.connection, ErrorReply(asked.key, message.reason, message.detail)
        if message.metrics is not None:
            return asked.connection, MetricsReply(asked.key, message.metrics)
        if message.status is None:
            return asked.connection, Done(asked.key)
        dropped = {**message.status.dropped_messages, **counts}
        status = msgspec.structs.replace(message.status, dropped_messages=dropped)
        return asked.connection, StatusReply(asked.key, status, self._places)

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next: commands expire in the order in which they came."""
        if not self._asked:
            return None
        return next(iter(self._asked.values())).expires_ns

    def tick(self, now_ns: int) -> list[tuple[Connection, Reply]]:
        """Return the replies to commands that were not answered in time."""
        due = [token for token, asked in self._asked.items() if asked.expires_ns <= now_ns]
        return self._fail(due, Reason.TIMED_OUT, "the controller did not answer in time")

    def controller_lost(self) -> list[tuple[Connection, Reply]]:
        """Return the replies to all commands: whether they were fulfilled is not known."""
        detail = "the controller was lost before it answered; it may have done what was asked or not"
        return self._fail(list(self._asked), Reason.CONTROLLER_UNREACHABLE, detail)

    def _fail(self, tokens: list[int], reason: Reason, detail: str) -> list[tuple[Connection, Reply]]:
        failed = [self._asked.pop(token) for token in tokens]
        return [(asked.connection, ErrorReply(asked.key, reason, detail)) for asked in failed]


def _places(config: GatewayConfig) -> dict[str, str]:
    """Return the addresses of the listeners that a configuration names."""
    places = {
        "controller": config.controller_address,
        "http": config.http_address,
        "grpc": config.grpc_address,
        "metrics": config.metrics_address,
        "console": config.console_address,
    }
    return {name: address for name, address in places.items() if address}
