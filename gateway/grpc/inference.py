"""ModelInfer and ModelStreamInfer: requests to the table, and its outcomes back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic_ns

from mainspring.gateway.calls import Calls, Outcome
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.grpc.access import Caller
from mainspring.gateway.grpc.answers import (
    Asked,
    streamed,
    streamed_error,
    streamed_refusal,
    unary,
)
from mainspring.gateway.grpc.peers import Peers
from mainspring.gateway.grpc.requests import parse
from mainspring.gateway.grpc.status import INTERNAL, Context, Ended, Refused, answered
from mainspring.gateway.grpc.taking import Taking
from mainspring.gateway.sends import Answer, Connection, Refuse
from mainspring.gateway.validation import BadRequest

log = logging.getLogger("mainspring.gateway")


class Inference:
    """The two calls, for one server."""

    def __init__(self, calls: Calls, config: GatewayConfig) -> None:
        self._calls = calls
        self._taking = Taking(calls, config)
        self._peers = Peers(calls.connection)
        self._backlog_bytes = config.grpc_backlog_bytes

    async def infer(self, data: bytes, context: Context) -> bytes:
        """Answer ModelInfer; the call's end by its client or its deadline gives the request up."""
        arrived_ns = monotonic_ns()
        with self._peers.call(context.peer()) as connection:
            return await answered(context, self._infer(data, context, connection, arrived_ns))

    async def _infer(self, data: bytes, context: Context, connection: Connection, arrived_ns: int) -> bytes:
        taken = self._taking.take(*parse(data), arrived_ns, Caller(context))
        outcome = await self._calls.infer(connection, taken.request, taken.frames)
        if isinstance(outcome, Refuse):
            raise Refused(outcome)
        return unary(taken.asked, outcome)

    async def stream(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        """Answer ModelStreamInfer until its client has said all, or is gone."""
        with self._peers.call(context.peer()) as connection:
            stream = _Stream(self._calls, self._taking, connection, context, self._backlog_bytes)
            await answered(context, stream.run(incoming))


class _Stream:
    """One ModelStreamInfer: reads requests while few answers wait, and writes answers as they come."""

    def __init__(
        self, calls: Calls, taking: Taking, connection: Connection, context: Context, backlog_bytes: int
    ) -> None:
        self._calls = calls
        self._taking = taking
        self._connection = connection
        self._context = context
        self._caller = Caller(context)
        self._backlog_bytes = backlog_bytes
        self._waiting: set[int] = set()
        """Keys of requests without an answer."""
        self._answers: deque[bytes] = deque()
        self._bytes = 0
        """Of `_answers`, of the one that is being written, and of those that are to come."""
        self._changed = asyncio.Event()
        """Set when there is something to write, or nothing more to read."""
        self._written = asyncio.Event()

    async def run(self, incoming: AsyncIterator[bytes]) -> None:
        """Serve the stream to its end."""
        reader = asyncio.create_task(self._read(incoming))
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            while not reader.done() or self._waiting or self._answers:
                await self._changed.wait()
                self._changed.clear()
                await self._write()
            reader.result()
        finally:
            reader.cancel()
            for key in tuple(self._waiting):
                self._calls.cancel(self._connection, key)

    async def _read(self, incoming: AsyncIterator[bytes]) -> None:
        async for data in incoming:
            self._take(data)
            while self._bytes > self._backlog_bytes:
                # The client does not read, or asks for much at once: no more is taken from it for now, and
                # HTTP/2 makes it wait.
                self._written.clear()
                await self._written.wait()

    def _take(self, data: bytes) -> None:
        arrived_ns = monotonic_ns()
        asked_id = ""
        try:
            message, raw = parse(data)
            asked_id = message.id
            taken = self._taking.take(message, raw, arrived_ns, self._caller)
        except BadRequest as error:
            self._put(streamed_refusal(asked_id, Refuse(self._connection, 0, error.reason, error.detail)))
            return
        except Ended as error:
            self._put(streamed_error(asked_id, error.detail))
            return
        key = taken.request.key

        def done(outcome: Outcome) -> None:
            self._waiting.discard(key)
            self._bytes -= taken.answer_bytes
            self._put(_streamed(taken.asked, outcome))
            self._written.set()

        self._waiting.add(key)
        self._bytes += taken.answer_bytes
        self._calls.submit(self._connection, taken.request, taken.frames, done)

    def _put(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._bytes += len(answer)
        self._changed.set()

    async def _write(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            await self._context.write(answer)
            self._bytes -= len(answer)
            self._written.set()


def _streamed(asked: Asked, outcome: Outcome) -> bytes:
    """Return the answer to a request of a stream; nothing may be raised into the request table above."""
    try:
        if isinstance(outcome, Answer):
            return streamed(asked, outcome)
        return streamed_refusal(asked.id, outcome)
    except Exception:
        log.exception("no answer to a request for model %r", asked.model)
        return streamed_error(asked.id, INTERNAL)
