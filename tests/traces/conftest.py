"""A gateway in a thread that answers as a test tells it to, over a real socket."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import pytest
import zmq

from mainspring.messages.clients import (
    ClientHello,
    ClientRefused,
    ClientWelcome,
    ErrorReply,
    InferReply,
    InferRequest,
    ListModels,
    ModelList,
    Timing,
)
from mainspring.messages.codec import FROM_CLIENT, BadMessage, encode
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.peers import TensorHeader


def spec(name: str, shape: tuple[int, ...] = (4,), dtype: str = "float32") -> ModelSpec:
    return ModelSpec(
        name=name,
        weights_hash="0" * 64,
        executable="1" * 64,
        batch_sizes=(1, 2, 4),
        weights_bytes=1000,
        extents=(1,),
        inputs=(TensorSpec("x", dtype, shape),),
        outputs=(TensorSpec("y", "float32", (2,)),),
        profiles={"cpu": Profile({1: 1_000_000}, 1_000_000)},
    )


@dataclass(frozen=True)
class Answer:
    """What the gateway does with a request."""

    delay_ns: int = 0
    reason: Reason | None = None
    left_ns: int | None = 1_000_000
    cold_start: bool = False
    times: int = 1


Decide = Callable[[int, InferRequest], Answer | None]
"""From the number of the request and the request to the answer; None drops it."""


@dataclass
class FakeGateway:
    decide: Decide
    specs: tuple[ModelSpec, ...] = (spec("a"), spec("b"))
    stall_ns: int = 0
    """Pause before the request with this number is looked at; everything behind it waits too."""
    stall_at: int = -1
    seen: list[tuple[int, InferRequest, list[bytes]]] = field(default_factory=list)
    address: str = ""
    """Where to serve; a free port if it is not given."""
    turns_away: int = 0
    """Hellos that are refused for want of room, before others are welcomed."""
    tokens: list[str] = field(default_factory=list)
    """Of those that were welcomed."""

    @contextmanager
    def serving(self) -> Iterator[FakeGateway]:
        context: zmq.Context[Any] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.bind(self.address or "tcp://127.0.0.1:*")
        self.address = socket.last_endpoint.decode()
        stop = threading.Event()
        thread = threading.Thread(target=self._serve, args=(socket, stop))
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            socket.close()
            context.term()

    def _serve(self, socket: zmq.Socket[bytes], stop: threading.Event) -> None:
        waiting: list[tuple[int, int, list[bytes]]] = []
        made = 0
        while not stop.is_set():
            timeout_ms = 20 if not waiting else max(0, (waiting[0][0] - monotonic_ns()) // 1_000_000)
            if socket.poll(min(timeout_ms, 20)):
                sender, *parts = socket.recv_multipart()
                for delay_ns, reply in self._replies(parts):
                    made += 1
                    heapq.heappush(waiting, (monotonic_ns() + delay_ns, made, [sender, *reply]))
            while waiting and waiting[0][0] <= monotonic_ns():
                socket.send_multipart(heapq.heappop(waiting)[2])

    def _replies(self, parts: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
        try:
            message = FROM_CLIENT.decode(parts[0])
        except BadMessage:
            # A process that an earlier test left looks for its controller where this gateway has come to be.
            return
        match message:
            case ClientHello() if self.turns_away:
                self.turns_away -= 1
                yield 0, [encode(ClientRefused("too_many_clients", "no room"))]
            case ClientHello():
                self.tokens.append(message.token)
                yield 0, [encode(ClientWelcome(1, "test", 1 << 30, 10_000))]
            case ListModels():
                yield 0, [encode(ModelList(message.key, self.specs))]
            case InferRequest():
                number = len(self.seen)
                if number == self.stall_at:
                    threading.Event().wait(self.stall_ns / 1e9)
                self.seen.append((monotonic_ns(), message, parts[1:]))
                answer = self.decide(number, message)
                if answer is not None:
                    for _ in range(answer.times):
                        yield answer.delay_ns, reply_of(message, answer)


def reply_of(request: InferRequest, answer: Answer) -> list[bytes]:
    if answer.reason is not None:
        return [encode(ErrorReply(request.key, answer.reason, "as the test wants it"))]
    timing = Timing(
        total_ns=2_000_000,
        queue_ns=500_000,
        execute_ns=1_000_000,
        left_ns=None if request.slo_ns is None else answer.left_ns,
        batch_size=2,
        cold_start=answer.cold_start,
        worker="w0",
    )
    header = TensorHeader("y", "float32", (1, 2))
    return [encode(InferReply(request.key, (header,), timing)), bytes(8)]


@pytest.fixture
def answering() -> type[Answer]:
    return Answer


@pytest.fixture
def fake_gateway() -> type[FakeGateway]:
    return FakeGateway


@pytest.fixture
def make_spec() -> Callable[..., ModelSpec]:
    return spec
