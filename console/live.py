"""The controller's event stream as it comes: connects, says hello, connects again by itself.

For an event loop (`LiveStream.next`) and for a program that waits (`LiveStream.poll`); either way one thread
uses it. Nothing is read before it is asked for, so what is asked for too slowly waits with the controller,
which ends the session of an observer that it has kept too much for; then all begins with a new picture.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from time import monotonic_ns
from typing import Literal, Protocol

import msgspec

from mainspring.messages.codec import TO_OBSERVER, BadMessage, Codec, encode
from mainspring.messages.events import Wakeup
from mainspring.messages.observing import OBSERVER_VERSION, ObserverHello, Records, Stage
from mainspring.messages.peers import Goodbye, Ping, Pong, Refused, Welcome
from mainspring.messages.roles import Role
from mainspring.messages.snapshot import Told
from mainspring.telemetry.entries import Entry
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import ControllerSession, Link

_LOGGER = logging.getLogger(__name__)
HELLO_NS = 500_000_000
"""Time between two hellos over one connection, in nanoseconds."""
SILENCE_NS = 1_000_000_000
"""A controller that says nothing for this long is taken for lost; it says something ten times in it."""
TICK_NS = 100_000_000
"""Longest time between two checks of what is due."""
LIMITS = Limits(part_bytes=256 << 20, backlog_bytes=16 << 20, backlog_messages=1_000)
_WAKEUP = Wakeup()

Observed = Entry | Told
"""The content of a record of the stream."""
State = Literal["connecting", "catching_up", "live"]

_RECORDS: Codec[list[tuple[int, Observed]]] = Codec(list[tuple[int, Observed]])


class Batch(msgspec.Struct, frozen=True):
    """Records that arrived together, in the order in which they are to be read."""

    run: int
    """Number of the controller's run, as in `Records.run`."""
    stage: Stage
    """Stage of the stream, as in `Records.stage`."""
    now_ns: int
    """Instant on the controller's clock at which it was sent: everything that happened before has arrived."""
    records: list[tuple[int, Observed]]
    """A `Wakeup` alone where time has passed and nothing else happened."""


class Taker(Protocol):
    """A reader of records: the console's `View`."""

    def reset(self, *, keep_history: bool) -> None:
        """Forget how things stand, because a picture of it begins; and what happened, unless it is kept."""

    def take(self, now_ns: int, entry: Observed) -> None:
        """Take one record in."""


class LiveStream:
    """Follows one controller."""

    def __init__(
        self,
        address: str,
        observer: str = "console",
        clock: Callable[[], int] = monotonic_ns,
        *,
        keys: Keys | None = None,
        operates: bool = False,
    ) -> None:
        """Begin to connect; raise ValueError if it is not an address.

        ``secret`` or ``keys``: the run's, which a process of another user or host needs. ``operates``:
        commands of operators are passed on, whom the caller has checked.
        """
        self.state: State = "connecting"
        """``connecting`` while the controller says nothing, ``catching_up`` until its picture is
        whole."""
        self.since_ns = clock()
        """Instant at which that state began, on this process's clock."""
        self.detail = f"connecting to {address}"
        """Explanation for a person of what keeps it from being ``live``; empty if nothing does."""
        self.on_answer: Callable[[msgspec.Struct], object] = lambda _: None
        """Told what else the controller says: its answers to what was sent."""
        self._observer = observer
        self._clock = clock
        self._hub = Hub()
        self._address = address
        self._name = f"{observer}:{os.getpid()}-{secrets.token_hex(4)}".encode()
        self._shows = Pass(Role.OPERATOR if operates else Role.OBSERVER, keys)
        self._link = self._connect()
        self._ended = 0
        self._session = ControllerSession(self.since_ns, hello_ns=HELLO_NS, silence_ns=SILENCE_NS)
        self._run = 0
        self._told_ns = 0

    def poll(self, timeout_ns: int = 0) -> Batch | None:
        """Return what comes next, waiting for it for at most that time; None if nothing came."""
        until_ns = self._clock() + timeout_ns
        while True:
            batch = self._receive()
            if batch is not None:
                return batch
            now_ns = self._clock()
            self._tick(now_ns)
            left_ns = until_ns - now_ns
            if left_ns <= 0 and not self._link.pending():
                return None
            self._hub.wait(max(0, min(left_ns, TICK_NS)))

    async def next(self) -> Batch:
        """Return what comes next; others of the event loop have their turn before it."""
        await asyncio.sleep(0)
        while (batch := self.poll()) is None:
            await self._ready()
        return batch

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; return False without a connection."""
        return self.state != "connecting" and self._link.send((encode(message),)) is Delivery.SENT

    def close(self) -> None:
        """Take leave."""
        self.send(Goodbye("the observer leaves"))
        self._become("connecting", "closed")
        self._hub.close(100_000_000)

    async def _ready(self) -> None:
        """Wait until something may have come, or something is due."""
        loop, descriptor = asyncio.get_running_loop(), self._hub.epoll.fileno()
        arrived = asyncio.Event()
        loop.add_reader(descriptor, arrived.set)
        try:
            left_ns = min(TICK_NS, self._hub.due_ns - self._clock())
            async with asyncio.timeout(max(0, left_ns) / 1e9):
                await arrived.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)

    def _receive(self) -> Batch | None:
        """Take messages until one has records."""
        self._hub.wait(0)
        while (parts := self._link.receive()) is not None:
            now_ns = self._clock()
            self._session.heard(now_ns)
            try:
                batch = self._take(now_ns, parts)
            except BadMessage as error:
                _LOGGER.warning("the controller sent an unknown message: %s", error)
                continue
            if batch is not None:
                return batch
        return None

    def _take(self, now_ns: int, parts: list[bytes]) -> Batch | None:
        message = TO_OBSERVER.decode(parts[0])
        match message:
            case Records():
                return self._records(message, parts)
            case Ping(sequence=sequence, sent_ns=sent_ns):
                self._link.send((encode(Pong(sequence, sent_ns, now_ns, self._clock())),))
                return self._time(sent_ns)
            case Welcome():
                self._session.welcome(now_ns)
                self._become("catching_up", "the controller's picture of how things stand is on its way")
            case Refused(code=code, detail=detail):
                # A refused message, too, ends the session here, so that the reason is shown.
                self._session.refused(now_ns, code, detail)
                self._session.lose(now_ns)
                self._become("connecting", f"the controller refuses ({code}): {detail}")
            case Goodbye(detail=detail):
                self._session.lose(now_ns)
                self._become("connecting", f"the controller left: {detail}")
            case _:
                self.on_answer(message)
        return None

    def _records(self, message: Records, parts: list[bytes]) -> Batch:
        if len(parts) != 2:
            raise BadMessage(f"records have one frame behind them, not {len(parts) - 1}")
        records = _RECORDS.decode(parts[1])
        self._run = message.run
        self._told_ns = max(self._told_ns, message.now_ns)
        if message.stage is Stage.END:
            self._become("live", "")
        return Batch(message.run, message.stage, message.now_ns, records)

    def _time(self, now_ns: int) -> Batch | None:
        """Return that nothing happened up to an instant, if that is news."""
        if self.state != "live" or now_ns <= self._told_ns:
            return None
        self._told_ns = now_ns
        return Batch(self._run, Stage.LIVE, now_ns, [(now_ns, _WAKEUP)])

    def _tick(self, now_ns: int) -> None:
        """Notice that the connection ended or is silent; say hello until the controller answers."""
        self._session.connected(now_ns, self._link.opened)
        if self._link.ended != self._ended:
            self._ended = self._link.ended
            if self._session.lose(now_ns):
                self._become("connecting", "the connection to the controller ended")
        if not self._link.connected:
            self._session.heard(now_ns)
            if self._link.refusal:
                self.detail = f"no connection to {self._address}: {self._link.refusal}"
        elif self._session.silent(now_ns):
            self._session.lose(now_ns)
            self._become("connecting", "the controller is silent")
            self._reconnect(now_ns)
        elif self._session.hello_due(now_ns):
            self._session.hello_sent(now_ns)
            self._link.send((encode(ObserverHello(OBSERVER_VERSION, self._observer)),))

    def _reconnect(self, now_ns: int) -> None:
        """End a connection whose other end may be gone without notice, and begin another."""
        self._link.close(now_ns)
        self._link = self._connect()
        self._ended = 0
        self._session.connected(now_ns, 0)
        self._session.heard(now_ns)

    def _connect(self) -> Link:
        there = Identity(Role.CONTROLLER)
        return Link(self._hub, self._address, LIMITS, name=self._name, shows=self._shows, expects=there)

    def _become(self, state: State, detail: str) -> None:
        if state != self.state:
            self.since_ns = self._clock()
            self._told_ns = 0
            _LOGGER.info("%s%s", state.replace("_", " "), f": {detail}" if detail else "")
        self.state, self.detail = state, detail


class Following:
    """Hands what a stream brings to a `Taker`."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._run: int | None = None

    def take(self, batch: Batch) -> None:
        """Take a batch in; when a picture begins, what happened before is kept if it was in the same run."""
        if batch.stage is Stage.BEGIN:
            self._taker.reset(keep_history=batch.run == self._run)
            self._run = batch.run
        take = self._taker.take
        for now_ns, entry in batch.records:
            take(now_ns, entry)
