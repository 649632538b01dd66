"""Inference over HTTP: from a request's body to the request table, and from its outcome to a reply."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import Any, cast

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Answer
from mainspring.gateway.core.requests import late_detail
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.http.admission_queue import AdmissionQueue, TurnClock
from mainspring.gateway.http.connection import HttpConnection
from mainspring.gateway.http.exchange import (
    BINARY_TYPE,
    EVENTS_TYPE,
    GENERATE,
    GENERATE_STREAM,
    INFER,
    JSON_TYPE,
    UNKNOWN_BYTES,
    Exchange,
    reply_to_error,
    server_timing,
)
from mainspring.gateway.http.shared_memory import SharedMemory
from mainspring.gateway.memory import answer_bytes, no_room_for_answer
from mainspring.gateway.oip import compression, generate, request
from mainspring.gateway.oip.compression import ENCODINGS
from mainspring.gateway.oip.parameters import (
    SLO_HEADER,
    at_least_of,
    context_of,
    default_slo_ns,
    place_of,
    priority_of,
    slo_ns,
    version_of,
)
from mainspring.gateway.oip.response import Body, render, render_small
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.regions import Parts
from mainspring.gateway.services import Outcome, Services
from mainspring.gateway.time_slices import TimeSlices
from mainspring.messages.clients import InferRequest, Timing
from mainspring.messages.codes import Reason
from mainspring.messages.delays import HTTP
from mainspring.transport.tokens import NOTHING, Gate, from_header

_THREADS = 2
_MOST_IN_THREADS = 64
"""Bodies that may wait for those."""
_AT_ONCE_BYTES = 1 << 16
"""Most bytes of compressed data that are made or inflated at once; what is larger goes to a thread, to delay
nobody."""
_LEAST_COMPRESSED_BYTES = 256
_JSON_BYTES = b"inference-header-content-length"
_SLO = SLO_HEADER.encode()
_SENT_ENCODINGS = (b"gzip", b"deflate")


def _encoding(header: bytes) -> str:
    """Return the name of what a ``Content-Encoding`` says was done to the body; empty for nothing.

    RFC 9110, 8.4.1: ``identity`` is nothing, and ``x-gzip`` is ``gzip``.
    """
    names = [name.strip().lower() for name in header.decode("latin-1").split(",")]
    return ", ".join("gzip" if name == "x-gzip" else name for name in names if name not in ("", "identity"))


class _Came:
    """Outputs that are to be sent."""

    __slots__ = ("at_ns", "due_ns", "timing")

    def __init__(self, at_ns: int, due_ns: int | None, timing: Timing) -> None:
        self.at_ns = at_ns
        """Instant at which they came."""
        self.due_ns = due_ns
        """Instant from which they are of no use any more."""
        self.timing = timing


class Inference:
    """Handles the routes of inference."""

    def __init__(
        self, services: Services, config: GatewayConfig, shared: SharedMemory, clock: TurnClock | None = None
    ) -> None:
        """``clock``: as `AdmissionQueue` takes it."""
        self._services = services
        self._driver: Any = cast("Any", services).driver
        """The driver; it has no class here, since compiled code would take no other one."""
        self._config = config
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._admission = AdmissionQueue(
            self._handle, milliseconds(config.http_shed_wait_ms), self._shed, clock
        )
        self._slices = TimeSlices()
        self._threads = ThreadPoolExecutor(_THREADS, "http-compression")
        self._in_threads = 0

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def handle(self, exchange: Exchange) -> None:
        """Answer a POST to ``/v2/models/{model}[/versions/{version}]/infer``, when it is its turn."""
        exchange.answer_bytes = UNKNOWN_BYTES
        self._admission.take(exchange)

    def generate(self, exchange: Exchange) -> None:
        """Answer a POST to ``/generate`` of a model, when it is its turn."""
        exchange.style = GENERATE
        self.handle(exchange)

    def generate_stream(self, exchange: Exchange) -> None:
        """Do the same for ``/generate_stream``: a stream of one event, for a model answers once."""
        exchange.style = GENERATE_STREAM
        self.handle(exchange)

    def _shed(self, exchange: Exchange, reason: Reason) -> None:
        self._services.turned_away(exchange.arguments[0], reason)

    def _handle(self, exchange: Exchange) -> None:
        encoding = exchange.headers.get(b"content-encoding")
        name = "" if encoding is None else _encoding(encoding)
        if not name:
            self._infer(exchange, exchange.body)
            return
        if name not in ENCODINGS:
            exchange.fail(415, f"the body's content-encoding is {name[:40]!r}; it may be gzip or deflate")
            return
        body, limit_bytes = exchange.body, self._config.http_max_body_bytes
        try:
            content = compression.inflate(body, name, min(_AT_ONCE_BYTES, limit_bytes))
        except compression.TooLarge:
            work = functools.partial(compression.inflate, body, name, limit_bytes)
            self._in_thread(exchange, work, lambda content: self._infer(exchange, memoryview(content)))
        else:
            self._infer(exchange, memoryview(content))

    def _infer(self, exchange: Exchange, body: memoryview) -> None:
        try:
            self._submit(exchange, body)
        except BadRequest as error:
            self._services.turned_away(exchange.arguments[0], error.reason)
            raise

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        """Send what is wrong with a request that was not submitted, while that is being handled."""
        if isinstance(error, BadRequest):
            self._services.turned_away(exchange.arguments[0], error.reason)
        reply_to_error(exchange, error)

    def _submit(self, exchange: Exchange, body: memoryview) -> None:
        driver, config = self._driver, self._config
        if (alone := driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        model, *version = exchange.arguments
        signature = driver.catalog.resolve(model, version_of(version[0]) if version else None)
        if exchange.style == INFER:
            parsed = request.parse(signature, body, _json_bytes(exchange), config.http_max_json_bytes)
        else:
            parsed = generate.parse(signature, body, config.http_max_json_bytes)
        spans = parsed.spans
        if not spans:
            self._take(exchange, signature, parsed, {})
            return
        parts = self._shared.parts(exchange, spans)
        self._slices.do(
            self._shared.filled(parsed.frames, parts, config.http_max_body_bytes),
            lambda frames: self._take(exchange, signature, parsed._replace(frames=frames), parts),
            functools.partial(self._failed, exchange),
            lambda: not exchange.abandoned,
        )

    def _take(self, exchange: Exchange, signature: Signature, parsed: request.Parsed, parts: Parts) -> None:
        """Submit a request whose inputs are there; ``parts`` are where its spans of shared memory are."""
        driver, config = self._driver, self._config
        model, *version = exchange.arguments
        options, said = driver.catalog.options(model), parsed.parameters
        time_ns = slo_ns(
            timeout_us=said.timeout,
            slo_ms=said.slo_ms,
            header=exchange.header(_SLO),
            default_ns=default_slo_ns(config, options, priority_of(said.priority)),
        )
        if time_ns is not None:
            # The controller, which knows how long the model takes, refuses what is too late already.
            time_ns = max(1, time_ns - (monotonic_ns() - exchange.arrived_ns))
        sender = exchange.sender
        assert isinstance(sender, HttpConnection)
        if exchange.abandoned:
            return
        expected = answer_bytes(signature, parsed.inputs, text=not parsed.is_binary)
        if not sender.holds(exchange, expected):
            raise BadRequest(Reason.OVERLOADED, no_room_for_answer(self._services.answers, expected))
        if sender.peer is None:
            sender.peer = self._services.connection()
        place = place_of(signature.spec, said.sequence_id, said.sequence_start, said.sequence_end)
        asked = InferRequest(
            self._services.next_key(),
            model,
            parsed.inputs,
            time_ns,
            parsed.outputs,
            version_of(version[0]) if version else None,
            exchange.header(b"traceparent") or "",
            self._priority(exchange, priority_of(said.priority)),
            back_ns=self._services.back.expected_ns(HTTP, expected, time_ns, monotonic_ns()),
            late_outputs=False,
            sequence_id=place.sequence_id,
            sequence_start=place.sequence_start,
            sequence_end=place.sequence_end,
            at_least=at_least_of(said.at_least),
            context=context_of(said.context),
        )
        wanted = parsed.wanted
        if options.labels or place.sequence_id:
            wanted = wanted._replace(labels=options.labels, however_late=bool(place.sequence_id))
        written = {form.span: parts[form.span] for form in wanted.forms.values() if form.span is not None}
        done = functools.partial(self._done, exchange, model, str(signature.spec.version), wanted, written)
        shown = NOTHING
        if driver.gate.has_accounts:
            shown = from_header(exchange.header(b"authorization"))
        self._services.submit(sender.peer, asked, parsed.frames, done, exchange.arrived_ns, shown)

    def _priority(self, exchange: Exchange, asked: int) -> int:
        """Return the priority that a request gets which asks for one."""
        gate: Gate = self._driver.gate
        if not asked or not gate.closed:
            return asked
        return gate.priority(from_header(exchange.header(b"authorization")), asked)

    def _done(
        self,
        exchange: Exchange,
        model: str,
        version: str,
        wanted: request.Wanted,
        written: Parts,
        outcome: Outcome,
    ) -> None:
        """Send a request's outcome. Nothing may be raised: the request table is at work above."""
        if not isinstance(outcome, Answer):
            exchange.refuse(outcome.reason, outcome.detail, outcome.earliest_finish_left_ns)
            return
        left_ns, now_ns = outcome.timing.left_ns, monotonic_ns()
        due_ns = None if left_ns is None or wanted.however_late else now_ns + left_ns
        came = _Came(now_ns, due_ns, outcome.timing)
        try:
            body = render_small(model, version, wanted, outcome)
            if body is not None:
                self._answer(exchange, body, came)
                return
        except Exception as error:
            reply_to_error(exchange, error)
            return
        self._slices.do(
            _made(model, version, wanted, written, outcome),
            lambda body: self._answer(exchange, body, came),
            functools.partial(reply_to_error, exchange),
            lambda: not exchange.abandoned,
        )

    def _answer(self, exchange: Exchange, body: Body, came: _Came) -> None:
        content_type, more = JSON_TYPE, b""
        if exchange.style != INFER:
            content_type = EVENTS_TYPE if exchange.style == GENERATE_STREAM else JSON_TYPE
            body = Body([generate.generated(body, event=exchange.style == GENERATE_STREAM)], [])
        if body.tensors:
            content_type, more = BINARY_TYPE, _JSON_BYTES + b": %d\r\n" % body.text_bytes
        accepted = exchange.headers.get(b"accept-encoding")
        parts: list[Any] = [*body.texts, *body.tensors]
        # One alone was asked for; a list is what libraries can read, sent with every request.
        if accepted not in _SENT_ENCODINGS or body.size < _LEAST_COMPRESSED_BYTES:
            self._reply(exchange, came, content_type, more, parts)
            return
        more += b"content-encoding: %s\r\n" % accepted
        work = functools.partial(compression.deflate, parts, accepted.decode())
        if body.size <= _AT_ONCE_BYTES:
            self._reply(exchange, came, content_type, more, [work()])
            return
        reply = functools.partial(self._reply, exchange, came, content_type, more)
        self._in_thread(exchange, work, lambda packed: reply([packed]))

    def _reply(
        self,
        exchange: Exchange,
        came: _Came,
        content_type: bytes,
        more: bytes,
        parts: Sequence[Any],
    ) -> None:
        """Send an answer, unless it was in the making for too long."""
        held_bytes = exchange.answer_bytes
        made_ns = monotonic_ns()
        late_ns = 0 if came.due_ns is None else made_ns - came.due_ns
        if late_ns > 0:
            exchange.refuse(Reason.TIMED_OUT, late_detail(late_ns))
        else:
            more += server_timing(came.timing, made_ns - came.at_ns)
            exchange.reply(200, parts, content_type, more)
        # The kernel has it, or has been asked to take it: it takes what fits its buffers at once.
        now_ns = monotonic_ns()
        self._services.back.took(HTTP, held_bytes, now_ns - came.at_ns, now_ns)

    def _in_thread(
        self, exchange: Exchange, work: Callable[[], bytes], then: Callable[[bytes], None]
    ) -> None:
        """Do something long beside everything else, then go on with what came of it."""
        if self._in_threads >= _MOST_IN_THREADS:
            exchange.refuse(Reason.OVERLOADED, f"{self._in_threads} large compressed bodies are at work")
            return
        self._in_threads += 1
        ended = functools.partial(self._ended, exchange, then)
        self._loop.run_in_executor(self._threads, work).add_done_callback(ended)

    def _ended(
        self, exchange: Exchange, then: Callable[[bytes], None], future: asyncio.Future[bytes]
    ) -> None:
        self._in_threads -= 1
        if future.cancelled():
            return
        try:
            then(future.result())
        except Exception as error:
            reply_to_error(exchange, error)


def _made(model: str, version: str, wanted: request.Wanted, written: Parts, answer: Answer) -> Steps[Body]:
    """Return an answer's body once the outputs that go to shared memory are there."""
    body = yield from render(model, version, wanted, answer)
    for name, span, pieces in body.placed:
        yield from written[span].write(name, pieces)
    return body


def _json_bytes(exchange: Exchange) -> int | None:
    value = exchange.headers.get(_JSON_BYTES)
    if value is None:
        return None
    if value.isdigit() and len(value) < 400:
        return int(value)
    raise BadRequest(
        Reason.BAD_MESSAGE,
        f"the header Inference-Header-Content-Length is {value[:40].decode('latin-1')!r}; it is a number of "
        "bytes",
    )
