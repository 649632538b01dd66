"""An answer as the body of a response: JSON, then the bytes of the outputs that are wanted as such."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mainspring.gateway.oip import elements, json_data
from mainspring.gateway.oip.classification import classify
from mainspring.gateway.oip.datatypes import BYTES, datatype_of
from mainspring.gateway.oip.request import Form, Wanted
from mainspring.gateway.sends import Answer
from mainspring.messages.clients import Timing
from mainspring.messages.model import slot_bytes
from mainspring.messages.peers import TensorHeader


class _Binary(msgspec.Struct):
    binary_data_size: int


class _Output(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | msgspec.Raw | None = None
    parameters: _Binary | None = None


class ResponseParameters(msgspec.Struct, omit_defaults=True):
    """What became of a request's time."""

    queue_ns: int
    """From arrival to dispatch."""
    batch_size: int
    cold_start: bool
    """Whether the model's weights were not on the device when the request came."""
    worker: str
    deadline_ns_left: int | None = None
    """Time left when the reply was made, negative if it was late; not there for best effort."""
    cached: bool = False
    """Whether the outputs are those of an earlier request of equal inputs."""


class _Response(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Output]
    parameters: ResponseParameters
    id: str = ""


_ENCODER = msgspec.json.Encoder()


class Body(NamedTuple):
    """A response's body: ``text`` is JSON, ``tensors`` the bytes that follow it."""

    text: bytes
    tensors: list[Any]

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.text) + sum(map(len, self.tensors))


def parameters_of(timing: Timing) -> ResponseParameters:
    """Return the parameters of a response."""
    return ResponseParameters(
        timing.queue_ns, timing.batch_size, timing.cold_start, timing.worker, timing.left_ns, timing.cached
    )


def render(model: str, version: str, wanted: Wanted, answer: Answer) -> Body:
    """Return the body that answers a request for ``model``, as the client calls it, with what it wants."""
    outputs, tensors = [], []
    for header, frame in zip(answer.outputs, answer.frames, strict=True):
        form = wanted.forms.get(header.name, wanted.default)
        output, content = _output(header, frame, form)
        outputs.append(output)
        if content is not None:
            tensors.append(content)
    response = _Response(model, version, outputs, parameters_of(answer.timing), wanted.id)
    return Body(_ENCODER.encode(response), tensors)


def _output(header: TensorHeader, frame: Any, form: Form) -> tuple[_Output, Any]:
    """Return an output's JSON, and its bytes if they follow it."""
    slot = slot_bytes(header.dtype)
    if form.classes and slot is None:
        return _classes(header, frame, form)
    if slot is not None:
        return _bytes(header.name, header.shape, elements.from_slots(frame, slot), form.binary)
    datatype = datatype_of(header.dtype)
    if form.binary:
        return _Output(header.name, datatype, header.shape, parameters=_Binary(len(frame))), frame
    data = json_data.from_bytes(frame, header.dtype)
    return _Output(header.name, datatype, header.shape, data), None


def _classes(header: TensorHeader, frame: Any, form: Form) -> tuple[_Output, Any]:
    rows = json_data.to_array(frame, header.dtype).reshape(header.shape)
    classes = classify(rows, form.classes)
    shape = (len(classes), len(classes[0]) if classes else 0)
    return _bytes(header.name, shape, [each for row in classes for each in row], form.binary)


def _bytes(name: str, shape: tuple[int, ...], found: list[bytes], binary: bool) -> tuple[_Output, Any]:
    if binary:
        content = elements.join(found)
        return _Output(name, BYTES, shape, parameters=_Binary(len(content))), content
    return _Output(name, BYTES, shape, [each.decode(errors="replace") for each in found]), None
