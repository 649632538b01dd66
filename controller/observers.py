"""Observers receive a snapshot of the cluster and then the event stream (`messages.observing`).

Observers must not slow requests down. Without an observer nothing is done. Records leave in batches, never
one by one. A snapshot is made once for all observers that wait for one, in slices of a fraction of a
millisecond that take at most a tenth of the controller's time. The connection of an observer that reads too
slowly is ended, so that what waits for it is bounded. An error in this module ends the observers' sessions
and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler, SnapshotStream
from mainspring.controller.outbox import Dropped, Outbox, Wire
from mainspring.controller.peer_lifecycle import name_fault, protocol_detail
from mainspring.controller.sessions import PeerSession
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import encode
from mainspring.messages.learning import LearningOfGateways
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.observing import (
    OBSERVER_VERSION,
    Clocks,
    Devices,
    ObserverHello,
    Records,
    Stage,
    Unready,
    WorkerClock,
)
from mainspring.messages.operating import Operated
from mainspring.messages.peers import Goodbye, Welcome
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from mainspring.transport.bounds import Delivery

_LOGGER = logging.getLogger(__name__)
NEVER_NS: Final = 1 << 62
PAUSES: Final = 9
"""The pause after a slice of a snapshot, as a multiple of the time that making it took."""
AHEAD_BYTES: Final = 1 << 20
"""An observer for which more than this waits gets no further slice."""
PATIENCE_NS: Final = 1_000_000_000
"""Time that the other observers wait with a slow one; then it waits for a snapshot of its own."""
DEVICES_NS = 1_000_000_000
"""The time between two looks at what workers' GPUs say, which they do once a second."""
RECHECK_NS: Final = 10_000_000
"""The time between two looks at whether a slow observer has caught up."""


class Observer(PeerSession):
    """The session of one observer."""

    kind = "observer"

    def __init__(self, peer: bytes, name: str, number: int, now_ns: int) -> None:
        super().__init__(peer, name, number, now_ns)
        self.informed = False
        """True if its snapshot has begun, so that it receives the records that follow."""
        self.told: dict[type, Devices | Unready | LearningOfGateways] = {}
        """Last report of each kind that it was sent."""


class Observers:
    """Begins and ends the sessions of observers, and sends them snapshots and records."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        wire: Wire,
        outbox: Outbox,
        dropped: Dropped,
        devices: Callable[[], dict[str, DeviceHealth]] = dict,
        clock: Callable[[], int] = time.monotonic_ns,
        clocks: Callable[[int], dict[str, WorkerClock]] = lambda _now_ns: {},
        unready: Callable[[int], Unready] = lambda _now_ns: Unready(),
        learnt: Callable[[], LearningOfGateways] = LearningOfGateways,
    ) -> None:
        """``devices`` returns what workers' GPUs say, ``clocks`` how their clocks go at an instant,
        ``unready`` what can't be counted on then, ``learnt`` what applications learnt; ``clock`` only
        measures how long slices take."""
        self.due_ns = NEVER_NS
        """The instant of the next `turn`."""
        self._config = config
        self._interval_ns = round(config.observer_interval_ms * 1e6)
        self._timeout_ns = round(config.observer_timeout_ms * 1e6)
        self._scheduler = scheduler
        self._wire = wire
        self._outbox = outbox
        self._dropped = dropped
        self._devices, self._clocks, self._unready, self._learnt = devices, clocks, unready, learnt
        self._devices_ns = 0
        """Instant at which the reports of workers' GPUs are looked at again."""
        self._clock = clock
        self._run = scheduler.run or time.time_ns()
        self._observers: dict[bytes, Observer] = {}
        self._number = 0
        self._snapshot: SnapshotStream | None = None
        self._receivers: dict[bytes, Observer] = {}
        """The observers that receive the snapshot under way."""
        self._stalled_ns: int | None = None
        """Instant since which a receiver has been too slow for the snapshot; None if all keep up."""
        self._batch_ns = self._slice_ns = NEVER_NS
        """Instants at which the next batch of records leaves, and at which the next slice is made."""

    def __len__(self) -> int:
        return len(self._observers)

    def find(self, peer: bytes) -> Observer | None:
        """Return the session of a peer."""
        return self._observers.get(peer)

    def hello(self, now_ns: int, peer: bytes, hello: ObserverHello) -> None:
        """Begin a session, which a snapshot follows, or refuse it."""
        self.forget(peer)
        fault = name_fault(hello.observer)
        if hello.protocol != OBSERVER_VERSION:
            detail = protocol_detail(hello.protocol, OBSERVER_VERSION)
            self._outbox.refuse(now_ns, peer, "protocol_mismatch", detail)
        elif fault is not None:
            self._outbox.refuse(now_ns, peer, "bad_message", f"the hello can't be used: {fault}")
        elif len(self._observers) >= self._config.max_observers:
            limit = self._config.max_observers
            detail = f"{limit} observers are connected, which is the bound (max_observers); close a console"
            self._outbox.refuse(now_ns, peer, "too_many_peers", detail)
        else:
            self._number += 1
            observer = Observer(peer, hello.observer, self._number, now_ns)
            self._observers[peer] = observer
            self._wire.send(peer, (encode(Welcome(PROTOCOL_VERSION, observer.number)),))
            _LOGGER.info("%s begins", observer)
            if len(self._observers) == 1:
                self._scheduler.settle()
                self._scheduler.observe(True)
                self._batch_ns = now_ns + self._interval_ns
            if self._snapshot is None:
                self._slice_ns = now_ns
        self._arm()

    def forget(self, peer: bytes) -> None:
        """End the session of a peer that has ceased to be an observer; its connection stays."""
        if self._observers.pop(peer, None) is not None:
            self._receivers.pop(peer, None)
            self._arm()

    def answer(self, observer: Observer, message: Operated) -> None:
        """Answer an operator's command."""
        if self._wire.send(observer.peer, (encode(message),)) is not Delivery.SENT:
            self.end(observer, "its connection ended")

    def end(self, observer: Observer, why: str) -> None:
        """End a session and its connection."""
        if self._observers.get(observer.peer) is not observer:
            return
        _LOGGER.info("%s ends: %s", observer, why)
        del self._observers[observer.peer]
        self._receivers.pop(observer.peer, None)
        self._wire.disconnect(observer.peer, why)
        self._arm()

    def turn(self, now_ns: int) -> None:
        """Send the records and the slice that are due."""
        try:
            self._scheduler.settle()
            if now_ns >= self._batch_ns or now_ns >= self._slice_ns:
                self._send_records(now_ns)
            if now_ns >= self._slice_ns:
                self._send_slice(now_ns)
            self._arm()
        except Exception:
            self._fail()

    def beat(self, now_ns: int) -> None:
        """Ping all observers, and end the sessions of those that have been silent for too long."""
        if not self._observers:
            return
        self.turn(now_ns)
        for observer in list(self._observers.values()):
            if now_ns - observer.heard_ns > self._timeout_ns:
                self.end(observer, f"silent for {(now_ns - observer.heard_ns) / 1e6:.0f} ms")
                continue
            if self._wire.send(observer.peer, (encode(observer.ping(now_ns)),)) is Delivery.GONE:
                self.end(observer, "its connection ended")
        self._tell(self._unready(now_ns))
        if now_ns >= self._devices_ns:
            self._devices_ns = now_ns + DEVICES_NS
            self._tell(Devices(self._devices()))
            self._tell(self._learnt())
            self._send_clocks(now_ns)

    def goodbye(self, now_ns: int, detail: str) -> None:
        """Send all observers the last records, and that the controller stops."""
        if self._observers:
            self._scheduler.settle()
            self._send_records(now_ns)
            for observer in self._observers.values():
                self._wire.send(observer.peer, (encode(Goodbye(detail)),))

    def _tell(self, report: Devices | Unready | LearningOfGateways) -> None:
        """Send a report to observers that are not slow, if they were told otherwise."""
        encoded = b""
        for observer in list(self._observers.values()):
            if observer.told.get(type(report)) == report or not observer.informed or self._slow(observer):
                continue
            observer.told[type(report)] = report
            encoded = encoded or encode(report)
            self._wire.send(observer.peer, (encoded,))

    def _send_clocks(self, now_ns: int) -> None:
        """Send observers that are not slow how workers' clocks go."""
        clocks = Clocks(self._clocks(now_ns))
        going = encode(clocks)
        for observer in list(self._observers.values()):
            if clocks.workers and observer.informed and not self._slow(observer):
                self._wire.send(observer.peer, (going,))

    def _send_records(self, now_ns: int) -> None:
        """Send the records since the last batch to the observers whose snapshot has begun."""
        self._batch_ns = now_ns + self._interval_ns
        if self._scheduler.records.waiting.count:
            body = self._scheduler.records.waiting.take()
            informed = [observer for observer in self._observers.values() if observer.informed]
            self._send(now_ns, informed, Stage.LIVE, body)

    def _send(self, now_ns: int, observers: list[Observer], stage: Stage, body: bytes) -> None:
        head = encode(Records(self._run, stage, now_ns))
        for observer in observers:
            waiting_bytes = self._wire.backlog_bytes(observer.peer)
            if waiting_bytes > self._config.observer_backlog_bytes:
                self._dropped.count("observer_too_slow")
                self.end(observer, f"it reads too slowly: {waiting_bytes:,} bytes wait for it")
            elif self._wire.send(observer.peer, (head, body)) is not Delivery.SENT:
                self.end(observer, "its connection ended")

    def _send_slice(self, now_ns: int) -> None:
        """Make and send the next slice of a snapshot, if an observer waits for one."""
        if not self._receivers:
            self._begin_snapshot()
        if self._snapshot is None or self._stalled(now_ns):
            waits = any(not observer.informed for observer in self._observers.values())
            self._slice_ns = now_ns + RECHECK_NS if self._receivers or waits else NEVER_NS
            return
        began_ns = self._clock()
        stage, body = self._snapshot.slice(now_ns)
        for observer in self._receivers.values():
            observer.informed = True
        self._send(now_ns, list(self._receivers.values()), stage, body)
        ended_ns = self._clock()
        self._slice_ns = ended_ns + PAUSES * (ended_ns - began_ns)
        if stage is Stage.END:
            self._snapshot, self._receivers = None, {}

    def _begin_snapshot(self) -> None:
        """Begin a snapshot for all observers that wait for one and read fast enough."""
        self._snapshot, self._receivers, self._stalled_ns = None, self._waiting(), None
        if self._receivers:
            header = SegmentHeader(FORMAT, self._run, False, time.time_ns(), self._scheduler.about)
            self._snapshot = SnapshotStream(header, self._scheduler.core.snapshot(), self._clock)

    def _waiting(self) -> dict[bytes, Observer]:
        """Return the observers that wait for a snapshot and read fast enough."""
        return {
            peer: observer
            for peer, observer in self._observers.items()
            if not (observer.informed or peer in self._receivers or self._slow(observer))
        }

    def _slow(self, observer: Observer) -> bool:
        return self._wire.backlog_bytes(observer.peer) > AHEAD_BYTES

    def _stalled(self, now_ns: int) -> bool:
        """Say whether the snapshot has to wait; an observer that delays the others too long is left out."""
        slow = [observer for observer in self._receivers.values() if self._slow(observer)]
        if not slow:
            self._stalled_ns = None
            return False
        if self._stalled_ns is None:
            self._stalled_ns = now_ns
        kept_waiting = len(slow) < len(self._receivers) or self._waiting()
        if kept_waiting and now_ns - self._stalled_ns >= PATIENCE_NS:
            for observer in slow:
                del self._receivers[observer.peer]
                observer.informed = False
            self._stalled_ns = None
        return True

    def _arm(self) -> None:
        """Set ``due_ns``; without an observer nothing is due, and records are no longer kept."""
        if self._observers:
            self.due_ns = min(self._batch_ns, self._slice_ns)
            return
        self._scheduler.observe(False)
        self._snapshot, self._receivers = None, {}
        self.due_ns = self._batch_ns = self._slice_ns = NEVER_NS

    def _fail(self) -> None:
        self._dropped.count("internal_error")
        _LOGGER.exception("could not send to observers; their sessions end")
        for observer in list(self._observers.values()):
            self.end(observer, "an error in the controller")
