"""Sends messages to sessions; a session that can't be sent to is marked as broken, for its end to follow.

Its end is not brought about at once, because it feeds the scheduler and sends more messages, and whoever
is sending is in the middle of something.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from mainspring.controller.counters import AnswerLimit, Dropped
from mainspring.controller.sessions import Session, SessionTable
from mainspring.messages.codec import encode
from mainspring.messages.peers import Refused
from mainspring.transport.bounds import Delivery


class Transport(Protocol):
    """What the post needs of the socket."""

    def send(self, routing_id: bytes, payload: bytes) -> Delivery:
        """Send one message, without waiting and without raising."""


class Post:
    """Messages from the controller to its peers."""

    def __init__(self, transport: Transport, sessions: SessionTable, dropped: Dropped) -> None:
        self._transport = transport
        self._sessions = sessions
        self._dropped = dropped
        self._limit = AnswerLimit()
        self._broken: dict[Session, str] = {}

    def to(self, session: Session, message: msgspec.Struct) -> bool:
        """Send a message; return False, and mark the session as broken, if that is not possible."""
        if session in self._broken:
            self._dropped.count(self._broken[session])
            return False
        delivery = self._transport.send(session.routing_id, encode(message))
        if delivery is Delivery.SENT:
            return True
        self._dropped.count(delivery.value)
        self._broken[session] = delivery.value
        return False

    def to_gateways(self, message: msgspec.Struct) -> None:
        """Send a message to every gateway."""
        for gateway in self._sessions.gateways.values():
            self.to(gateway, message)

    def refuse(self, now_ns: int, routing_id: bytes, code: str, detail: str) -> None:
        """Count a message that is not accepted, and tell its sender, known or not, at a bounded rate."""
        self._dropped.count(code)
        if self._limit.allows(now_ns, routing_id, code):
            self._transport.send(routing_id, encode(Refused(code, detail)))

    def take_broken(self) -> dict[Session, str]:
        """Return the sessions that broke since the last call, each with why."""
        broken, self._broken = self._broken, {}
        return broken
