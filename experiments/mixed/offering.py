"""One client of the mixed cluster, which counts the replies to each request and checks every answer.

It speaks the messages themselves, so that a second reply or one that nobody asked for would be seen. In a
closed loop it finds what the cluster can do; in an open one it sends at given instants, whatever became of
the requests before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from mainspring.client.connection import Connection
from mainspring.experiments.bench.report import Figure
from mainspring.experiments.mixed.fleet import ERRATIC, STREAM, Judged, Question, Step, Stream, Subject
from mainspring.experiments.wild.reference import Arrays, compare
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import array_dtype
from mainspring.messages.peers import TensorHeader

STREAMS = 32
STREAM_SHARE = 0.3
GRACE_S = 15.0
_POLL_MS = 50.0
_FORMS = 64
"""Answers to one request that are remembered as right: batches of other sizes round otherwise."""


class Tally(msgspec.Struct):
    """Outcomes of the requests for one model."""

    name: str
    kind: str
    sent: int = 0
    in_time: int = 0
    late: int = 0
    """Replies of any kind that came after the deadline."""
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    wrong: int = 0
    problem: str = ""
    """The first wrong answer."""
    lost: int = 0
    latency_ms: list[float] = msgspec.field(default_factory=list)
    missed_s: list[float] = msgspec.field(default_factory=list)


class _Asked(msgspec.Struct):
    """A request in flight."""

    subject: int
    question: int
    sent_s: float
    stream: Stream | None = None
    step: Step | None = None


class Offering:
    """A connection, the requests in flight on it, and what became of the others."""

    def __init__(self, subjects: Sequence[Subject], slo_s: float | None, seed: int) -> None:
        self._subjects, self._slo_s = subjects, slo_s
        self.tallies = [Tally(each.name, each.kind) for each in subjects]
        self.streams = [Stream(number) for number in range(STREAMS)]
        self.twice = 0
        """Replies to what was not in flight."""
        self.behind_s: list[float] = []
        self.began_s = 0.0
        self.served_by: dict[str, float] = {}
        self.returned_s: dict[str, float] = {}
        self._random = np.random.default_rng(seed)
        self._plain = [index for index, each in enumerate(subjects) if each.kind != STREAM]
        self._streamed = next(index for index, each in enumerate(subjects) if each.kind == STREAM)
        self._turns: Counter[int] = Counter()
        self._key = 0
        self._out: dict[int, _Asked] = {}
        self._right: dict[tuple[int, int], set[bytes]] = {}

    def closed_loop(self, connection: Connection, in_flight: int, seconds: float) -> float:
        """Keep so many requests in flight for so long; return the right answers a second."""
        begin_s = time.monotonic()
        while (now_s := time.monotonic()) < begin_s + seconds:
            while len(self._out) < in_flight:
                self._ask(connection)
            connection.poll(_POLL_MS)
            self._receive(connection)
        answers = sum(tally.in_time for tally in self.tallies)
        self._drain(connection)
        return answers / (now_s - begin_s)

    def open_loop(self, connection: Connection, instants: Sequence[float]) -> None:
        """Send a request at each instant, in seconds from now, and wait until all have their reply."""
        self.began_s = time.monotonic()
        for instant in instants:
            due_s = self.began_s + instant
            while (left_s := due_s - time.monotonic()) > 0:
                # A poll's resolution is a millisecond.
                if left_s >= 2e-3:
                    connection.poll(int(left_s * 1e3) - 1)
                else:
                    time.sleep(left_s)
                self._receive(connection)
            self.behind_s.append(time.monotonic() - due_s)
            self._ask(connection)
        self._drain(connection)

    def _ask(self, connection: Connection) -> None:
        streamed = self._random.random() < STREAM_SHARE
        stream = self._next_stream() if streamed else None
        index = self._streamed if stream else int(self._random.choice(self._plain))
        subject, self._key = self._subjects[index], self._key + 1
        question = self._turns[index] % len(subject.questions)
        self._turns[index] += 1
        inputs = subject.questions[question].inputs
        now_s = time.monotonic()
        step = stream.step(inputs, now_s) if stream else None
        message = InferRequest(
            self._key,
            subject.name,
            tuple([TensorHeader(name, array.dtype.name, array.shape) for name, array in inputs.items()]),
            None if self._slo_s is None else round(self._slo_s * 1e9),
            sequence_id=stream.sequence_id if stream else 0,
            sequence_start=step is not None and step.start,
        )
        self._out[self._key] = _Asked(index, question, now_s, stream, step)
        self.tallies[index].sent += 1
        connection.send(message, [*inputs.values()])

    def _next_stream(self) -> Stream | None:
        for _ in self.streams:
            self._turns[-1] += 1
            stream = self.streams[self._turns[-1] % len(self.streams)]
            if stream.ready:
                return stream
        return None

    def _drain(self, connection: Connection) -> None:
        until_s = time.monotonic() + (self._slo_s or 0.0) + GRACE_S
        while self._out and time.monotonic() < until_s:
            connection.poll(_POLL_MS)
            self._receive(connection)
        for asked in self._out.values():
            self.tallies[asked.subject].lost += 1
            self._miss(asked)
        self._out.clear()

    def _receive(self, connection: Connection) -> None:
        while (received := connection.receive()) is not None:
            message, frames = received
            if not isinstance(message, InferReply | ErrorReply):
                continue
            asked = self._out.pop(message.key, None)
            if asked is None:
                self.twice += 1
                continue
            now_s = time.monotonic()
            late = self._slo_s is not None and now_s > asked.sent_s + self._slo_s
            tally = self.tallies[asked.subject]
            tally.late += late
            if isinstance(message, ErrorReply):
                tally.rejected[message.reason] = tally.rejected.get(message.reason, 0) + 1
                if asked.stream and asked.step:
                    unknown = message.reason is Reason.UNKNOWN_SEQUENCE
                    asked.stream.refused(asked.step, unknown=unknown)
            else:
                self._note_worker(message.timing.worker, now_s)
                tally.latency_ms.append((now_s - asked.sent_s) * 1e3)
                tally.in_time += not late
                self._check(asked, message, frames)
            if late or isinstance(message, ErrorReply):
                self._miss(asked)

    def _miss(self, asked: _Asked) -> None:
        self.tallies[asked.subject].missed_s.append(asked.sent_s - self.began_s)

    def _note_worker(self, worker: str, now_s: float) -> None:
        if now_s - self.served_by.get(worker, now_s) > 1.0:
            self.returned_s[worker] = now_s
        self.served_by[worker] = now_s

    def _check(self, asked: _Asked, reply: InferReply, frames: list[memoryview]) -> None:
        if asked.stream and asked.step:
            asked.stream.answered(asked.step, _arrays(reply, frames))
            return
        raw = b"".join(bytes(frame) for frame in frames)
        known = self._right.setdefault((asked.subject, asked.question), set())
        if raw in known:
            return
        question: Question = self._subjects[asked.subject].questions[asked.question]
        found = compare(_arrays(reply, frames), question.expected)
        if found.same and len(known) < _FORMS:
            known.add(raw)
        if not found.same:
            tally = self.tallies[asked.subject]
            tally.wrong += 1
            tally.problem = tally.problem or found.problem


def _arrays(reply: InferReply, frames: list[memoryview]) -> Arrays:
    found: dict[str, Any] = {}
    for header, frame in zip(reply.outputs, frames, strict=True):
        found[header.name] = np.frombuffer(frame, array_dtype(header.dtype)).reshape(header.shape)
    return found


GOODPUT, LATE = 99.0, 0.1


def figures(tallies: Sequence[Tally], judged: Judged, twice: int, killed_s: float) -> list[Figure]:
    """Return what is judged; ``killed_s`` is when the worker was killed, from the beginning."""
    sent = sum(tally.sent for tally in tallies)
    even = [tally for tally in tallies if tally.kind != ERRATIC]
    # Of what was missed, a run's length decides which part a death is of.
    missed = [each for tally in tallies for each in tally.missed_s]
    worst = max((np.diff(np.searchsorted(np.sort(missed), [at, at + 1.0]))[0] for at in missed), default=0)
    apart = sum(not killed_s <= each < killed_s + AFTERMATH_S for each in missed)
    plain = [tally for tally in tallies if tally.kind != STREAM]
    return [
        Figure("goodput", _percent(sum(each.in_time for each in tallies), sent), "%", GOODPUT, at_least=True),
        Figure("late, of models that are not erratic", _share(even, "late"), "%", LATE),
        Figure(
            "late, of erratic models", _share([each for each in tallies if each.kind == ERRATIC], "late"), "%"
        ),
        Figure("requests without a reply", sum(each.lost for each in tallies), "requests", 0),
        Figure("second and unasked replies", twice, "replies", 0),
        Figure("wrong answers", sum(each.wrong for each in plain), "answers", 0, note=_first(plain)),
        Figure("wrong answers of streams", judged.wrong, "answers", 0, note=judged.first_problem),
        Figure("streams that went on after the kill", judged.went_on, "streams", STREAMS, at_least=True),
        Figure("streams whose state was lost", judged.forgotten, "streams", 0),
        Figure("not in time apart from the kill", _percent(apart, sent), "%", note=AFTERMATH),
        Figure("not in time in the worst second", float(worst), "requests"),
    ]


AFTERMATH_S = 10.0
AFTERMATH = f"outside of the {AFTERMATH_S:g} s after it"


def models_table(tallies: Sequence[Tally]) -> Table:
    """Return a row for each model."""
    made = Table(title="by model", title_justify="left")
    for column in ("model", "kind"):
        made.add_column(column, no_wrap=True)
    for column in ("requests", "in time", "late", "wrong", "lost", "median ms", "p99 ms", "rejected"):
        made.add_column(column, justify="right")
    for each in tallies:
        middle, high = np.percentile(each.latency_ms, (50, 99)) if each.latency_ms else (np.nan, np.nan)
        made.add_row(
            each.name,
            each.kind,
            str(each.sent),
            f"{_percent(each.in_time, each.sent):.2f} %",
            *(str(count) for count in (each.late, each.wrong, each.lost)),
            f"{middle:.1f}",
            f"{high:.1f}",
            ", ".join(f"{count} {reason}" for reason, count in each.rejected.items()),
        )
    return made


def shortfalls(rows: Sequence[Figure]) -> list[str]:
    """Return a sentence for each target that was missed."""
    return [
        f"{row.name}: {row.value:.4g} {row.unit}, where {'at least' if row.at_least else 'at most'} "
        f"{row.target:g} were to be{f' ({row.note})' if row.note else ''}"
        for row in rows
        if row.met is False
    ]


def _first(tallies: Sequence[Tally]) -> str:
    return next((f"{each.name}: {each.problem}" for each in tallies if each.problem), "")


def _share(tallies: Sequence[Tally], what: str) -> float:
    return _percent(sum(getattr(each, what) for each in tallies), sum(each.sent for each in tallies))


def _percent(part: int, whole: int) -> float:
    return 100 * part / max(1, whole)
