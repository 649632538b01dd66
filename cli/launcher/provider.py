"""A provider's session with the controller: says what it runs, runs what it is told (`messages.scaling`).

What starts and stops workers is a `Runner`: the launcher's processes, or actors of Ray. The session does
nothing by itself: its owner calls `ProviderLink.turn` often, from one thread.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Protocol

import msgspec

from mainspring.messages import PROTOCOL_VERSION, peers
from mainspring.messages.codec import TO_PROVIDER, BadMessage, encode
from mainspring.messages.roles import Role
from mainspring.messages.scaling import Notice, Offer, Provide, ProviderHello, Running
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import UNKNOWN_SESSION, ControllerSession, Link

_LOGGER = logging.getLogger("mainspring.provider")
HELLO_NS = 200_000_000
LONGEST_HELLO_NS = 5_000_000_000
SILENCE_NS = 10_000_000_000
LINGER_NS = 100_000_000
MOST_CHARACTERS = 500
"""Most characters of a line for the operator; the rest is cut off."""
LIMITS = Limits(part_bytes=16 << 20, backlog_bytes=16 << 20, backlog_messages=1_000)


class Runner(Protocol):
    """Starts and stops workers; none of its methods waits for that."""

    def offers(self) -> tuple[Offer, ...]:
        """Return the kinds of workers that there are, with those that are run now and what is wrong."""

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:
        """Run just these workers of a kind from now on: start those that are missing, stop all others.

        Those that ``moved`` are run on for another controller, at the address that is named for each. What
        can't be started is tried again, and `offers` says why.
        """


class ProviderLink:
    """Keeps the session of one provider."""

    def __init__(
        self, address: str, name: str, runner: Runner, shows: Pass, say: Callable[[str], None]
    ) -> None:
        """Begin to connect; ``say`` gets a line for a person when the controller does not take the provider.

        Raises ValueError if the address can't be one.
        """
        self._name = name
        self._runner = runner
        self._say = say
        self._hub = Hub()
        identity = f"{name}:{os.getpid()}-{secrets.token_hex(4)}".encode()
        there = Identity(Role.CONTROLLER)
        self._link = Link(self._hub, address, LIMITS, name=identity, shows=shows, expects=there)
        self._session = ControllerSession(
            monotonic_ns(), hello_ns=HELLO_NS, silence_ns=SILENCE_NS, longest_hello_ns=LONGEST_HELLO_NS
        )
        self._told: tuple[Offer, ...] | None = None
        """Offers that the controller knows; None while it does not know this provider."""
        self._opened = 0

    @property
    def known(self) -> bool:
        """Return whether the controller knows this provider, or said why it refuses it."""
        return self._session.welcomed or bool(self._session.refusal)

    def turn(self) -> None:
        """Take in what has come, and say what has changed; never waits."""
        while self._link in self._hub.wait(0):
            while (parts := self._link.receive()) is not None:
                try:
                    self._take(TO_PROVIDER.decode(parts[0]))
                except BadMessage as error:
                    _LOGGER.warning("the controller sent something that is not a message: %s", error)
        now_ns = monotonic_ns()
        if self._link.opened != self._opened:
            # Whoever is at the other end now, such as a controller that was started again, knows nothing.
            self._opened = self._link.opened
            self._session.lose(now_ns)
        self._session.connected(now_ns, self._link.opened)
        if self._session.timed_out(now_ns):
            self._told = None
        offers = self._runner.offers()
        if self._link.connected and self._session.hello_due(now_ns):
            self._session.hello_sent(now_ns)
            self._send(ProviderHello(PROTOCOL_VERSION, self._name, offers))
            self._told = offers
        elif self._session.welcomed and offers != self._told and self._send(Running(offers)):
            self._told = offers

    def close(self, why: str) -> None:
        """Say goodbye and end the connection."""
        self._send(peers.Goodbye(why))
        self._hub.close(LINGER_NS)

    def _send(self, message: msgspec.Struct) -> bool:
        return self._link.send((encode(message),)) is Delivery.SENT

    def _take(self, message: peers.ToProvider) -> None:
        now_ns = monotonic_ns()
        self._session.heard(now_ns)
        match message:
            case peers.Ping():
                self._send(peers.Pong(message.sequence, message.sent_ns, now_ns, monotonic_ns()))
            case Provide():
                self._runner.run(message.kind, message.workers, message.moved)
            case peers.Welcome():
                self._session.welcome(now_ns)
            case peers.Refused():
                refusal = self._session.refused(now_ns, message.code, message.detail)
                if refusal.news and message.code != UNKNOWN_SESSION:
                    self._say(f"workers can't be scaled: {message.detail}")
            case Notice():
                text = message.text[:MOST_CHARACTERS]
                self._say(text if text.isprintable() else ascii(text))
            case peers.Goodbye():
                self._session.lose(now_ns)
