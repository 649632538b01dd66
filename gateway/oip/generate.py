"""Triton's ``generate``: an object of inputs by name, one row of each, and of outputs by name. Pure.

``{"text_input": "a"}`` is the request whose input ``text_input`` has that one value; a list has the values of
a whole row. The key ``parameters``, and every key that names no input, are parameters of the request.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip import compression, json_data, request
from mainspring.gateway.oip.datatypes import Unfit, datatype_of
from mainspring.gateway.oip.response import Body
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec

_ENCODER = msgspec.json.Encoder()
_NO_NUMBERS = (b"NaN", b"Infinity")
_EVENT, _END = b"data: ", b"\n\n"


class _Output(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    data: msgspec.Raw


class _Response(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[_Output]
    id: str = ""


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PARAMETERS = msgspec.json.Decoder(dict[str, Any])
_RESPONSE = msgspec.json.Decoder(_Response)


def parse(signature: Signature, body: memoryview, max_json_bytes: int) -> request.Parsed:
    """Return what a body says, as `request.parse` does for one of inference; raise `Unfit`."""
    if len(body) > max_json_bytes:
        raise compression.TooLarge(
            "the JSON", max_json_bytes, compression.JSON_KEY, "ask for /infer with binary data"
        )
    try:
        return _parsed(signature, body)
    except Unfit:
        if why := json_data.not_utf8(body):
            raise request.unreadable(why) from None
        raise


def _parsed(signature: Signature, body: memoryview) -> request.Parsed:
    request.check_count(signature, body)
    inputs, parameters, asked_id = [], {}, msgspec.Raw(b'""')
    for name, value in _object(body).items():
        if bytes(memoryview(value)[:8]).strip() == json_data.NULL:
            continue
        if name in signature.inputs:
            inputs.append(_input(signature, name, bytes(value).strip()))
        elif name == "id":
            asked_id = value
        elif name == "parameters":
            parameters.update(_parameters(value))
        else:
            parameters.setdefault(name, value)
    asked = _ENCODER.encode({"id": asked_id, "inputs": inputs, "parameters": parameters})
    return request.parse(signature, memoryview(asked), None, len(asked))


def _object(body: memoryview) -> dict[str, msgspec.Raw]:
    text = bytes(body)
    try:
        return _OBJECT.decode(text)
    except json_data.UNREADABLE as error:
        if isinstance(error, msgspec.ValidationError) or not any(each in text for each in _NO_NUMBERS):
            raise _unreadable(error, text) from None
    try:
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise _unreadable(error, text) from None


def _parameters(value: msgspec.Raw) -> dict[str, Any]:
    try:
        return _PARAMETERS.decode(value)
    except json_data.UNREADABLE as error:
        raise _unreadable(error, value) from None


def _unreadable(error: Exception, text: Any) -> Unfit:
    return Unfit(
        Reason.BAD_MESSAGE,
        f"the request's JSON can't be read: {json_data.explained(error, text)}; it is an object with a "
        "value, or the list of a row's values, for each input",
    )


def _input(signature: Signature, name: str, value: bytes) -> dict[str, Any]:
    """Return an input as a request of inference has it, with one row; a list that is open is as long as it
    is."""
    tensor = signature.spec.inputs[signature.inputs[name]]
    if tensor.open:
        if len(tensor.shape) > 1:
            raise Unfit(
                Reason.BAD_INPUT,
                f"input {name!r} has open dimensions, and a value by name has no shape: send a request of "
                "inference",
            )
        tensor = TensorSpec(name, tensor.dtype, (_length(value),))
    return {
        "name": name,
        "shape": signature.spec.client_shape(tensor, 1),
        "datatype": datatype_of(tensor.dtype),
        "data": msgspec.Raw(value if value.startswith(b"[") else b"[%b]" % value),
    }


def _length(value: bytes) -> int:
    """Return how many elements a list has; a value alone is one."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error, value) from None
    return len(found) if isinstance(found, list) else 1


def generated(body: Body, *, event: bool) -> bytes:
    """Return an answer's outputs by name, as JSON or an event with it; a single value stands for itself."""
    text = b"".join(body.texts)
    try:
        said = _RESPONSE.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return _framed(_with_nan(text), event=event)
    found: dict[str, Any] = {"model_name": said.model_name, "model_version": said.model_version}
    if said.id:
        found["id"] = said.id
    for output in said.outputs:
        data = bytes(output.data)
        found[output.name] = msgspec.Raw(data.strip()[1:-1] if math.prod(output.shape) == 1 else data)
    return _framed(_ENCODER.encode(found), event=event)


def _with_nan(text: bytes) -> bytes:
    """Do as `generated` where numbers are not JSON's."""
    said = json.loads(text)
    found = {name: said[name] for name in ("model_name", "model_version", "id") if said.get(name)}
    for output in said["outputs"]:
        data = output["data"]
        found[output["name"]] = data[0] if math.prod(output["shape"]) == 1 else data
    return json.dumps(found, separators=(",", ":")).encode()


def _framed(text: bytes, *, event: bool) -> bytes:
    return _EVENT + text + _END if event else text
