"""ModelInfer and ModelStreamInfer: requests to the table, and its outcomes back."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import NamedTuple

from grpc import aio

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Answer, Refuse
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc.access import Caller, Lock, shown_by
from mainspring.gateway.grpc.answers import streamed, streamed_error, streamed_refusal, unary
from mainspring.gateway.grpc.peers import Call, Peers
from mainspring.gateway.grpc.room import Room
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.grpc.status import INTERNAL, Context, Ended, Refused, answered
from mainspring.gateway.grpc.taking import Taken, Taking
from mainspring.gateway.oip.datatypes import Unserved
from mainspring.gateway.oip.triton_texts import worded
from mainspring.gateway.services import Outcome, Services
from mainspring.gateway.time_slices import TimeSlices
from mainspring.messages.codes import Reason

log = logging.getLogger("mainspring.gateway")

ENDS_WITH_ERROR = "triton_grpc_error"
"""Metadata of a stream: ``true`` has the first error end it with a status, as Triton does."""


class Inference:
    """The two calls, for one server."""

    def __init__(self, services: Services, config: GatewayConfig, shared: SharedMemory, room: Room) -> None:
        self._services = services
        self._taking = Taking(services, config, shared)
        self._slices = TimeSlices()
        most = config.max_answer_bytes_per_connection
        self._peers = Peers(services.connection, services.answers, most, room.asks)
        self._backlog_bytes = config.grpc_backlog_bytes
        self._lock = Lock(config)

    async def infer(self, _incoming: AsyncIterator[bytes], context: Context) -> bytes:
        """Answer ModelInfer; the call's end by its client or its deadline gives the request up.

        To gRPC this is a stream of requests, for then it begins with the head of the call: the time that a
        large message takes to come is its request's. The one message is read without the stream's iterator,
        which would hold it until the next garbage collection.
        """
        arrived_ns = monotonic_ns()
        call = self._peers.call(context.peer())
        # That is later than this returns: the client may take its time to read the answer.
        context.add_done_callback(call.end)
        return await answered(context, self._infer(context, call, arrived_ns), triton=self._lock.triton)

    async def _infer(self, context: Context, call: Call, arrived_ns: int) -> bytes:
        caller = Caller(context)
        self._lock.check("ModelInfer", caller)
        data = await context.read()
        if data is aio.EOF:
            raise BadRequest(Reason.BAD_MESSAGE, "the call has no message; it takes one ModelInferRequest")
        taken = self._taking.take(self._taking.read(data), arrived_ns, caller, call)
        if taken.parts:
            taken = await self._slices.finish(self._taking.complete(taken))
        outcome = await self._services.infer(
            *(call.connection, taken.request, taken.frames, arrived_ns),
            shown_by(self._services.driver.gate, caller),
        )
        if isinstance(outcome, Refuse):
            raise Refused(outcome)
        self._learn_back(context, call.way, taken.answer_bytes)
        return await self._slices.finish(unary(taken.asked, outcome, taken.place))

    def _learn_back(self, context: Context, way: bytes, answer_bytes: int) -> None:
        """Learn, when the call ends, how long gRPC's library took to be done with the answer."""
        began_ns = monotonic_ns()

        def ended(_: object) -> None:
            now_ns = monotonic_ns()
            self._services.back.took(way, answer_bytes, now_ns - began_ns, now_ns)

        context.add_done_callback(ended)

    async def stream(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        """Answer ModelStreamInfer until its client has said all, or is gone."""
        call = self._peers.call(context.peer())
        try:
            await answered(context, self._stream(incoming, context, call), triton=self._lock.triton)
        finally:
            call.end()

    async def _stream(self, incoming: AsyncIterator[bytes], context: Context, call: Call) -> None:
        self._lock.check("ModelStreamInfer", Caller(context))
        stream = _Stream(self._services, self._taking, self._slices, call, context, self._backlog_bytes)
        stream.triton = self._lock.triton
        await stream.run(incoming)


class _Said(NamedTuple):
    """An answer of a stream on its way to the client."""

    data: bytes
    held_bytes: int
    """Bytes that are held for it."""
    came_ns: int | None
    """Instant at which its outputs came; None for a refusal, which says nothing of what outputs take."""


class _Stream:
    """One ModelStreamInfer: reads requests while few answers wait, and writes answers as they come."""

    def __init__(
        self,
        services: Services,
        taking: Taking,
        slices: TimeSlices,
        call: Call,
        context: Context,
        backlog_bytes: int,
    ) -> None:
        self._services = services
        self._taking = taking
        self._slices = slices
        self._call = call
        self._context = context
        self._caller = Caller(context)
        self._backlog_bytes = backlog_bytes
        self.triton = False
        """True if texts of errors are Triton's."""
        self._waiting: set[int] = set()
        """Keys of requests without an answer."""
        self._answers: deque[_Said] = deque()
        self._bytes = 0
        """Bytes of `_answers`, of the one that is being written, and of those that are to come."""
        self._changed = asyncio.Event()
        """Set when there is something to write, or nothing more to read."""
        self._written = asyncio.Event()
        self._ends = self._caller.said(ENDS_WITH_ERROR) == "true"
        """True if the first error ends the call."""
        self._error: Exception | None = None
        """Error that ends it."""

    async def run(self, incoming: AsyncIterator[bytes]) -> None:
        """Serve the stream to its end."""
        reader = asyncio.create_task(self._read(incoming))
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            while self._error is None and (not reader.done() or self._waiting or self._answers):
                await self._changed.wait()
                self._changed.clear()
                await self._write()
            if self._error is not None:
                raise self._error
            reader.result()
        finally:
            reader.cancel()
            for key in tuple(self._waiting):
                self._services.cancel(self._call.connection, key)
            self._waiting.clear()

    async def _read(self, incoming: AsyncIterator[bytes]) -> None:
        async for data in incoming:
            await self._take(data)
            if self._error is not None:
                return
            while self._bytes > self._backlog_bytes:
                # The client does not read, or asks for much at once: no more is taken from it for now, and
                # HTTP/2 makes it wait.
                self._written.clear()
                await self._written.wait()

    async def _take(self, data: bytes) -> None:
        """Submit what a message asks for, or say what is wrong with it; the next one comes behind it."""
        arrived_ns = monotonic_ns()
        asked_id = ""
        try:
            read = self._taking.read(data)
            asked_id = read.message.id
            taken = self._taking.take(read, arrived_ns, self._caller, self._call)
            if taken.parts:
                taken = await self._completed(taken)
        except (BadRequest, Ended, Unserved) as error:
            self._refused(asked_id, error)
            return
        key = taken.request.key
        self._waiting.add(key)
        self._bytes += taken.answer_bytes
        done = functools.partial(self._done, taken)
        shown = shown_by(self._services.driver.gate, self._caller)
        self._services.submit(self._call.connection, taken.request, taken.frames, done, arrived_ns, shown)

    def _refused(self, asked_id: str, error: Exception) -> None:
        """Say what is wrong with a request that was not submitted."""
        if self._ends:
            self._end(error)
        elif isinstance(error, BadRequest):
            refusal = Refuse(self._call.connection, 0, error.reason, worded(error, triton=self.triton))
            self._put(_Said(streamed_refusal(asked_id, refusal, triton=self.triton), 0, None))
        else:
            self._put(_Said(streamed_error(asked_id, str(error)), 0, None))

    async def _completed(self, taken: Taken) -> Taken:
        """Return a request with the inputs that are in shared memory; raise `BadRequest`."""
        try:
            return await self._slices.finish(self._taking.complete(taken))
        except BadRequest:
            self._call.let_go(taken.answer_bytes)
            raise

    def _done(self, taken: Taken, outcome: Outcome) -> None:
        """Make the answer to a request; nothing may be raised into the request table above."""
        key, asked = taken.request.key, taken.asked
        came_ns = monotonic_ns() if isinstance(outcome, Answer) else None
        if key not in self._waiting:
            # The stream is over.
            return

        def put(answer: bytes) -> None:
            self._waiting.discard(key)
            self._bytes -= taken.answer_bytes
            self._put(_Said(answer, taken.answer_bytes, came_ns))
            self._written.set()

        def failed(error: Exception) -> None:
            if self._ends:
                self._end(error)
                return
            if isinstance(error, BadRequest):
                refusal = Refuse(self._call.connection, key, error.reason, worded(error, triton=self.triton))
                put(streamed_refusal(asked.id, refusal, triton=self.triton))
                return
            log.error("no answer to a request for model %r", asked.model, exc_info=error)
            put(streamed_error(asked.id, INTERNAL))

        if isinstance(outcome, Answer):
            self._slices.do(streamed(asked, outcome, taken.place), put, failed, lambda: key in self._waiting)
        elif self._ends:
            self._end(Refused(outcome))
        else:
            put(streamed_refusal(asked.id, outcome, triton=self.triton))

    def _end(self, error: Exception) -> None:
        """End the call with an error, behind the answers that are there; the rest is given up."""
        self._error = self._error or error
        self._changed.set()

    def _put(self, answer: _Said) -> None:
        self._answers.append(answer)
        self._bytes += len(answer.data)
        self._changed.set()

    async def _write(self) -> None:
        while self._answers:
            data, held_bytes, came_ns = self._answers.popleft()
            await self._context.write(data)
            if came_ns is not None:
                now_ns = monotonic_ns()
                self._services.back.took(self._call.way, held_bytes, now_ns - came_ns, now_ns)
            self._call.let_go(held_bytes)
            self._bytes -= len(data)
            self._written.set()
