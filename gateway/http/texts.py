"""Texts over HTTP: ``/v1/embeddings`` and ``/v1/models`` in OpenAI's form, ``/rerank`` in TEI's.

Each is one request for a graph that ``serves`` it, with a row for each text.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from typing import Any, cast

import numpy as np

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Answer
from mainspring.gateway.core.requests import late_detail
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.graphs.texts import TOKENS, TextForm
from mainspring.gateway.http import openai
from mainspring.gateway.http.admission_queue import AdmissionQueue, TurnClock
from mainspring.gateway.http.connection import HttpConnection
from mainspring.gateway.http.exchange import (
    JSON_TYPE,
    UNKNOWN_BYTES,
    Exchange,
    Fault,
    reply_to_error,
    server_timing,
)
from mainspring.gateway.http.openai import EmbeddingsRequest, RerankRequest
from mainspring.gateway.memory import answer_bytes, no_room_for_answer
from mainspring.gateway.oip import json_data
from mainspring.gateway.oip.compression import TooLarge
from mainspring.gateway.oip.parameters import SLO_HEADER, default_slo_ns, slo_ns
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.services import Outcome, Services
from mainspring.gateway.time_slices import TimeSlices
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.delays import HTTP
from mainspring.messages.peers import TensorHeader
from mainspring.transport.tokens import from_header

_CLIENT_S = "x-stainless-read-timeout"
"""Header in which OpenAI's clients say after how many seconds they give up."""
_USUAL_S = 600.0
"""What they say there if nobody told them."""
Asked = EmbeddingsRequest | RerankRequest


class Texts:
    """Handles these routes."""

    def __init__(self, services: Services, config: GatewayConfig, clock: TurnClock | None = None) -> None:
        """``clock``: as `AdmissionQueue` takes it."""
        self._services = services
        self._driver = services.driver
        self._config = config
        self._slices = TimeSlices()
        longest_ns = milliseconds(config.http_shed_wait_ms)
        self._embedding = AdmissionQueue(self._embed, longest_ns, _shed, clock)
        self._ranking = AdmissionQueue(self._rerank, longest_ns, _shed, clock)

    def models(self, exchange: Exchange) -> None:
        """List the models that embed."""
        names = [name for name in self._serving("embeddings") if self._sees(exchange, name)]
        exchange.reply_json({"object": "list", "data": [openai.model(name) for name in names]})

    def model(self, exchange: Exchange) -> None:
        """Describe a model that embeds."""
        name = exchange.arguments[0]
        self._form(name, "embeddings")
        exchange.reply_json(openai.model(name))

    def embeddings(self, exchange: Exchange) -> None:
        """Embed texts or tokens, when it is the request's turn."""
        exchange.answer_bytes = UNKNOWN_BYTES
        self._embedding.take(exchange)

    def rerank(self, exchange: Exchange) -> None:
        """Compare texts with a query, when it is the request's turn."""
        exchange.answer_bytes = UNKNOWN_BYTES
        self._ranking.take(exchange)

    # --- inside ---

    def _embed(self, exchange: Exchange) -> None:
        request = self._decoded(exchange, EmbeddingsRequest)
        self._authorise(exchange, request.model)
        signature, form = self._form(request.model, "embeddings")
        openai.check_dimensions(request.dimensions, form.result.shape[0])
        rows = openai.given(request)
        self._check_rows(len(rows), signature)
        if isinstance(rows[0], str):
            if not form.texts:
                raise openai.bad(f"model {request.model!r} takes tokens, not texts")
            header, frame = openai.texts(form.texts[0], rows, truncate=request.truncate)
            self._submit(exchange, request, request.model, [header], [frame], form)
            return
        name = request.model
        if form.texts:
            name = f"{name}{TOKENS}"
            signature = self._driver.catalog.resolve(name)
            form = signature.graph.form
        headers, frames = openai.tokens(form, signature.spec.inputs, rows, truncate=request.truncate)
        self._submit(exchange, request, name, headers, frames, form, sum(map(len, rows)))

    def _rerank(self, exchange: Exchange) -> None:
        request = self._decoded(exchange, RerankRequest)
        known = [name for name in self._serving("rerank") if self._sees(exchange, name)]
        if not request.model and len(known) != 1:
            detail = f"name one as model: {', '.join(known)}" if known else "no model that is served reranks"
            raise BadRequest(Reason.BAD_INPUT if known else Reason.UNKNOWN_MODEL, detail)
        name = request.model or known[0]
        self._authorise(exchange, name)
        signature, form = self._form(name, "rerank")
        if not request.texts:
            raise openai.bad("texts is empty")
        self._check_rows(len(request.texts), signature)
        columns = ([request.query] * len(request.texts), request.texts)
        given = [
            openai.texts(tensor, column, truncate=request.truncate)
            for tensor, column in zip(form.texts, columns, strict=True)
        ]
        headers, frames = zip(*given, strict=True)
        self._submit(exchange, request, name, [*headers], [*frames], form)

    def _decoded(self, exchange: Exchange, kind: type[Any]) -> Any:
        """Return what a body says; raise what it is refused with."""
        if exchange.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Fault(415, "a body with a content-encoding is not taken here")
        most = self._config.http_max_json_bytes
        if len(exchange.body) > most:
            raise TooLarge("the JSON", most, "http_max_json_bytes", "send less at once")
        try:
            return json_data.decode(exchange.body, kind)
        except json_data.UNREADABLE as error:
            why = json_data.explained(error, exchange.body)
            raise BadRequest(Reason.BAD_MESSAGE, f"the request's JSON can't be read: {why}") from None

    def _authorise(self, exchange: Exchange, model: str) -> None:
        """Raise `BadRequest` for a client that may not use a model."""
        gate = self._driver.gate
        if gate.closed:
            refusal = gate.authorise(exchange.header(b"authorization"), model, monotonic_ns())
            if refusal is not None:
                self._services.turned_away(model, refusal[0])
                raise BadRequest(*refusal)

    def _sees(self, exchange: Exchange, model: str) -> bool:
        gate = self._driver.gate
        return not gate.closed or gate.may_see(from_header(exchange.header(b"authorization")), model)

    def _serving(self, what: str) -> list[str]:
        specs = self._driver.catalog.graphs.specs
        return sorted([name for name, spec in specs.items() if spec.serves == what])

    def _form(self, name: str, what: str) -> tuple[Signature, TextForm]:
        """Return a graph that serves something; raise `BadRequest` if it does not."""
        if (alone := self._driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        signature: Signature = self._driver.catalog.resolve(name)
        form = None if signature.graph is None else signature.graph.form
        if form is None or signature.graph.graph.spec.serves != what:
            known = ", ".join(self._serving(what)) or "none"
            raise BadRequest(
                Reason.UNKNOWN_MODEL, f"model {name[:200]!r} serves no {what}; what does: {known}"
            )
        return signature, form

    def _check_rows(self, count: int, signature: Signature) -> None:
        if count > signature.most_rows:
            raise openai.bad(f"{count} inputs are more than a request may have, {signature.most_rows}")

    def _slo_ns(self, exchange: Exchange, request: Asked, model: str) -> int | None:
        """Return the time that a request has: the nearest of what it says, or else the graph's."""
        options = self._driver.catalog.options(model.removesuffix(TOKENS))
        try:
            waits_s = float(exchange.header(_CLIENT_S.encode()) or _USUAL_S)
        except ValueError:
            waits_s = _USUAL_S
        said = [
            each for each in (request.timeout, waits_s if waits_s < _USUAL_S else None) if each is not None
        ]
        found = slo_ns(
            slo_ms=min(said) * 1e3 if said else None,
            header=exchange.header(SLO_HEADER.encode()),
            default_ns=default_slo_ns(self._config, options),
        )
        return None if found is None else max(1, found - (monotonic_ns() - exchange.arrived_ns))

    def _submit(
        self,
        exchange: Exchange,
        request: Asked,
        model: str,
        headers: list[TensorHeader],
        frames: list[bytes],
        form: TextForm,
        count: int = 0,
    ) -> None:
        """Submit a request; ``count``: its tokens, if they are known."""
        time_ns = self._slo_ns(exchange, request, model)
        sender, signature = exchange.sender, self._driver.catalog.resolve(model)
        assert isinstance(sender, HttpConnection)
        if exchange.abandoned:
            return
        expected = answer_bytes(signature, tuple(headers), text=True)
        if not sender.holds(exchange, expected):
            raise BadRequest(Reason.OVERLOADED, no_room_for_answer(self._services.answers, expected))
        if sender.peer is None:
            sender.peer = self._services.connection()
        asked = InferRequest(
            self._services.next_key(),
            model,
            tuple(headers),
            time_ns,
            traceparent=exchange.header(b"traceparent") or "",
            back_ns=self._services.back.expected_ns(HTTP, expected, time_ns, monotonic_ns()),
            late_outputs=False,
        )
        done = functools.partial(self._done, exchange, request, form, count)
        shown = from_header(exchange.header(b"authorization"))
        self._services.submit(sender.peer, asked, frames, done, exchange.arrived_ns, shown)

    def _done(self, exchange: Exchange, request: Asked, form: TextForm, count: int, outcome: Outcome) -> None:
        """Send a request's outcome. Nothing may be raised: the request table is at work above."""
        if not isinstance(outcome, Answer):
            exchange.refuse(outcome.reason, outcome.detail, outcome.earliest_finish_left_ns)
            return
        left_ns, now_ns = outcome.timing.left_ns, monotonic_ns()
        due_ns = None if left_ns is None else now_ns + left_ns

        def send(body: bytes) -> None:
            late_ns = 0 if due_ns is None else monotonic_ns() - due_ns
            if late_ns > 0:
                exchange.refuse(Reason.TIMED_OUT, late_detail(late_ns))
                return
            more = server_timing(outcome.timing, monotonic_ns() - now_ns)
            exchange.reply(200, (body,), JSON_TYPE, more)

        self._slices.do(
            _body(request, form, count, outcome),
            send,
            functools.partial(reply_to_error, exchange),
            lambda: not exchange.abandoned,
        )


def _body(request: Asked, form: TextForm, count: int, answer: Answer) -> Steps[bytes]:
    """Return an answer's body; raise `BadRequest` for texts that are too long."""
    found = {
        header.name: np.frombuffer(cast("bytes", frame), header.dtype).reshape(header.shape)
        for header, frame in zip(answer.outputs, answer.frames, strict=True)
    }
    if form.counted and form.most_tokens:
        counts = found[form.counted].reshape(-1)
        long = np.flatnonzero(counts > form.most_tokens)
        if len(long) and not request.truncate:
            at = int(long[0])
            raise openai.too_long(at, int(counts[at]), form.most_tokens)
        count = int(np.minimum(counts, form.most_tokens).sum())
    elif form.counted:
        count = int(found[form.counted].sum())
    result = found[form.result.name]
    if isinstance(request, RerankRequest):
        return openai.ranked(request, result)
    return (yield from openai.embeddings(request, result, count))


def _shed(_exchange: Exchange, _reason: Reason) -> None:
    """Count nothing: which model a request is for has not been read."""
