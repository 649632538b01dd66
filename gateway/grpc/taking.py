"""Making the request table's request of a ModelInferRequest, with the deadline that the call gives it.

A client sends the same message again and again, but for its tensors, and to make a request of it costs more
than all else here. So what a message says beside its tensors is remembered by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from time import monotonic_ns
from typing import Any, Final, NamedTuple

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.grpc import requests
from mainspring.gateway.grpc.access import Caller, check, priority
from mainspring.gateway.grpc.answers import Asked
from mainspring.gateway.grpc.messages import Message, ModelInferRequest, decode
from mainspring.gateway.grpc.peers import Call
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.memory import answer_bytes
from mainspring.gateway.oip.parameters import (
    AT_LEAST_PARAMETER,
    CONTEXT_PARAMETER,
    PRIORITY_PARAMETER,
    SEQUENCE_PARAMETERS,
    SLO_HEADER,
    SLO_PARAMETER,
    TIMEOUT_PARAMETER,
    Place,
    at_least_of,
    context_of,
    default_slo_ns,
    place_of,
    priority_of,
    slo_ns,
    version_of,
)
from mainspring.gateway.oip.spans import SharedInput, Span, check_room
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.regions import Parts
from mainspring.gateway.services import Services
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from mainspring.messages.served import ServedModel

TRACEPARENT = "traceparent"
"""Metadata that name the client's span, as W3C's Trace Context has it."""
MOST_KNOWN: Final = 1_024
"""Messages that are remembered; once there are more, all are forgotten."""
_LONGEST_BYTES: Final = 1_024
"""Most bytes of a message that is remembered, without its tensors."""


class Limits:
    """Finds a call's time left: its own deadline, its parameters and metadata, and the defaults."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._longest_ns = milliseconds(config.max_slo_ms)

    def slo_ns(
        self,
        parameters: Mapping[str, Any],
        caller: Caller,
        options: ServedModel,
        arrived_ns: int,
        priority: int = 0,
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
            default_ns=default_slo_ns(self._config, options, priority),
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


class Said(NamedTuple):
    """The content of a message beside its tensors, of a model as it is now."""

    signature: Signature
    options: ServedModel
    version: int | None
    headers: tuple[TensorHeader, ...]
    """Headers of its inputs."""
    parameters: dict[str, Any]
    outputs: tuple[str, ...] | None
    priority: int
    place: Place
    asked: Asked
    answer_bytes: int
    """Approximate bytes of its answer, with all outputs."""
    uncopied: bool
    """True if its tensors are its raw contents as they came, one for each input."""

    def fits(self, signature: Signature, options: ServedModel, raw: list[Any]) -> bool:
        """Say whether the same message says the same with these raw contents, of a model as it is now."""
        return self.signature is signature and self.options == options and len(raw) == len(self.headers)


class Read(NamedTuple):
    """A message as it came."""

    beside: bytes
    """Bytes of the message without its raw contents."""
    raw: list[Any]
    message: Message
    """Message without the raw contents, decoded from `beside`."""
    said: Said | None
    """Content of the message, if it is remembered."""


class Taken(NamedTuple):
    """A request that the table can have."""

    asked: Asked
    request: InferRequest
    frames: list[Any]
    answer_bytes: int
    """Approximate bytes of its answer, with all outputs."""
    parts: Parts
    """Places in shared memory of the inputs that are yet to be read, and of the outputs."""
    taken_ns: int
    """Instant, on this process's clock, from which the request's time left counts."""

    def place(self, name: str, span: Span, content: Any) -> Steps[None]:
        """Write an output to shared memory."""
        return self.parts[span].write(name, (content,))


class Taking:
    """Makes the table's requests of messages, for one server."""

    def __init__(self, services: Services, config: GatewayConfig, shared: SharedMemory) -> None:
        self._services = services
        self._limits = Limits(config)
        self._shared = shared
        self._most_bytes = config.grpc_max_message_bytes
        self._known: dict[bytes, tuple[Message, Said]] = {}
        """Decoded messages and their content, by the bytes of messages without their raw contents."""

    def read(self, data: bytes) -> Read:
        """Return the message that bytes are; raise `Unfit`."""
        beside, raw = requests.split(data)
        known = self._known.get(beside)
        if known is not None:
            return Read(beside, raw, known[0], known[1])
        return Read(beside, raw, decode(ModelInferRequest, beside), None)

    def take(self, read: Read, arrived_ns: int, caller: Caller, call: Call) -> Taken:
        """Return the request that a message makes; ``call`` holds its answer's bytes.

        ``arrived_ns`` is when its call began, or in a stream it came, on this process's clock. Raises
        `BadRequest`, and `Ended` for what the protocol has and this server has not.
        """
        try:
            taken = self._take(read, arrived_ns, caller, call)
            call.hold(taken.answer_bytes)
            return taken
        except BadRequest as error:
            self._services.turned_away(read.message.model_name, error.reason)
            raise

    def complete(self, taken: Taken) -> Steps[Taken]:
        """Return a request with those of its inputs that are in shared memory; raise `BadRequest`."""
        request, asked = taken.request, taken.asked
        try:
            frames = yield from self._shared.filled(taken.frames, taken.parts, self._most_bytes)
        except BadRequest as error:
            self._services.turned_away(asked.model, error.reason)
            raise
        if request.slo_ns is not None:
            left_ns = max(1, request.slo_ns - (monotonic_ns() - taken.taken_ns))
            request = msgspec.structs.replace(request, slo_ns=left_ns)
        written = {span: taken.parts[span] for span in asked.spans.values()}
        return taken._replace(request=request, frames=frames, parts=written)

    def _take(self, read: Read, arrived_ns: int, caller: Caller, call: Call) -> Taken:
        driver = self._services.driver
        name = read.message.model_name
        check(driver.gate, caller, name)
        if (alone := driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        said, frames = self._said(read, name)
        spans: list[Span] = []
        if not said.uncopied:
            spans = [frame.span for frame in frames if isinstance(frame, SharedInput)]
            spans += said.asked.spans.values()
        parts = self._shared.parts(caller, spans) if spans else {}
        left_ns = self._limits.slo_ns(said.parameters, caller, said.options, arrived_ns, said.priority)
        taken_ns = monotonic_ns()
        sequence_id, sequence_start, sequence_end = said.place
        request = InferRequest(
            key=self._services.next_key(),
            model=name,
            inputs=said.headers,
            slo_ns=left_ns,
            outputs=said.outputs,
            version=said.asked.version,
            traceparent=caller.said(TRACEPARENT) or "",
            priority=priority(driver.gate, caller, said.priority),
            back_ns=self._services.back.expected_ns(call.way, said.answer_bytes, left_ns, taken_ns),
            late_outputs=False,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            at_least=at_least_of(said.parameters.get(AT_LEAST_PARAMETER)),
            context=context_of(said.parameters.get(CONTEXT_PARAMETER)),
        )
        return Taken(said.asked, request, frames, said.answer_bytes, parts, taken_ns)

    def _said(self, read: Read, name: str) -> tuple[Said, list[Any]]:
        """Return what a message says, and the bytes of its inputs; raise `BadRequest`."""
        message, raw, known = read.message, read.raw, read.said
        catalog = self._services.driver.catalog
        version = version_of(message.model_version) if known is None else known.version
        signature, options = catalog.resolve(name, version), catalog.options(name)
        if known is not None and known.fits(signature, options, raw):
            return known, raw
        said, frames = understand(message, raw, signature, options)
        if said.uncopied and len(read.beside) <= _LONGEST_BYTES:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[read.beside] = message, said
        return said, frames


def understand(
    message: Message, raw: list[Any], signature: Signature, options: ServedModel
) -> tuple[Said, list[Any]]:
    """Return what a message says to a model, and the bytes of its inputs; raise `BadRequest`."""
    inputs = requests.inputs(message, raw, signature)
    parameters = requests.parameters(message.parameters)
    forms = requests.forms(message.outputs, signature)
    if forms.spans:
        check_room(signature, inputs.headers, forms.spans)
    frames = inputs.frames
    asked = Asked(
        message.id,
        message.model_name,
        signature.spec.version,
        forms.classes,
        signature.whole,
        options.labels,
        forms.spans,
        signature.rows_axes,
    )
    said = Said(
        signature=signature,
        options=options,
        version=version_of(message.model_version),
        headers=inputs.headers,
        parameters=parameters,
        outputs=tuple([output.name for output in message.outputs]) or None,
        priority=priority_of(parameters.get(PRIORITY_PARAMETER)),
        place=place_of(signature.spec, *[parameters.get(each) for each in SEQUENCE_PARAMETERS]),
        asked=asked,
        answer_bytes=answer_bytes(signature, inputs.headers, text=False),
        uncopied=not forms.spans and len(raw) == len(frames) and all(map(is_, raw, frames)),
    )
    return said, frames
