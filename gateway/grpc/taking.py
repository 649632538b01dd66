"""From a ModelInferRequest to what the request table takes, with the deadline that the call gives it."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, NamedTuple

from mainspring.gateway.bounds import answer_bytes
from mainspring.gateway.calls import Calls
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc import requests
from mainspring.gateway.grpc.access import Caller, check, priority
from mainspring.gateway.grpc.answers import Asked
from mainspring.gateway.grpc.deadlines import Limits
from mainspring.gateway.grpc.messages import Message
from mainspring.gateway.grpc.peers import Call
from mainspring.gateway.oip.priority import PRIORITY_PARAMETER, priority_of
from mainspring.gateway.oip.versions import version_of
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason

TRACEPARENT = "traceparent"
"""Metadata that name the client's span, as W3C's Trace Context has it."""


class Taken(NamedTuple):
    """A request that the table can have."""

    asked: Asked
    request: InferRequest
    frames: list[Any]
    answer_bytes: int
    """About what its answer will have, all outputs taken."""


class Taking:
    """Makes them, for one server."""

    def __init__(self, calls: Calls, config: GatewayConfig) -> None:
        self._calls = calls
        self._limits = Limits(config)

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
        slo_ns = self._limits.slo_ns(parameters, caller, options, arrived_ns)
        held_bytes = answer_bytes(signature, inputs.headers, text=False)
        request = InferRequest(
            key=self._calls.next_key(),
            model=name,
            inputs=inputs.headers,
            slo_ns=slo_ns,
            outputs=tuple([output.name for output in message.outputs]) or None,
            version=signature.spec.version,
            traceparent=caller.said(TRACEPARENT) or "",
            priority=priority(driver.gate, caller, priority_of(parameters.get(PRIORITY_PARAMETER))),
            back_ns=self._calls.back.expected_ns(call.way, held_bytes, slo_ns, monotonic_ns()),
            late_outputs=False,
        )
        classes = requests.classes(message.outputs, signature)
        asked = Asked(message.id, name, signature.spec.version, classes, signature.whole, options.labels)
        return Taken(asked, request, inputs.frames, held_bytes)
