"""From a ModelInferRequest to what the request table takes, with the deadline that the call gives it."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec

from mainspring.gateway.bounds import answer_bytes
from mainspring.gateway.calls import Calls
from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc import requests
from mainspring.gateway.grpc.access import Caller, check, priority
from mainspring.gateway.grpc.answers import Asked
from mainspring.gateway.grpc.messages import Message
from mainspring.gateway.grpc.peers import Call
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.oip.parameters import (
    PRIORITY_PARAMETER,
    SEQUENCE_PARAMETERS,
    SLO_HEADER,
    SLO_PARAMETER,
    TIMEOUT_PARAMETER,
    default_slo_ns,
    place_of,
    priority_of,
    slo_ns,
    version_of,
)
from mainspring.gateway.oip.spans import Span, check_room, spans_in
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.regions import Parts
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.served import ServedModel

TRACEPARENT = "traceparent"
"""Metadata that name the client's span, as W3C's Trace Context has it."""


class Limits:
    """Finds a call's time left: its own deadline, its parameters and metadata, and the defaults."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._longest_ns = milliseconds(config.max_slo_ms)

    def slo_ns(
        self, parameters: Mapping[str, Any], caller: Caller, options: ServedModel, arrived_ns: int
    ) -> int | None:
        """Return the time from now to the deadline of a request; None for best effort.

        ``arrived_ns`` is when its call began, or in a stream its message came, on this process's clock;
        ``options`` are its model's. Raises `BadRequest` for what is not a duration.
        """
        spent_ns = monotonic_ns() - arrived_ns
        left_ns = self._left_ns(caller)
        found_ns = slo_ns(
            timeout_us=parameters.get(TIMEOUT_PARAMETER),
            slo_ms=parameters.get(SLO_PARAMETER),
            header=caller.said(SLO_HEADER),
            # The call's own deadline says what is left of it now, the others what there was on arrival.
            left_ns=None if left_ns is None else left_ns + spent_ns,
            default_ns=default_slo_ns(self._config, options),
        )
        if found_ns is None:
            return None
        # The controller, which knows how long the model takes, refuses what is too late already.
        return max(1, found_ns - spent_ns)

    def _left_ns(self, caller: Caller) -> int | None:
        """Return what the call's own deadline leaves; clients that want none often set one years ahead."""
        left_s = caller.left_s()
        if left_s is None or left_s * 1e9 > self._longest_ns:
            return None
        return max(1, round(left_s * 1e9))


class Taken(NamedTuple):
    """A request that the table can have."""

    asked: Asked
    request: InferRequest
    frames: list[Any]
    answer_bytes: int
    """About what its answer will have, all outputs taken."""
    parts: Parts
    """Where in shared memory inputs are that are yet to be read, and outputs go."""
    taken_ns: int
    """When the request's time left was what it says, on this process's clock."""

    def place(self, name: str, span: Span, content: Any) -> Steps[None]:
        """Write an output to shared memory."""
        return self.parts[span].write(name, (content,))


class Taking:
    """Makes the table's requests of messages, for one server."""

    def __init__(self, calls: Calls, config: GatewayConfig, shared: SharedMemory) -> None:
        self._calls = calls
        self._limits = Limits(config)
        self._shared = shared
        self._most_bytes = config.grpc_max_message_bytes

    def take(self, message: Message, raw: list[Any], arrived_ns: int, caller: Caller, call: Call) -> Taken:
        """Return the request that a message with these raw contents makes; ``call`` holds its answer's bytes.

        ``arrived_ns`` is when its call began, or in a stream it came, on this process's clock. Raises
        `BadRequest`, and `Ended` for what the protocol has and this server has not.
        """
        try:
            taken = self._take(message, raw, arrived_ns, caller, call)
            call.hold(taken.answer_bytes)
            return taken
        except BadRequest as error:
            self._calls.turned_away(message.model_name, error.reason)
            raise

    def complete(self, taken: Taken) -> Steps[Taken]:
        """Return a request with those of its inputs that are in shared memory; raise `BadRequest`."""
        request, asked = taken.request, taken.asked
        try:
            frames = yield from self._shared.filled(taken.frames, taken.parts, self._most_bytes)
        except BadRequest as error:
            self._calls.turned_away(asked.model, error.reason)
            raise
        if request.slo_ns is not None:
            left_ns = max(1, request.slo_ns - (monotonic_ns() - taken.taken_ns))
            request = msgspec.structs.replace(request, slo_ns=left_ns)
        written = {span: taken.parts[span] for span in asked.spans.values()}
        return taken._replace(request=request, frames=frames, parts=written)

    def _take(self, message: Message, raw: list[Any], arrived_ns: int, caller: Caller, call: Call) -> Taken:
        driver = self._calls.driver
        name = message.model_name
        check(driver.gate, caller, name)
        if (alone := driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        signature = driver.catalog.resolve(name, version_of(message.model_version))
        inputs = requests.inputs(message, raw, signature)
        parameters = requests.parameters(message.parameters)
        options = driver.catalog.options(name)
        forms = requests.forms(message.outputs, signature)
        if forms.spans:
            check_room(signature, inputs.headers, forms.spans)
        spans = [*spans_in(inputs.frames), *forms.spans.values()]
        parts = self._shared.parts(caller, spans) if spans else {}
        left_ns, taken_ns = self._limits.slo_ns(parameters, caller, options, arrived_ns), monotonic_ns()
        held_bytes = answer_bytes(signature, inputs.headers, text=False)
        place = place_of(signature.spec, *[parameters.get(each) for each in SEQUENCE_PARAMETERS])
        request = InferRequest(
            key=self._calls.next_key(),
            model=name,
            inputs=inputs.headers,
            slo_ns=left_ns,
            outputs=tuple([output.name for output in message.outputs]) or None,
            version=signature.spec.version,
            traceparent=caller.said(TRACEPARENT) or "",
            priority=priority(driver.gate, caller, priority_of(parameters.get(PRIORITY_PARAMETER))),
            back_ns=self._calls.back.expected_ns(call.way, held_bytes, left_ns, monotonic_ns()),
            late_outputs=False,
            **place._asdict(),
        )
        asked = Asked(
            message.id,
            name,
            signature.spec.version,
            forms.classes,
            signature.whole,
            options.labels,
            forms.spans,
            signature.rows_axes,
        )
        return Taken(asked, request, inputs.frames, held_bytes, parts, taken_ns)
