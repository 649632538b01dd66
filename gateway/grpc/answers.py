"""An answer as a ModelInferResponse, with its tensors as raw contents. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mainspring.gateway.core.effects import Answer, Refuse
from mainspring.gateway.grpc.messages import Message, ModelInferResponse, ModelStreamInferResponse
from mainspring.gateway.grpc.wire import INFER_RESPONSE, RAW_OUTPUT_CONTENTS, field, paste
from mainspring.gateway.oip import datatypes
from mainspring.gateway.oip.classification import classify, rows_of
from mainspring.gateway.oip.datatypes import BYTES, datatype_of
from mainspring.gateway.oip.errors import sentence
from mainspring.gateway.oip.json_data import to_array
from mainspring.gateway.oip.parameters import member_of
from mainspring.gateway.oip.spans import Span
from mainspring.gateway.oip.steps import Steps, mapped
from mainspring.messages.clients import Timing
from mainspring.messages.model import slot_bytes
from mainspring.messages.peers import TensorHeader

FINAL_RESPONSE = "triton_final_response"
"""Parameter of a streamed answer: whether it is the last to its request. Here each is the only one."""

REASON = "reason"
"""Parameter of a streamed refusal: its reason code."""
EARLIEST_FINISH = "earliest_finish_ms"
"""Parameter of a streamed refusal: time from it to the earliest finish that was possible, if known."""


class Asked(NamedTuple):
    """The facts of a request that its answer needs."""

    id: str
    model: str
    """Name by which the client calls the model."""
    version: int
    classes: Mapping[str, int]
    """Number of classes that are wanted of each output that is to be classified."""
    whole: bool = False
    """True if outputs have no axis for rows."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Names of classes by index, of outputs that have some."""
    spans: Mapping[str, Span] = {}
    """Place in shared memory of each output that does not come with the answer."""
    rows_axes: Mapping[str, int] = {}
    """Axis of the rows of each output that doesn't have them in front."""


Place = Callable[[str, Span, Any], Steps[None]]
"""Writes an output's bytes, by its name, to shared memory."""


def unary(asked: Asked, answer: Answer, place: Place) -> Steps[bytes]:
    """Return an answer as a ModelInferResponse."""
    return b"".join((yield from _parts(asked, answer, _head(asked, answer.timing), place)))


def streamed(asked: Asked, answer: Answer, place: Place) -> Steps[bytes]:
    """Return an answer as a ModelStreamInferResponse."""
    head = _head(asked, answer.timing)
    head.parameters[FINAL_RESPONSE].bool_param = True
    parts = yield from _parts(asked, answer, head, place)
    return b"".join([field(INFER_RESPONSE, sum(map(len, parts))), *parts])


def streamed_refusal(asked_id: str, refusal: Refuse, *, triton: bool = False) -> bytes:
    """Return a request's refusal as a ModelStreamInferResponse; ``triton``: in Triton's words."""
    said = sentence(refusal.reason, refusal.detail, refusal.earliest_finish_left_ns, triton=triton)
    message = _error(asked_id, said)
    parameters = message.infer_response.parameters
    parameters[REASON].string_param = refusal.reason.value
    if refusal.earliest_finish_left_ns is not None:
        parameters[EARLIEST_FINISH].double_param = refusal.earliest_finish_left_ns / 1e6
    return bytes(message.SerializeToString())


def streamed_error(asked_id: str, detail: str) -> bytes:
    """Return why a request has no answer, where no reason code says it, as a ModelStreamInferResponse."""
    return bytes(_error(asked_id, detail).SerializeToString())


def _error(asked_id: str, said: str) -> Message:
    message = ModelStreamInferResponse(error_message=said)
    message.infer_response.id = asked_id
    message.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    return message


def _head(asked: Asked, timing: Timing) -> Message:
    head = ModelInferResponse(model_name=asked.model, model_version=str(asked.version), id=asked.id)
    parameters = head.parameters
    for name, spent_ns in (
        ("total_ns", timing.total_ns),
        ("receive_ns", timing.receive_ns),
        ("queue_ns", timing.queue_ns),
        ("input_ns", timing.input_ns),
        ("load_ns", timing.load_ns),
        ("wait_ns", timing.wait_ns),
        ("execute_ns", timing.execute_ns),
        ("output_ns", timing.output_ns),
    ):
        parameters[name].int64_param = spent_ns
    parameters["batch_size"].int64_param = timing.batch_size
    parameters["cold_start"].bool_param = timing.cold_start
    parameters["worker"].string_param = timing.worker
    if timing.left_ns is not None:
        parameters["deadline_ns_left"].int64_param = timing.left_ns
    if timing.cached:
        parameters["cached"].bool_param = True
    if timing.steps:
        parameters["steps"].string_param = msgspec.json.encode(timing.steps).decode()
    if timing.missing:
        parameters["missing"].string_param = msgspec.json.encode(timing.missing).decode()
    if (learnt := timing.learnt) is not None:
        parameters["query_id"].int64_param = learnt.query_id
        parameters["models"].string_param = msgspec.json.encode(learnt.models).decode()
        if learnt.defaults:
            parameters["defaults"].int64_param = learnt.defaults
        if learnt.shared:
            parameters["shared"].bool_param = True
    elif member := member_of(timing):
        parameters["member"].string_param = member
    return head


def _parts(asked: Asked, answer: Answer, head: Message, place: Place) -> Steps[list[Any]]:
    contents = []
    for header, frame in zip(answer.outputs, answer.frames, strict=True):
        classes = asked.classes.get(header.name, 0)
        labels = asked.labels.get(header.name, ())
        datatype, shape, content = yield from _output(header, frame, classes, asked, labels)
        head.outputs.add(name=header.name, datatype=datatype, shape=shape)
        span = asked.spans.get(header.name)
        if span is None:
            contents.append(content)
            continue
        # Clients count on an element of the raw contents for each output.
        contents.append(b"")
        yield from place(header.name, span, content)
    return paste(head.SerializeToString(), RAW_OUTPUT_CONTENTS, contents)


def _output(
    header: TensorHeader, frame: Any, classes: int, asked: Asked, labels: Sequence[str]
) -> Steps[tuple[str, tuple[int, ...], Any]]:
    """Return an output's datatype, shape and raw contents."""
    slot = slot_bytes(header.dtype)
    if slot is not None:
        pieces = yield from mapped(datatypes.from_slots(frame, slot), datatypes.join)
        return BYTES, header.shape, b"".join(pieces)
    if not classes:
        return datatype_of(header.dtype), header.shape, frame
    values = to_array(frame, header.dtype).reshape(header.shape)
    ordered = rows_of(values, asked.rows_axes.get(header.name, 0), whole=asked.whole)
    rows = yield from classify(ordered, classes, labels)
    shape = (len(rows), len(rows[0]) if rows else 0)
    return BYTES, shape[1:] if asked.whole else shape, b"".join((yield from mapped(rows, datatypes.join)))
