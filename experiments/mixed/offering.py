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

from mainspring.client.connection import Connection
from mainspring.experiments.mixed.fleet import STREAM, Question, Subject
from mainspring.experiments.mixed.streams import Step, Stream
from mainspring.experiments.wild.comparing import compare
from mainspring.experiments.wild.reference import Arrays
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import array_dtype
from mainspring.messages.peers import TensorHeader

STREAMS = 32
STREAM_SHARE = 0.3
"""Of all requests, those of the streams; the models share the rest evenly."""
GRACE_S = 15.0
"""How long after its deadline a request may be without a reply before it counts as lost."""
_POLL_MS = 50.0
_FORMS = 64
"""Answers to one request that are remembered as right: batches of other sizes round otherwise."""


class Tally(msgspec.Struct):
    """What became of the requests for one model."""

    name: str
    kind: str
    sent: int = 0
    in_time: int = 0
    late: int = 0
    """Replies of any kind that came after the deadline."""
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    """By reason, whenever they came."""
    wrong: int = 0
    problem: str = ""
    """The first wrong answer."""
    lost: int = 0
    latency_ms: list[float] = msgspec.field(default_factory=list)
    missed_s: list[float] = msgspec.field(default_factory=list)
    """When those were sent that got no answer in time, from the beginning."""


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
        """How much later than due the open loop sent."""
        self.began_s = 0.0
        """When the open loop began, on the monotonic clock."""
        self.served_by: dict[str, float] = {}
        """When each worker's last answer came."""
        self.returned_s: dict[str, float] = {}
        """By worker, when its last answer came that followed on a second without one."""
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
        """Return the stream whose turn it is; None if none can send."""
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
        """Compare an answer; a stream's is kept until the end, because it depends on those before."""
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
