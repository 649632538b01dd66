"""The connecting end of a connection, which connects again after each end and waits longer each time.

The link is connected once both ends have proved that they belong together (`handshake`).

A message that is sent without a connection is either refused or, within `Limits`, kept until there is one.
What was still waiting when a connection broke is not sent again, because the sender can't know how much of it
has arrived.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mainspring.transport import addresses
from mainspring.transport.bounds import Delivery, Ended, Limits
from mainspring.transport.channel import READABLE, WRITABLE, Channel, Message, flush_all, size_of
from mainspring.transport.greeting import TOOL, Greeting, Pass, trusted
from mainspring.transport.handshake import Connecting, Identity, Unproved, Violation
from mainspring.transport.hub import Hub
from mainspring.transport.keys import LOOK_NS, REVOKED, Keys

LOG = logging.getLogger(__name__)

FIRST_RETRY_NS = 50_000_000
LONGEST_RETRY_NS = 250_000_000
CONNECT_NS = 3_000_000_000
"""The time after which an attempt is given up."""
IDLE_NS = 1 << 61


class Link:
    """A connection to one address, or one of several; see the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        address: str,
        limits: Limits,
        *,
        name: bytes = b"",
        keeps: bool = False,
        shows: Pass = TOOL,
        expects: Identity | None = None,
    ) -> None:
        """Begin to connect as ``name``; raise ValueError if the address or the name is malformed.

        ``keeps``: messages are kept while there is no connection. ``expects``: the process that must be
        there.
        """
        self._addresses = [addresses.parse(each.strip()) for each in address.split(",")]
        self.address = self._addresses[0]
        """The address of the attempt, or connection: of several, the one after another is tried."""
        self.opened = 0
        """The number of connections so far."""
        self.ended = 0
        """The number of connections that have ended, at either end."""
        self.refusal = ""
        """Reason why one end refused the other in the last attempt; empty if neither did."""
        self.failure = ""
        """Reason why the last attempt failed or the last connection ended, but for want of an answer."""
        self.on_violation: Callable[[str], object] = lambda _: None
        """Called with what the other end has sent that breaks the framing; the connection ends."""
        self._hub = hub
        self._limits = limits
        self._identity, self._shows, self._expects = Identity(shows.role, name), shows, expects
        self._handshake(trust=False)
        self._keeps = keeps
        self._kept: deque[Sequence[Any]] = deque()
        self._kept_bytes = 0
        self._lookup: addresses.Lookup | None = None
        self._attempt: socket.socket | None = None
        self._greeting: Greeting | None = None
        self._channel: Channel | None = None
        self._attempts = 0
        """Lookups of a host's name: it may have several addresses, and only some may answer."""
        self._retry_ns = FIRST_RETRY_NS
        self._next_ns = 0
        """Instant at which the next attempt begins, or the one under way is given up; 0: at once. A lookup is
        never given up: the resolver has a time-out of its own, and a second lookup would wait beside the
        first."""
        hub.add(self)
        self.tick(time.monotonic_ns())

    @property
    def connected(self) -> bool:
        """Say whether there is a connection."""
        return self._channel is not None

    @property
    def obeyed(self) -> bool:
        """Say the same of a controller; there is but one (`controllers.ControllerLinks`)."""
        return self._channel is not None

    @property
    def epoch(self) -> int:
        """Return 0: the one controller is obeyed whatever its epoch is, for nobody else can be there."""
        return 0

    def greet(self, parts: Sequence[Any]) -> Delivery:
        """Send a hello."""
        return self.send(parts)

    @property
    def local(self) -> bool:
        """Say whether there is a connection to a process of this host, which may be sent descriptors."""
        return self._channel is not None and self._channel.local

    @property
    def received(self) -> int:
        """Return the number of bytes that have come over the connection since its handshake."""
        return 0 if self._channel is None else self._channel.received

    @property
    def waits(self) -> bool:
        """Say whether something waits to be sent."""
        return bool(self._kept) or (self._channel is not None and self._channel.waits)

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        """Send a message, or keep it; the parts' memory is in use until the message has left.

        ``keeps`` False: it is not kept for a connection to come, even by a link that keeps messages.
        """
        if self._channel is not None:
            delivery = self._channel.send(parts)
            if delivery is not Delivery.GONE:
                return delivery
        if not self._keeps or not keeps:
            return Delivery.GONE
        if self._kept_bytes > self._limits.backlog_bytes or len(self._kept) >= self._limits.backlog_messages:
            return Delivery.FULL
        self._kept.append(parts)
        self._kept_bytes += sum(map(size_of, parts))
        return Delivery.SENT

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Send a message with a descriptor as `Channel.send_descriptor` does; it is never kept."""
        return Delivery.GONE if self._channel is None else self._channel.send_descriptor(parts, descriptor)

    def descriptor(self) -> int | None:
        """Return the oldest descriptor that came over the connection; the caller is to close it."""
        return None if self._channel is None else self._channel.descriptor()

    def receive(self) -> Message | None:
        """Return the next message; None if there is none."""
        channel = self._channel
        if channel is None or not channel.more:
            return None
        try:
            return channel.next()
        except (Ended, Violation) as error:
            self._end(error)
            return None

    def pending(self) -> bool:
        """Say whether a message may have been read already."""
        return self._channel is not None and self._channel.more

    def event(self, fd: int, mask: int) -> bool:
        """Continue to connect, read or write."""
        if self._lookup is not None:
            self._looked_up()
            return False
        if self._attempt is not None:
            self._settle()
            return False
        if self._greeting is not None and not self._advance():
            return False
        assert self._channel is not None, f"{fd} is not this link's"
        if mask & WRITABLE:
            self._channel.flush()
        if mask & ~WRITABLE:
            self._channel.readable()
            return True
        return False

    def tick(self, now_ns: int) -> int:
        """Begin an attempt, or give one up, when that is due."""
        keys = self._shows.keys
        if keys is not None and keys.look(now_ns):
            self._check(keys)
        if now_ns >= self._next_ns and not self._settled:
            if self._attempt is not None or self._greeting is not None:
                LOG.debug("no answer at %s", self.address)
                self._drop_attempt()
                self._again()
            else:
                self._connect(now_ns)
        waits_ns = IDLE_NS if self._settled else self._next_ns
        return waits_ns if keys is None else min(waits_ns, now_ns + LOOK_NS)

    def _check(self, keys: Keys) -> None:
        """End a connection to a process whose certificate has been revoked meanwhile."""
        certificate = None if self._channel is None else self._channel.certificate
        if certificate is not None and keys.revokes(certificate):
            self._end(Violation(REVOKED))

    @property
    def _settled(self) -> bool:
        """Say whether nothing is to be done at any instant: it is connected, or its host is looked up."""
        return self._channel is not None or self._lookup is not None

    def close(self, until_ns: int) -> None:
        """End the connection for good; what waits to be sent may leave until then."""
        if self._lookup is not None:
            self._drop_lookup()
        self._drop_attempt()
        if self._channel is not None:
            flush_all([self._channel], until_ns)
            self._hub.disown(self._channel.fd)
            self._channel.close()
            self._channel = None
        self._kept.clear()
        self._hub.drop(self)

    def _connect(self, now_ns: int) -> None:
        self._next_ns = now_ns + CONNECT_NS
        try:
            at_once = addresses.connect_at_once(self.address)
        except OSError as error:
            self._fail(str(error.strerror))
            return
        if at_once is not None:
            self._greet(at_once)
            return
        assert isinstance(self.address, addresses.Address), f"{self.address} is reached at once or not at all"
        target = addresses.in_numbers(self.address)
        if target is not None:
            self._attempt_at(target)
            return
        self._lookup = addresses.Lookup(self.address, self._attempts)
        self._attempts += 1
        self._hub.own(self._lookup.fd, self)
        self._hub.epoll.register(self._lookup.fd, select.EPOLLIN)

    def _looked_up(self) -> None:
        """Take the resolver's answer and begin to connect."""
        assert self._lookup is not None
        lookup = self._lookup
        self._drop_lookup()
        self._next_ns = time.monotonic_ns() + CONNECT_NS
        self._hub.due(self._next_ns)
        try:
            target = lookup.result()
        except OSError as error:
            self._fail(str(error.strerror))
            return
        self._attempt_at(target)

    def _attempt_at(self, target: addresses.Target) -> None:
        try:
            self._attempt = addresses.begin_to_connect(target)
        except OSError as error:
            self._fail(str(error.strerror))
            return
        self._hub.own(self._attempt.fileno(), self)
        self._hub.epoll.register(self._attempt.fileno(), select.EPOLLOUT)

    def _settle(self) -> None:
        """Take the outcome of an attempt to connect."""
        assert self._attempt is not None
        code = self._attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code))
            return
        sock, self._attempt = self._attempt, None
        self._hub.epoll.unregister(sock.fileno())
        self._hub.disown(sock.fileno())
        self._greet(sock)

    def _handshake(self, trust: bool) -> Connecting:
        return Connecting(self._identity, trust, self._expects)

    def _greet(self, sock: socket.socket) -> None:
        """Begin the handshake over a new connection."""
        addresses.prepare(sock)
        try:
            self._greeting = Greeting(self._shows.over(sock, False), self._handshake(trusted(sock)))
        except Ended as error:
            sock.close()
            self._fail(str(error))
            return
        self._hub.own(sock.fileno(), self)
        self._hub.epoll.register(sock.fileno(), READABLE)

    def _advance(self) -> bool:
        """Continue the handshake; return whether it is complete."""
        assert self._greeting is not None
        try:
            if not self._greeting.advance():
                return False
        except (Ended, Violation) as error:
            self._refused(error)
            return False
        greeting, self._greeting = self._greeting, None
        self._begin(greeting)
        return True

    def _begin(self, greeting: Greeting) -> None:
        """Begin to use a connection whose handshake is complete: send what was kept."""
        self.refusal = ""
        self.opened += 1
        self._retry_ns = FIRST_RETRY_NS
        self._channel = Channel(greeting.sock, self._hub.epoll, self._limits, greeting.handshake.peer.name)
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for parts in kept:
            self._channel.send(parts)

    def _refused(self, why: Exception) -> None:
        """Give up an attempt whose handshake has failed."""
        if isinstance(why, Violation):
            if str(why) != self.refusal:
                LOG.warning("no connection to %s: %s", self.address, why)
            self.refusal = str(why)
            if not isinstance(why, Unproved):
                self.on_violation(str(why))
        self._fail(str(why))

    def _fail(self, why: str) -> None:
        LOG.debug("can't reach %s: %s", self.address, why)
        self.failure = why
        self._drop_attempt()
        self._again()

    def _drop_attempt(self) -> None:
        for sock in (self._attempt, None if self._greeting is None else self._greeting.sock):
            if sock is not None:
                self._hub.epoll.unregister(sock.fileno())
                self._hub.disown(sock.fileno())
                sock.close()
        self._attempt = self._greeting = None

    def _drop_lookup(self) -> None:
        assert self._lookup is not None
        self._hub.epoll.unregister(self._lookup.fd)
        self._hub.disown(self._lookup.fd)
        self._lookup.close()
        self._lookup = None

    def _end(self, why: Exception) -> None:
        assert self._channel is not None
        if isinstance(why, Violation):
            LOG.warning("ended the connection to %s: %s", self.address, why)
            self.on_violation(str(why))
        self.ended += 1
        self.failure = str(why)
        self._hub.disown(self._channel.fd)
        self._channel.close()
        self._channel = None
        self._again()

    def _again(self) -> None:
        self.address = self._addresses[(self._addresses.index(self.address) + 1) % len(self._addresses)]
        self._next_ns = time.monotonic_ns() + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)
        self._hub.due(self._next_ns)


UNKNOWN_SESSION = "unknown_session"
"""The controller's refusal of a peer whose hello it has not received, or whose session it has ended."""
BAD_MESSAGE = "bad_message"
"""The controller's refusal of one message; the session goes on."""


class Refusal(NamedTuple):
    """The meaning of a refusal."""

    lost: bool
    """The session has ended by it."""
    news: bool
    """A person should read it: it is neither repeated nor the usual answer to a peer that is not welcomed."""


class ControllerSession:
    """The state of one peer's session; all instants are on the peer's monotonic clock."""

    def __init__(self, now_ns: int, *, hello_ns: int, silence_ns: int, longest_hello_ns: int = 0) -> None:
        """``hello_ns``: from a hello to its repetition, which doubles each time up to ``longest_hello_ns``.

        ``silence_ns``: a controller from which nothing has come for this long is lost.
        """
        self.welcomed = False
        """True if the controller knows this peer."""
        self.refusal = ""
        """Reason why the controller does not take this peer, by its last refusal; empty once it is
        welcomed."""
        self._first_hello_ns = hello_ns
        self._longest_hello_ns = max(hello_ns, longest_hello_ns)
        self._silence_ns = silence_ns
        self._repeat_ns = hello_ns
        self._hello_ns = now_ns
        self._heard_ns = now_ns
        self._opened = 0
        self._acted = False
        self._reported = ""

    def connected(self, now_ns: int, opened: int) -> None:
        """Note how many connections there have been: over a new one, the hello is due at once."""
        if opened != self._opened:
            self._opened = opened
            if not self.welcomed:
                self._greet_at_once(now_ns)

    def cut_off(self, now_ns: int, obeyed: bool) -> bool:
        """End the session if its connection has ended; return whether there was one."""
        return not obeyed and self.welcomed and self.lose(now_ns)

    def heard(self, now_ns: int) -> None:
        """Note a message of the controller."""
        self._heard_ns = now_ns

    def acted(self) -> None:
        """Note that the content of the last hello is out of date, until the next one is sent."""
        self._acted = True

    def welcome(self, now_ns: int) -> bool:
        """Begin a session; return False if it is lost at once, because its hello is out of date.

        Such a hello may have been on its way for long, or be sent over a connection that another controller
        comes by later (`transport.controllers`): then there may be no session any more.
        """
        if self._acted:
            self.welcomed = False
            self._greet_at_once(now_ns)
            return False
        self.welcomed = True
        self.refusal = self._reported = ""
        self._repeat_ns = self._first_hello_ns
        self.heard(now_ns)
        return True

    def refused(self, now_ns: int, code: str, text: str) -> Refusal:
        """Take a refusal in: it ends the session, or changes nothing about when the hello is repeated."""
        news = (self.welcomed or code != UNKNOWN_SESSION) and text != self._reported
        if news:
            self._reported = text
        if code == BAD_MESSAGE and self.welcomed:
            return Refusal(False, news)
        return Refusal(self.lose(now_ns, text), news)

    def lose(self, now_ns: int, refusal: str = "") -> bool:
        """End the session, so that the hello is due at once; return whether there was one."""
        lost, self.welcomed = self.welcomed, False
        self.refusal = refusal or self.refusal
        if lost:
            self._greet_at_once(now_ns)
        return lost

    def silent(self, now_ns: int) -> bool:
        """Say whether the controller has been silent for too long."""
        return self.silent_for_ns(now_ns) >= self._silence_ns

    def silent_for_ns(self, now_ns: int) -> int:
        """Return for how long nothing has come of the controller."""
        return now_ns - self._heard_ns

    def led(self, now_ns: int) -> None:
        """Take in that another controller leads: the session ends, and the hello is due at once."""
        self.welcomed = False
        self._greet_at_once(now_ns)

    def timed_out(self, now_ns: int) -> bool:
        """End a session whose controller is silent; return whether there was one."""
        return self.welcomed and self.silent(now_ns) and self.lose(now_ns)

    def hello_due(self, now_ns: int) -> bool:
        """Say whether a hello should be sent now."""
        return not self.welcomed and now_ns >= self._hello_ns

    def hello_sent(self, now_ns: int) -> None:
        """Note that a hello was sent; the next one is due later."""
        self._acted = False
        self._hello_ns = now_ns + self._repeat_ns
        self._repeat_ns = min(2 * self._repeat_ns, self._longest_hello_ns)

    def next_wakeup_ns(self) -> int:
        """Return when `timed_out` or `hello_due` becomes true if nothing happens."""
        return self._heard_ns + self._silence_ns if self.welcomed else self._hello_ns

    def _greet_at_once(self, now_ns: int) -> None:
        self._repeat_ns = self._first_hello_ns
        self._hello_ns = now_ns
