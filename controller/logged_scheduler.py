"""The scheduler and its event log: every event that goes in and every command that comes out is logged.

Commands are sent before they are logged (`LoggedScheduler.settle`), and entries are kept until there are some
or a moment has passed, so that no request waits for the log.

An error inside the scheduler is a bug of Mainspring. It is counted, and logged with all that a person needs
to find it, and the controller continues: to stop would fail every request instead of one.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from mainspring.cluster.snapshot import Part
from mainspring.controller.outbox import Dropped
from mainspring.messages.actions import Command, DropWorker, Note, Reject, Sent
from mainspring.messages.events import Event, OperatorAsked, RequestArrived, Wakeup
from mainspring.messages.ids import first_action_id
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.observing import Stage
from mainspring.messages.operating import OperatorCommand
from mainspring.messages.queries import Chosen
from mainspring.messages.scaling import Provide
from mainspring.messages.status import ClusterStatus
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.actions import ActionCounts
from mainspring.telemetry.entries import Record, SegmentHeader
from mainspring.telemetry.log import EventLogWriter, encoded

SLICE_NS = 250_000
"""Time that making one slice of a snapshot takes, apart from the part with which the slice ends."""
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
"""First byte of a MessagePack array whose length takes 32 bits."""


class RecordArray:
    """Records ``[now_ns, entry]`` on their way to observers, as one MessagePack array."""

    def __init__(self) -> None:
        self.count = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(_ARRAY.size)

    def append(self, now_ns: int, entry: Any) -> None:
        """Add a record. Raises OverflowError, with nothing added, on a number beyond 64 bits."""
        before = len(self._buffer)
        try:
            self._encoder.encode_into((now_ns, entry), self._buffer, -1)
        except OverflowError:
            del self._buffer[before:]
            raise
        self.count += 1

    def append_all(self, records: Sequence[Record]) -> int:
        """Add records by one call of the encoder; return how many no record can hold."""
        data = encoded(self._encoder, records)
        if data is not None:
            self._buffer += data
            self.count += len(records)
            return 0
        left_out = 0
        for now_ns, entry in records:
            try:
                self.append(now_ns, entry)
            except OverflowError:
                left_out += 1
        return left_out

    def take(self) -> bytes:
        """Return the array, and begin another."""
        _ARRAY.pack_into(self._buffer, 0, _ARRAY_32, self.count)
        whole = bytes(self._buffer)
        self._buffer = bytearray(_ARRAY.size)
        self.count = 0
        return whole


class SharedRecords:
    """The target of `LoggedScheduler`'s records: the log, and the observers' next message, if any."""

    def __init__(self, log: EventLogWriter | None) -> None:
        self.observed = False
        """True if there are observers."""
        self.waiting = RecordArray()
        """The records of the observers' next message."""
        self._log = log

    def append_all(self, records: Sequence[Record]) -> int:
        """Add records; Wakeups, of which each turn of the loop has one, only to the log.

        Returns how many no record can hold, for a number beyond 64 bits.
        """
        left_out = 0
        if self.observed:
            left_out = self.waiting.append_all([each for each in records if type(each[1]) is not Wakeup])
        return left_out if self._log is None else self._log.append_all(records)


class SnapshotStream:
    """One snapshot under way, made in slices between the turns of the controller's loop."""

    def __init__(self, header: SegmentHeader, parts: Iterator[Part], clock: Callable[[], int]) -> None:
        """``parts``: the snapshot's parts behind the header; ``clock`` measures how long they take."""
        self.stage = Stage.BEGIN
        """The stage of the next slice; `Stage.LIVE` once there is none."""
        self._header = header
        self._snapshot = parts
        self._clock = clock
        self._records = RecordArray()

    def slice(self, now_ns: int) -> tuple[Stage, bytes]:
        """Return the next slice: its stage, and its records."""
        until_ns = self._clock() + SLICE_NS
        stage = self.stage
        if stage is Stage.BEGIN:
            self._records.append(now_ns, self._header)
        self.stage = Stage.PART
        for part in self._snapshot:
            for entry in part:
                # The log can't hold such a record either, and counts it.
                with contextlib.suppress(OverflowError):
                    self._records.append(now_ns, entry)
            if self._clock() >= until_ns:
                return stage, self._records.take()
        # The first slice and the last are different messages, however short the snapshot is.
        self.stage = Stage.END if stage is Stage.BEGIN else Stage.LIVE
        return (stage if stage is Stage.BEGIN else Stage.END), self._records.take()


_LOGGER = logging.getLogger(__name__)
_WAKEUP: Final = Wakeup()
_WITHOUT_ACTION: Final = (Reject, DropWorker, Provide, Chosen)
SETTLE_ENTRIES: Final = 128
"""Entries that are logged without waiting for `SETTLE_NS`."""
SETTLE_NS: Final = 2_000_000
"""Time for which entries are kept while events come."""
ERROR_PAUSE_NS: Final = 10_000_000
"""The time after an error in ``schedule`` until the next call if no event arrives."""


def about(config: SchedulerConfig) -> dict[str, object]:
    """Return the content of the event log's header, from which a replay builds the same scheduler."""
    return {"scheduler": msgspec.to_builtins(config)}


class LoggedScheduler:
    """A `Scheduler` with its log: none of the methods raises what a bug in the scheduler raises."""

    def __init__(
        self, scheduler: Scheduler, log: EventLogWriter | None, dropped: Dropped, metrics_models: int = 50
    ) -> None:
        """``metrics_models``: as `ControllerConfig.metrics_models`."""
        self.dirty = False
        """True if an event has gone in since the last ``schedule``."""
        self.last_action_id = first_action_id(scheduler.config.epoch)
        """The highest action id that has come out so far."""
        self.records = SharedRecords(log)
        """The records since the observers' last batch, while there are observers."""
        self.requests = 0
        """Requests that came."""
        self.core = scheduler
        """The scheduler, for questions that change nothing."""
        self.cluster = scheduler.cluster
        """The state, to be read only."""
        self._log = log
        self._dropped = dropped
        self._actions = ActionCounts(metrics_models)
        self._paused_until_ns = 0
        self._unwritten: list[Record] = []
        self._sent: list[Sent] = []

    def handle(self, now_ns: int, event: Event) -> None:
        """Hand an event to the scheduler; `settle` logs it."""
        self.dirty = True
        self.requests += type(event) is RequestArrived
        self._unwritten.append((now_ns, event))
        try:
            self.core.handle(now_ns, event)
        except Exception:
            self._report("handle", now_ns, event)
        self._decided(now_ns, self.core.taken())

    def refusal(self, command: OperatorCommand) -> str | None:
        """Return why an operator's command can't be carried out now, or None if it can."""
        try:
            return self.core.refusal(command)
        except Exception:
            self._report("refusal", 0, None)
            return "the scheduler failed at looking at it; see the controller's log"

    def asked(self, about: tuple[str, str]) -> OperatorAsked | None:
        """Return what operators set about a subject (`messages.operating.subject`), as it counts now."""
        found = self.cluster.operations.get(about)
        return None if found is None else found[1]

    def due(self, now_ns: int) -> bool:
        """Say whether it is time to call ``schedule``."""
        if self.dirty:
            return True
        wakeup_ns = self.next_wakeup_ns()
        return wakeup_ns is not None and wakeup_ns <= now_ns

    def schedule(self, now_ns: int) -> list[Sent]:
        """Return the commands that are to be carried out now; `settle` logs them."""
        self.handle(now_ns, _WAKEUP)
        self.dirty = False
        try:
            commands = self.core.schedule(now_ns)
        except Exception:
            self._paused_until_ns = now_ns + ERROR_PAUSE_NS
            self._report("schedule", now_ns, None)
            return []
        self._decided(now_ns, commands)
        sent, self._sent = self._sent, []
        return sent

    def _decided(self, now_ns: int, commands: list[Command]) -> None:
        """Have commands logged behind what they follow; the next ``schedule`` returns those to be sent."""
        for command in commands:
            self._unwritten.append((now_ns, command))
            if isinstance(command, Note):
                continue
            self._sent.append(command)
            if not isinstance(command, _WITHOUT_ACTION):
                self.last_action_id = max(self.last_action_id, command.action_id)

    def unsettled(self, now_ns: int) -> bool:
        """Say whether it is time to call `settle`; `flush` does so, too."""
        kept = self._unwritten
        return bool(kept) and (len(kept) >= SETTLE_ENTRIES or now_ns - kept[0][0] >= SETTLE_NS)

    def settle(self) -> None:
        """Log and count, in their order, the events and commands since the last call."""
        if not self._unwritten:
            return
        entries, self._unwritten = self._unwritten, []
        self._actions.take_all(entries)
        left_out = self.records.append_all(entries)
        if left_out:
            self._dropped.count("not_loggable", left_out)

    def observe(self, observed: bool) -> None:
        """Begin to keep records for observers in ``records``, or stop keeping them."""
        self.records.observed = observed
        if not observed:
            self.records.waiting.take()

    @property
    def run(self) -> int | None:
        """The log's number of this run of the controller; None without a log."""
        return None if self._log is None else self._log.run

    @property
    def about(self) -> dict[str, object]:
        """The content of the log's header."""
        return about(self.core.config)

    def next_wakeup_ns(self) -> int | None:
        """Return when ``schedule`` is to be called even if no event arrives; None for never."""
        wakeup_ns = self.core.next_wakeup_ns()
        return None if wakeup_ns is None else max(wakeup_ns, self._paused_until_ns)

    def status(self) -> ClusterStatus:
        """Return the scheduler's status, with the number of unlogged records."""
        self.settle()
        status = self.core.status()
        if self._log is None or self._log.problem is None:
            return status
        return msgspec.structs.replace(
            status, dropped_messages={f"event log off: {self._log.problem}": self._log.dropped}
        )

    def metrics(self, now_ns: int, models_served: int) -> ClusterMetrics:
        """Return the cluster's metrics for a gateway that is scraped."""
        self.settle()
        found = self._actions.metrics(now_ns, models_served, self.cluster)
        tenants = self.core.tenants()
        return msgspec.structs.replace(found, tenants=tenants) if tenants else found

    def flush(self) -> None:
        """Hand what the log has buffered to the operating system."""
        self.settle()
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """Close the log."""
        self.settle()
        if self._log is not None:
            self._log.close()

    def _report(self, call: str, now_ns: int, event: Event | None) -> None:
        self._dropped.count("scheduler_error")
        _LOGGER.critical(
            "the scheduler failed in %s(now_ns=%d) on %s; its state may be wrong from here on. Please report "
            "this with the event log.",
            call,
            now_ns,
            event,
            exc_info=True,
        )
