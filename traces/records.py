"""The outcome of each request, in columns: about 80 bytes a request, in chunks that never move.

The replayer and the simulator both fill this; `traces.report` reads it. A request's key is its index, so
that an answer finds its row without a table of what is in flight.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.traces.arrival import SECOND_NS

CHUNK = 65_536
MAX_REQUESTS = 100_000_000
"""Most requests of a run, of about 8 GB; a run beyond it stops with what it has."""
LOOK_NS = SECOND_NS // 4
"""Time between two looks at the requests without a reply."""

PENDING, OUTPUTS, UNSENT, EXPIRED, UNANSWERED, FIRST_REASON = 0, 1, 2, 3, 4, 5
"""Outcomes: without a reply; answered with outputs; taken by no gateway; not sent, because its deadline had
passed; without a reply when the run ended, which was too early to expect one; from `FIRST_REASON` up,
answered with the error whose reason has this index in `REASONS`."""
REASONS = tuple(Reason)
_REASON_OUTCOME = {reason: FIRST_REASON + index for index, reason in enumerate(REASONS)}
NO_DEADLINE = np.iinfo(np.int64).max
"""Stands for None in ``slo_ns`` and ``left_ns``."""

SENT = np.dtype(
    [("intended_ns", "<i8"), ("sent_ns", "<i8"), ("slo_ns", "<i8"), ("model", "<i4"), ("rows", "<i4")]
)
"""Instants are from the start of the workload."""
REPLIED = np.dtype(
    [
        ("replied_ns", "<i8"),
        ("left_ns", "<i8"),
        ("gateway_ns", "<i8"),
        ("execute_ns", "<i8"),
        ("queue_ns", "<i8"),
        ("batch_size", "<i4"),
        ("worker", "<i2"),
        ("cold_start", "?"),
        ("outcome", "u1"),
    ]
)
# The same layouts for writing one row: ten times as fast as assigning to a row of a numpy array.
_SENT_ROW = struct.Struct("<qqqii")
_REPLIED_ROW = struct.Struct("<qqqqqih?B")
_INTENDED = struct.Struct("<q")
_MODEL = struct.Struct("<24xi")
_CALL = struct.Struct("<q8xq")
"""``intended_ns`` and ``slo_ns``."""
_SENT_BYTES, _REPLIED_BYTES = SENT.itemsize, REPLIED.itemsize
_OUTCOME_OFFSET = _REPLIED_BYTES - 1

Columns: TypeAlias = npt.NDArray[np.void]


class RecordsFull(Exception):
    """The run has as many requests as are recorded at most."""


class Records:
    """Columns of all requests of a run."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._sent: list[bytearray] = []
        self._replied: list[bytearray] = []
        self._count = 0
        self._answered = 0
        self._models: dict[str, int] = {}
        self._names: list[str] = []
        self._workers: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the requested models; a request's ``model`` is an index of it."""
        return tuple(self._models)

    @property
    def in_flight(self) -> int:
        """Requests without an answer so far."""
        return self._count - self._answered

    def sent(self, intended_ns: int, sent_ns: int, model: str, rows: int, slo_ns: int | None) -> int:
        """Record a request and return its key; raise `RecordsFull` at the limit."""
        key = self._count
        index = key % CHUNK
        if key >= self._max_requests:
            raise RecordsFull(f"the run has {key} requests, as many as are recorded at most")
        if index == 0:
            self._sent.append(bytearray(CHUNK * _SENT_BYTES))
            self._replied.append(bytearray(CHUNK * _REPLIED_BYTES))
        number = self._models.setdefault(model, len(self._models))
        if number == len(self._names):
            self._names.append(model)
        left_ns = NO_DEADLINE if slo_ns is None else slo_ns
        _SENT_ROW.pack_into(self._sent[-1], index * _SENT_BYTES, intended_ns, sent_ns, left_ns, number, rows)
        self._count += 1
        return key

    def pending(self, key: int) -> bool:
        """Return whether ``key`` is a request that has no answer yet."""
        if not 0 <= key < self._count:
            return False
        return self._replied[key // CHUNK][key % CHUNK * _REPLIED_BYTES + _OUTCOME_OFFSET] == PENDING

    def outputs(self, key: int, replied_ns: int, timing: Timing) -> bool:
        """Record that a pending request was answered with outputs; return whether in its caller's time."""
        worker = self._workers.setdefault(timing.worker, len(self._workers))
        left_ns = NO_DEADLINE if timing.left_ns is None else timing.left_ns
        _REPLIED_ROW.pack_into(
            self._replied[key // CHUNK], key % CHUNK * _REPLIED_BYTES,
            replied_ns, left_ns, timing.total_ns, timing.execute_ns, timing.queue_ns,
            timing.batch_size, worker, timing.cold_start, OUTPUTS,
        )  # fmt: skip
        self._answered += 1
        intended_ns, slo_ns = _CALL.unpack_from(self._sent[key // CHUNK], key % CHUNK * _SENT_BYTES)
        return bool(replied_ns - intended_ns <= slo_ns)

    def error(self, key: int, replied_ns: int, reason: Reason) -> None:
        """Record that a pending request was answered with an error."""
        self._failed(key, replied_ns, _REASON_OUTCOME[reason])

    def unsent(self, key: int) -> None:
        """Record that a pending request could not be handed to the gateway."""
        self._failed(key, 0, UNSENT)

    def expired(self, key: int) -> None:
        """Record that a pending request was not sent because its deadline had passed."""
        self._failed(key, 0, EXPIRED)

    def unanswered(self, key: int) -> None:
        """Record that the run ended while a reply to a pending request could still come."""
        self._failed(key, 0, UNANSWERED)

    def without_reply(self) -> Iterator[tuple[int, Columns]]:
        """Yield the key and the `SENT` row of each request that has no answer so far."""
        for number, (sent, replied) in enumerate(zip(self._sent, self._replied, strict=True)):
            first = number * CHUNK
            count = min(self._count - first, CHUNK)
            # Copies, as what follows may change the rows while a caller goes through them.
            outcome = np.frombuffer(bytes(replied), REPLIED, count)["outcome"]
            rows: Columns = np.frombuffer(bytes(sent), SENT, count)
            for index in np.flatnonzero(outcome == PENDING).tolist():
                yield first + index, rows[index]

    def _failed(self, key: int, replied_ns: int, outcome: int) -> None:
        row = self._replied[key // CHUNK]
        _REPLIED_ROW.pack_into(
            row, key % CHUNK * _REPLIED_BYTES, replied_ns, 0, 0, 0, 0, 0, -1, False, outcome
        )
        self._answered += 1

    def model(self, key: int) -> str:
        """The model of a request."""
        number: int = _MODEL.unpack_from(self._sent[key // CHUNK], key % CHUNK * _SENT_BYTES)[0]
        return self._names[number]

    def intended_ns(self, key: int) -> int:
        """Return the instant at which the request was meant to be sent."""
        intended_ns: int = _INTENDED.unpack_from(self._sent[key // CHUNK], key % CHUNK * _SENT_BYTES)[0]
        return intended_ns

    def columns(self) -> tuple[Columns, Columns]:
        """Return all requests as arrays of dtype `SENT` and `REPLIED`, by key (copies)."""
        if not self._count:
            return np.zeros(0, SENT), np.zeros(0, REPLIED)
        sent: Columns = np.frombuffer(b"".join(self._sent), SENT, self._count)
        return sent, np.frombuffer(b"".join(self._replied), REPLIED, self._count)


class Stragglers:
    """Decides when a run whose sending has ended is over. Instants are from the start of the workload.

    Every request has an instant from which its reply is overdue: its deadline plus a guard, as in `Client`. A
    run waits until that instant has passed for every request without a reply and no reply has come for a
    guard's length: while replies still come, others may stand behind them in the sockets. A request without a
    reply then is lost. Where the wait is cut short, a request whose reply could still come is *unanswered*,
    which says nothing of the cluster.
    """

    def __init__(
        self, records: Records, *, guard_ns: int, best_effort_ns: int, longest_ns: int, ended_ns: int
    ) -> None:
        """``ended_ns`` is when sending ended, ``longest_ns`` the longest wait from then on.

        ``guard_ns`` counts from a deadline, ``best_effort_ns`` from the sending of a request without one.
        """
        self._records = records
        self._guard_ns = guard_ns
        self._best_effort_ns = best_effort_ns
        self._limit_ns = ended_ns + longest_ns
        self._last_reply_ns = ended_ns
        self._overdue_ns = 0
        self._look_ns = ended_ns

    def replied(self, now_ns: int) -> None:
        """Note that a reply came."""
        self._last_reply_ns = now_ns

    def next_ns(self) -> int:
        """Return when to call `over` again if no reply comes."""
        return min(self._limit_ns, self._look_ns)

    def over(self, now_ns: int) -> bool:
        """Return whether nothing more is waited for; then what a reply may still come to is `unanswered`."""
        if not self._records.in_flight:
            return True
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            self._overdue_ns = max(self._from_ns(row) for _, row in self._records.without_reply())
        quiet = now_ns - self._last_reply_ns >= self._guard_ns
        if quiet and now_ns >= self._overdue_ns:
            return True
        if now_ns < self._limit_ns:
            return False
        for key, row in self._records.without_reply():
            if not quiet or now_ns < self._from_ns(row):
                self._records.unanswered(key)
        return True

    def _from_ns(self, row: Columns) -> int:
        """Return the instant from which a request's reply is overdue."""
        sent_ns, slo_ns = int(row["sent_ns"]), int(row["slo_ns"])
        if slo_ns == NO_DEADLINE:
            return sent_ns + self._best_effort_ns
        return int(row["intended_ns"]) + slo_ns + self._guard_ns
