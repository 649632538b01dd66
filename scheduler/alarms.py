"""The scheduler's timers: one heap of instants, each with what it is for.

An alarm can't be taken back: its handler checks what is true then. Only the alarms of requests that left
their queue, and those of workers that are kept free until another instant or no more, are known to be
pointless; `Alarms` skips those at the top of the heap, and sweeps requests' from the rest of the heap once
most alarms in it are pointless.

Beside them stand the heaps of objects that they, and the policies' queues, are kept in: entries come and go
several times for each request. Compiled, a comparison of two entries is one of plain numbers, where `heapq`
would compare tuples of objects.
"""

from __future__ import annotations

import enum
from typing import Final, cast

from mypy_extensions import i64

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.workers import Worker


class Entry:
    """Something in a heap."""

    __slots__ = ()

    def precedes(self, other: Entry) -> bool:
        """Return whether it comes out before another one of its class."""
        raise NotImplementedError


class Keyed(Entry):
    """Something in a heap by a key and, among equal ones, a number."""

    __slots__ = ("key", "number")

    def __init__(self, key: int, number: int) -> None:
        self.key: i64 = key
        self.number: i64 = number

    def precedes(self, other: Entry) -> bool:
        """Return whether its key is lower, or its number if the keys are equal."""
        assert isinstance(other, Keyed)
        return self.key < other.key or (self.key == other.key and self.number < other.number)


class Weighted(Entry):
    """The same by a key that need not be whole."""

    __slots__ = ("key", "number")

    def __init__(self, key: float, number: int) -> None:
        self.key = key
        self.number: i64 = number

    def precedes(self, other: Entry) -> bool:
        """Return whether its key is lower, or its number if the keys are equal."""
        assert isinstance(other, Weighted)
        return self.key < other.key or (self.key == other.key and self.number < other.number)


def push(heap: list[Entry], entry: Entry) -> None:
    """Enter an entry."""
    heap.append(entry)
    place: i64 = len(heap) - 1
    while place > 0:
        parent: i64 = (place - 1) >> 1
        above = heap[parent]
        if not entry.precedes(above):
            break
        heap[place] = above
        place = parent
    heap[place] = entry


def pop(heap: list[Entry]) -> Entry:
    """Take the lowest entry out; raise IndexError if there is none."""
    last = heap.pop()
    if not heap:
        return last
    first = heap[0]
    _sink(heap, 0, last)
    return first


def order(heap: list[Entry]) -> None:
    """Make a heap of a list in any order."""
    place: i64 = (len(heap) >> 1) - 1
    while place >= 0:
        _sink(heap, place, heap[place])
        place -= 1


def _sink(heap: list[Entry], place: i64, entry: Entry) -> None:
    """Put an entry at a place, or below it in the place of lower ones, which move up."""
    size: i64 = len(heap)
    child: i64 = 2 * place + 1
    while child < size:
        below = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if other.precedes(below):
                below = other
                child += 1
        if not below.precedes(entry):
            break
        heap[place] = below
        place = child
        child = 2 * place + 1
    heap[place] = entry


SWEPT_FROM: Final = 64
"""A heap of fewer pointless alarms is left alone."""


class Alarm(enum.IntEnum):
    """The purposes of timers."""

    EXPIRE = 0
    """A request may have become hopeless."""
    EXEC = 1
    """A worker's EXEC executor may need work."""
    LOAD = 2
    """A worker's LOAD executor has room again."""
    RETRY = 3
    """Missed models may find room."""
    WATCH = 4
    """A worker may owe a result for too long."""
    POLICY = 5
    """The policy asked for it."""
    STALL = 6
    """The action that an executor runs may take far longer than predicted."""
    HOLD = 7
    """An EXEC executor was kept free until now (`WorkerTimers.hold_ns`)."""
    SCALE = 8
    """Workers that are to leave may be ready to."""
    AGAIN = 9
    """A call has left something to be done; to come back is all."""


class WorkerTimers:
    """The scheduler's plans for a worker: the alarms that are set, and until when EXEC is kept free."""

    __slots__ = (
        "exec_ns",
        "held_for",
        "held_until_ns",
        "hold_ns",
        "load_ns",
        "stall_ns",
        "watched",
        "worker",
    )

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.exec_ns: int | None = None
        """Time of the nearest alarm that looks at the EXEC executor."""
        self.load_ns: int | None = None
        """Time of the nearest alarm that looks at the LOAD executor."""
        self.held_until_ns = 0
        """End of the time for which the policy keeps the EXEC executor free for a batch that is to grow."""
        self.hold_ns: int | None = None
        """Time of the alarm at the end of that, unless something was sent meanwhile."""
        self.held_for: Model | None = None
        """The model of that batch, if other workers that hold the model would wait for it too."""
        self.stall_ns: int | None = None
        """Time of the nearest alarm that looks for actions that take far longer than predicted."""
        self.watched = False
        """True if an alarm will look for owed results."""


class _Set(Keyed):
    """An alarm that is set, by its instant and its number."""

    __slots__ = ("alarm", "subject")

    def __init__(
        self, when_ns: int, number: int, alarm: Alarm, subject: Request | WorkerTimers | None
    ) -> None:
        super().__init__(when_ns, number)
        self.alarm = alarm
        """Its purpose."""
        self.subject = subject
        """The request or worker that it is about."""


class Alarms:
    """Alarms by instant; those of the same instant in the order in which they were set."""

    __slots__ = ("_count", "_entries", "_others", "_sweep_from")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._count = 0
        self._others = 0
        """Alarms that are not about requests."""
        self._sweep_from = SWEPT_FROM
        """The length below which another sweep would not pay."""

    def __len__(self) -> int:
        return len(self._entries)

    def set_expiry(self, when_ns: int, request: Request, queued: int) -> None:
        """Ask for `Alarm.EXPIRE`; ``queued`` is how many requests are in any queue.

        That number bounds how many alarms of requests have a purpose (a request that was tried again may
        have two), and so says when to sweep.
        """
        self._count += 1
        entries = self._entries
        push(entries, _Set(when_ns, self._count, _EXPIRE, request))
        if len(entries) > self._sweep_from and len(entries) > 2 * (queued + self._others) + SWEPT_FROM:
            self._sweep()

    def set(self, when_ns: int, alarm: Alarm, subject: WorkerTimers | None = None) -> None:
        """Ask for any other alarm."""
        self._count += 1
        self._others += 1
        push(self._entries, _Set(when_ns, self._count, alarm, subject))

    def next_ns(self) -> int | None:
        """Return the nearest alarm's instant."""
        return cast(_Set, self._entries[0]).key if self._entries else None

    def drop_pointless(self) -> None:
        """Drop the nearest alarms that are pointless, so that no turn is taken for them.

        It is done once a turn and not where somebody asks for the next one: a request whose alarm was dropped
        may be queued again, and a log that is decided again must drop the same ones.
        """
        entries = self._entries
        while entries:
            first = cast(_Set, entries[0])
            subject = first.subject
            if isinstance(subject, Request):
                if subject.place is _QUEUED:
                    return
            elif first.alarm is not _HOLD or (subject is not None and subject.hold_ns == first.key):
                return
            else:
                self._others -= 1
            pop(entries)

    def take(self, now_ns: int) -> tuple[Alarm, Request | WorkerTimers | None] | None:
        """Take out the next alarm that is due, if there is one."""
        entries = self._entries
        while entries:
            first = cast(_Set, entries[0])
            if first.key > now_ns:
                break
            pop(entries)
            alarm, subject = first.alarm, first.subject
            if alarm is _EXPIRE:
                return alarm, subject
            self._others -= 1
            if alarm is _HOLD and isinstance(subject, WorkerTimers) and subject.hold_ns != first.key:
                continue
            return alarm, subject
        return None

    def _sweep(self) -> None:
        """Drop the alarms of requests that are not queued any more."""
        kept: list[Entry] = []
        for entry in self._entries:
            subject = cast(_Set, entry).subject
            if not isinstance(subject, Request) or subject.place is _QUEUED:
                kept.append(entry)
        order(kept)
        self._entries = kept
        self._sweep_from = len(self._entries) * 3 // 2 + SWEPT_FROM


_EXPIRE: Final = Alarm.EXPIRE
_HOLD: Final = Alarm.HOLD
_QUEUED: Final = Place.QUEUED
