"""An answer as the body of a response: JSON, then the bytes of the outputs that are wanted as such."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from mainspring.gateway.core.effects import Answer
from mainspring.gateway.oip import datatypes, json_data
from mainspring.gateway.oip.classification import classify, rows_of
from mainspring.gateway.oip.datatypes import BYTES, DATATYPES, datatype_of
from mainspring.gateway.oip.json_data import (
    InferResponse,
    ResponseOutput,
    ResponseOutputParameters,
    ResponseParameters,
)
from mainspring.gateway.oip.parameters import member_of
from mainspring.gateway.oip.request import Form, Wanted
from mainspring.gateway.oip.spans import Span
from mainspring.gateway.oip.steps import SLICE_VALUES, Steps, mapped
from mainspring.messages.clients import NOTHING_LEARNT, Timing
from mainspring.messages.model import slot_bytes
from mainspring.messages.peers import TensorHeader

_ENCODER = msgspec.json.Encoder()
_EMPTY = b"[]"
_SLICE_BYTES = 4 * SLICE_VALUES
"""Bytes of outputs written in one slice; small values, of which more fit, are the quickest to write."""
_MARK = b"\0"
"""Stands for text that is put in later. In JSON itself there is no such byte: in a string it is escaped."""
_ELSEWHERE = msgspec.Raw(_MARK)


class Placed(NamedTuple):
    """An output that goes to shared memory."""

    name: str
    span: Span
    pieces: list[Any]


class Body(NamedTuple):
    """A response's body: JSON, then the bytes of tensors, each in one piece or several."""

    texts: list[bytes]
    tensors: list[Any]
    placed: tuple[Placed, ...] = ()
    """Outputs that go to shared memory instead."""

    @property
    def text_bytes(self) -> int:
        """Bytes of the JSON."""
        return sum(map(len, self.texts))

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.text_bytes + sum(map(len, self.tensors))


def parameters_of(timing: Timing) -> ResponseParameters:
    """Return the parameters of a response."""
    learnt = timing.learnt or NOTHING_LEARNT
    return ResponseParameters(
        timing.total_ns,
        timing.receive_ns,
        timing.queue_ns,
        timing.input_ns,
        timing.load_ns,
        timing.wait_ns,
        timing.execute_ns,
        timing.output_ns,
        timing.batch_size,
        timing.cold_start,
        timing.worker,
        timing.left_ns,
        timing.cached,
        timing.steps,
        timing.missing,
        member_of(timing) if timing.learnt is None else "",
        learnt.query_id,
        learnt.models,
        learnt.defaults,
        learnt.shared,
    )


def render_small(model: str, version: str, wanted: Wanted, answer: Answer) -> Body | None:
    """Do as `render` in no time; return None for an answer that may take longer."""
    outputs, tensors = [], []
    size = 0
    for header, frame in zip(answer.outputs, answer.frames, strict=True):
        form = wanted.forms.get(header.name, wanted.default)
        datatype = DATATYPES.get(header.dtype)
        if datatype is None or form.classes or form.span is not None:
            return None
        if form.binary:
            outputs.append(
                ResponseOutput(
                    header.name, datatype, header.shape, parameters=ResponseOutputParameters(len(frame))
                )
            )
            tensors.append(frame)
            continue
        size += len(frame)
        if size > _SLICE_BYTES:
            return None
        data = msgspec.Raw(json_data.encoded(frame, header.dtype))
        outputs.append(ResponseOutput(header.name, datatype, header.shape, data))
    response = InferResponse(model, version, outputs, parameters_of(answer.timing), wanted.id)
    return Body([_ENCODER.encode(response)], tensors)


def render(model: str, version: str, wanted: Wanted, answer: Answer) -> Steps[Body]:
    """Return the body that answers a request for ``model``, as the client calls it, with what it wants."""
    outputs, texts, tensors, placed = [], [], [], []
    work = 0
    for header, frame in zip(answer.outputs, answer.frames, strict=True):
        form = wanted.forms.get(header.name, wanted.default)
        is_plain = form.binary and not form.classes and header.dtype in DATATYPES
        size = 0 if is_plain else len(frame)
        if work and work + size > _SLICE_BYTES:
            yield
            work = 0
        work += size
        output, text, content = yield from _output(header, frame, form, wanted.labels.get(header.name, ()))
        if len(text) > 1:
            output.data = _ELSEWHERE
            texts.append(text)
        elif text:
            output.data = msgspec.Raw(text[0])
        outputs.append(output)
        if form.span is None:
            tensors += content
            continue
        placed.append(Placed(header.name, form.span, content))
        # Triton's clients look for the tensor in the body if there is a parameter.
        output.parameters = msgspec.UNSET
    response = InferResponse(model, version, outputs, parameters_of(answer.timing), wanted.id)
    encoded = _ENCODER.encode(response)
    return Body(_filled(encoded, texts) if texts else [encoded], tensors, tuple(placed))


def _filled(encoded: bytes, texts: list[list[bytes]]) -> list[bytes]:
    """Return JSON with these texts where they belong, uncopied."""
    first, *others = encoded.split(_MARK)
    found = [first]
    for text, after in zip(texts, others, strict=True):
        found += (*text, after)
    return found


def _output(
    header: TensorHeader, frame: Any, form: Form, labels: Sequence[str]
) -> Steps[tuple[ResponseOutput, list[bytes], list[Any]]]:
    """Return an output's JSON without its data, this as text, and its bytes if they follow the JSON."""
    slot = slot_bytes(header.dtype)
    if slot is not None:
        return (yield from _bytes(header.name, header.shape, datatypes.from_slots(frame, slot), form.binary))
    if form.classes:
        values = json_data.to_array(frame, header.dtype).reshape(header.shape)
        rows = rows_of(values, form.rows_axis, whole=form.whole)
        found = yield from classify(rows, form.classes, labels)
        shape: tuple[int, ...] = (len(found), len(found[0]) if found else 0)
        shape = shape[1:] if form.whole else shape
        return (yield from _bytes(header.name, shape, found, form.binary))
    output = ResponseOutput(header.name, datatype_of(header.dtype), header.shape)
    if form.binary:
        output.parameters = ResponseOutputParameters(len(frame))
        return output, [], [frame]
    lists: list[bytes] = []
    for each in json_data.from_bytes(frame, header.dtype):
        if lists:
            yield
        lists.append(each)
    return output, json_data.joined(lists), []


def _bytes(
    name: str, shape: tuple[int, ...], found: Iterable[list[bytes]], binary: bool
) -> Steps[tuple[ResponseOutput, list[bytes], list[Any]]]:
    """Return the same for an output of BYTES, whose elements come some at a time."""
    output = ResponseOutput(name, BYTES, shape)
    if binary:
        pieces = yield from mapped(found, datatypes.join)
        output.parameters = ResponseOutputParameters(sum(map(len, pieces)))
        return output, [], pieces
    lists = yield from mapped(found, _text)
    return output, json_data.joined([each for each in lists if each != _EMPTY] or [_EMPTY]), []


def _text(some: list[bytes]) -> bytes:
    return _ENCODER.encode([each.decode(errors="replace") for each in some])
