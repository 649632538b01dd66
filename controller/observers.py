"""Who watches: observers get the event stream, behind a picture of how things stand (`messages.observing`).

Nothing here may cost anybody who is served. While there is no observer there is nothing to do. Records leave
in batches, never one by one; a picture is made in slices of a fraction of a millisecond that take a tenth of
the controller's time, once for all who wait for one; and who reads too slowly is cut off, so that what waits
is bounded. A fault in here ends the observers' sessions and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from mainspring.controller.config import ControllerConfig
from mainspring.controller.counters import Dropped
from mainspring.controller.feed import LoggedScheduler
from mainspring.controller.members import name_fault, protocol_detail
from mainspring.controller.painting import Painting
from mainspring.controller.post import Post, Transport
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import encode
from mainspring.messages.observing import ObserverHello, Records, Stage
from mainspring.messages.operating import Operated
from mainspring.messages.peers import Goodbye, Ping, Welcome
from mainspring.telemetry.log import FORMAT, SegmentHeader
from mainspring.transport.bounds import Delivery

_LOGGER = logging.getLogger(__name__)
NEVER_NS = 1 << 62
PAUSES = 9
"""After a slice of a picture, for how many times as long as it took no other one is made."""
AHEAD_BYTES = 1 << 20
"""As long as more than this waits for an observer, it gets no further slice."""
PATIENCE_NS = 1_000_000_000
"""For how long the others wait with it; then it waits for a picture of its own."""
RECHECK_NS = 10_000_000
"""When it is looked again whether a slow one has caught up."""


class Wire(Transport, Protocol):
    """What observers need of the socket, beside what the post needs."""

    def send_parts(self, peer: bytes, parts: tuple[bytes, bytes]) -> Delivery:
        """Send one message of several parts, without waiting and without raising."""

    def backlog_bytes(self, peer: bytes) -> int:
        """Return how much waits for a peer."""

    def disconnect(self, peer: bytes, why: str) -> None:
        """End the connection to a peer; what waits for it is forgotten."""


class Observer:
    """One session."""

    def __init__(self, routing_id: bytes, name: str, number: int, now_ns: int) -> None:
        self.routing_id = routing_id
        self.name = name
        self.number = number
        self.heard_ns = now_ns
        """When something came of it last."""
        self.pings = 0
        self.told = False
        """Whether a picture for it has begun, so that it gets what happens."""

    def __str__(self) -> str:
        return f"observer {self.name!r} (session {self.number})"


class Observers:
    """Begins and ends their sessions, and tells them what happens."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        wire: Wire,
        post: Post,
        dropped: Dropped,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``clock`` only measures how long slices of a picture take."""
        self.due_ns = NEVER_NS
        """When `turn` is to be called."""
        self._config = config
        self._interval_ns = round(config.observer_interval_ms * 1e6)
        self._timeout_ns = round(config.observer_timeout_ms * 1e6)
        self._scheduler = scheduler
        self._wire = wire
        self._post = post
        self._dropped = dropped
        self._clock = clock
        self._run = scheduler.run or time.time_ns()
        self._observers: dict[bytes, Observer] = {}
        self._number = 0
        self._painting: Painting | None = None
        self._painted: dict[bytes, Observer] = {}
        """Whom the picture under way is for."""
        self._held_up_ns: int | None = None
        """Since when one of them does not read fast enough for it."""
        self._batch_ns = self._slice_ns = NEVER_NS
        """When the next batch leaves, and the next slice is made."""

    def __len__(self) -> int:
        return len(self._observers)

    def find(self, routing_id: bytes) -> Observer | None:
        """Return the session of a routing id."""
        return self._observers.get(routing_id)

    def hello(self, now_ns: int, routing_id: bytes, hello: ObserverHello) -> None:
        """Begin a session, or refuse it; a picture follows."""
        self.forget(routing_id)
        fault = name_fault(hello.observer)
        if hello.protocol != PROTOCOL_VERSION:
            self._post.refuse(now_ns, routing_id, "protocol_mismatch", protocol_detail(hello.protocol))
        elif fault is not None:
            self._post.refuse(now_ns, routing_id, "bad_message", f"the hello is of no use: {fault}")
        elif len(self._observers) >= self._config.max_observers:
            limit = self._config.max_observers
            detail = f"{limit} observers are connected, which is the bound (max_observers); close a console"
            self._post.refuse(now_ns, routing_id, "too_many_peers", detail)
        else:
            self._number += 1
            observer = Observer(routing_id, hello.observer, self._number, now_ns)
            self._observers[routing_id] = observer
            self._wire.send(routing_id, encode(Welcome(PROTOCOL_VERSION, observer.number)))
            _LOGGER.info("%s begins", observer)
            if len(self._observers) == 1:
                self._scheduler.settle()
                self._scheduler.observe(True)
                self._batch_ns = now_ns + self._interval_ns
            if self._painting is None:
                self._slice_ns = now_ns
        self._arm()

    def forget(self, routing_id: bytes) -> None:
        """End the session of a peer that is none any more; its connection stays."""
        if self._observers.pop(routing_id, None) is not None:
            self._painted.pop(routing_id, None)
            self._arm()

    def answer(self, observer: Observer, message: Operated) -> None:
        """Tell an observer what became of what it asked for."""
        if self._wire.send(observer.routing_id, encode(message)) is not Delivery.SENT:
            self.end(observer, "its connection ended")

    def end(self, observer: Observer, why: str) -> None:
        """End a session and its connection."""
        if self._observers.get(observer.routing_id) is not observer:
            return
        _LOGGER.info("%s ends: %s", observer, why)
        del self._observers[observer.routing_id]
        self._painted.pop(observer.routing_id, None)
        self._wire.disconnect(observer.routing_id, why)
        self._arm()

    def turn(self, now_ns: int) -> None:
        """Do what is due: send what has happened, go on with a picture. Nothing may wait to be settled."""
        try:
            if now_ns >= self._batch_ns or now_ns >= self._slice_ns:
                self._tell(now_ns)
            if now_ns >= self._slice_ns:
                self._paint(now_ns)
            self._arm()
        except Exception:
            self._fail()

    def beat(self, now_ns: int) -> None:
        """Ping all; end the sessions of those that have been silent for long."""
        if not self._observers:
            return
        self.turn(now_ns)
        for observer in list(self._observers.values()):
            if now_ns - observer.heard_ns > self._timeout_ns:
                self.end(observer, f"silent for {(now_ns - observer.heard_ns) / 1e6:.0f} ms")
                continue
            observer.pings += 1
            if self._wire.send(observer.routing_id, encode(Ping(observer.pings, now_ns))) is Delivery.GONE:
                self.end(observer, "its connection ended")

    def goodbye(self, now_ns: int, detail: str) -> None:
        """Tell them what is still to be told, and that the controller leaves."""
        if self._observers:
            self._scheduler.settle()
            self._tell(now_ns)
            for observer in self._observers.values():
                self._wire.send(observer.routing_id, encode(Goodbye(detail)))

    def _tell(self, now_ns: int) -> None:
        """Send what has happened to those who know how things stood before."""
        self._batch_ns = now_ns + self._interval_ns
        if self._scheduler.records.waiting.count:
            body = self._scheduler.records.waiting.take()
            told = [observer for observer in self._observers.values() if observer.told]
            self._send(now_ns, told, Stage.LIVE, body)

    def _send(self, now_ns: int, observers: list[Observer], stage: Stage, body: bytes) -> None:
        head = encode(Records(self._run, stage, now_ns))
        for observer in observers:
            waiting_bytes = self._wire.backlog_bytes(observer.routing_id)
            if waiting_bytes > self._config.observer_backlog_bytes:
                self._dropped.count("observer_too_slow")
                self.end(observer, f"it reads too slowly: {waiting_bytes:,} bytes wait for it")
            elif self._wire.send_parts(observer.routing_id, (head, body)) is not Delivery.SENT:
                self.end(observer, "its connection ended")

    def _paint(self, now_ns: int) -> None:
        """Make the next slice of a picture, if somebody waits for one."""
        if not self._painted:
            self._begin_painting()
        if self._painting is None or self._held_up(now_ns):
            waits = any(not observer.told for observer in self._observers.values())
            self._slice_ns = now_ns + RECHECK_NS if self._painted or waits else NEVER_NS
            return
        began_ns = self._clock()
        stage, body = self._painting.slice(now_ns)
        for observer in self._painted.values():
            observer.told = True
        self._send(now_ns, list(self._painted.values()), stage, body)
        ended_ns = self._clock()
        self._slice_ns = ended_ns + PAUSES * (ended_ns - began_ns)
        if stage is Stage.END:
            self._painting, self._painted = None, {}

    def _begin_painting(self) -> None:
        """Begin a picture for all who wait for one and can take it."""
        self._painting, self._painted, self._held_up_ns = None, self._waiting(), None
        if self._painted:
            header = SegmentHeader(FORMAT, self._run, False, time.time_ns(), self._scheduler.about)
            self._painting = Painting(header, self._scheduler.picture(), self._clock)

    def _waiting(self) -> dict[bytes, Observer]:
        """Return those who wait for a picture and read what they get."""
        return {
            routing_id: observer
            for routing_id, observer in self._observers.items()
            if not (observer.told or routing_id in self._painted or self._slow(observer))
        }

    def _slow(self, observer: Observer) -> bool:
        return self._wire.backlog_bytes(observer.routing_id) > AHEAD_BYTES

    def _held_up(self, now_ns: int) -> bool:
        """Say whether the picture under way has to wait; who keeps others waiting for long is left out."""
        slow = [observer for observer in self._painted.values() if self._slow(observer)]
        if not slow:
            self._held_up_ns = None
            return False
        if self._held_up_ns is None:
            self._held_up_ns = now_ns
        kept_waiting = len(slow) < len(self._painted) or self._waiting()
        if kept_waiting and now_ns - self._held_up_ns >= PATIENCE_NS:
            for observer in slow:
                del self._painted[observer.routing_id]
                observer.told = False
            self._held_up_ns = None
        return True

    def _arm(self) -> None:
        """Say when something is due; with nobody there, nothing is, and nothing is kept."""
        if self._observers:
            self.due_ns = min(self._batch_ns, self._slice_ns)
            return
        self._scheduler.observe(False)
        self._painting, self._painted = None, {}
        self.due_ns = self._batch_ns = self._slice_ns = NEVER_NS

    def _fail(self) -> None:
        self._dropped.count("internal_error")
        _LOGGER.exception("failed at telling observers what happens; their sessions end")
        for observer in list(self._observers.values()):
            self.end(observer, "a fault of the controller")
