"""The JSON of inference requests and responses: its structs, and a tensor's ``data`` to its bytes and back.

``data`` are numbers, true and false, or text, flat or nested.

Beside what JSON has, ``NaN``, ``Infinity`` and ``-Infinity`` are read and written, as Triton does. Nothing is
allocated by what a shape promises: only what has come is decoded.

The structs of requests' and responses' bodies stand here, because the modules that use them are compiled.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mainspring.gateway.oip import datatypes
from mainspring.gateway.oip.datatypes import Datatype, Unfit, datatype_of
from mainspring.gateway.oip.steps import SLICE_VALUES
from mainspring.messages.clients import StepTiming
from mainspring.messages.codes import Reason
from mainspring.messages.model import slot_bytes

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
"""Exceptions that reading JSON raises."""
NULL: Final = b"null"
_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_LONGEST = 300
Value = TypeVar("Value")


class _Input(msgspec.Struct, omit_defaults=True):
    """An input as it came; its data are read elsewhere."""

    name: Any = None
    shape: Any = None
    datatype: Any = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: Any = None


class _Request(msgspec.Struct, omit_defaults=True):
    inputs: list[_Input] | None = None
    id: Any = None
    parameters: Any = None
    outputs: Any = None


_REQUEST = msgspec.json.Decoder(_Request)


def whole(value: object) -> object:
    """Return an int for a float that is one, and anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(value: Any) -> Any:
    """Return what was decoded without what is null, and with ints for whole numbers."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return whole(value)


def decode(text: Any, kind: type[Value]) -> Value:
    """Return what a text says, of a kind whose fields may be absent; raise what is in `UNREADABLE`."""
    text = text or b"{}"
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        given = plain(msgspec.json.decode(text))
        return msgspec.convert({} if given is None else given, kind)


def decode_request(text: Any, kind: type[Value]) -> Value:
    """Do the same for a request of inference, whose tensors' data stay as they came."""
    given = _REQUEST.decode(text)
    found = plain({name: getattr(given, name) for name in ("id", "parameters", "outputs")})
    if given.inputs is not None:
        found["inputs"] = [_fields(each) for each in given.inputs]
    return msgspec.convert(found, kind)


def _fields(tensor: _Input) -> dict[str, Any]:
    found: dict[str, Any] = plain(
        {name: getattr(tensor, name) for name in ("name", "shape", "datatype", "parameters")}
    )
    if tensor.data is not msgspec.UNSET:
        found["data"] = tensor.data
    return found


def explained(error: Exception, text: Any) -> str:
    """Return what is wrong with a text that can't be read."""
    if not len(text):
        return "there is none, the body is empty"
    if isinstance(error, msgspec.ValidationError):
        return str(error)[:_LONGEST]
    if fault := not_utf8(text):
        return fault
    found = _SURROGATE.search(bytes(text))
    if found is None:
        return str(error)[:_LONGEST]
    half = found[0][-6:].decode()
    return (
        f"{half} stands alone, and is half of a character: such a character is two of them, as in "
        "\\ud83d\\ude00, or itself in UTF-8"
    )


def not_utf8(text: Any) -> str:
    """Return where a text is not UTF-8; empty if it is."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        return f"it is not UTF-8: the byte 0x{byte:02x} at position {at:,} ({error.reason})"
    return ""


Data = msgspec.Raw | list[Any]
"""``data`` as it came: JSON that is yet to be decoded, or what the standard library made of it."""

_MAX_DEPTH = 32
_BRACKETS = re.compile(rb"(?:\s*\[)+")
_CODES = {
    **{"bool": "?", "float16": "e", "float32": "f", "float64": "d"},
    **dict(zip((f"int{bits}" for bits in (8, 16, 32, 64)), "bhiq", strict=True)),
    **dict(zip((f"uint{bits}" for bits in (8, 16, 32, 64)), "BHIQ", strict=True)),
}
"""Codes of the struct module by dtype; it is faster than numpy for small tensors, no slower for large ones,
and refuses what does not fit."""
_ENCODER = msgspec.json.Encoder()
_NULL = b"null"


def to_bytes(name: str, data: Data, dtype: str, count: int) -> bytes:
    """Return ``count`` values as the tensor's bytes; raise `Unfit` for any other number or kind of them."""
    slot = slot_bytes(dtype)
    values = _flat(name, data, str if slot else _kind(dtype))
    if len(values) != count:
        raise Unfit(Reason.BAD_INPUT, f"input {name!r} has {len(values)} values; its shape makes {count}")
    if slot:
        try:
            return datatypes.to_slots(name, [value.encode() for value in values], slot)
        except UnicodeError as error:
            raise Unfit(Reason.BAD_INPUT, f"input {name!r} has text that is no Unicode: {error}") from None
    if dtype == "bfloat16":
        return _to_bfloat16(name, values)
    try:
        return struct.pack(f"<{count}{_CODES[dtype]}", *values)
    except (struct.error, OverflowError):
        raise _out_of_range(name, values, dtype) from None


def from_bytes(data: Any, dtype: str) -> Iterator[bytes]:
    """Yield the flat ``data`` of an output, as lists in JSON of at most `SLICE_VALUES`, one at least."""
    size = SLICE_VALUES * (2 if dtype == "bfloat16" else struct.calcsize(_CODES[dtype]))
    yield encoded(data if len(data) <= size else memoryview(data)[:size], dtype)
    for start in range(size, len(data), size):
        yield encoded(memoryview(data)[start : start + size], dtype)


def joined(lists: Sequence[bytes]) -> list[bytes]:
    """Return pieces of text that are one list of the elements of all of these, none of them empty."""
    if len(lists) == 1:
        return list(lists)
    return [lists[0][:-1], *[b"," + each[1:-1] for each in lists[1:]], b"]"]


def encoded(data: Any, dtype: str) -> bytes:
    """Return the flat ``data`` of a small output, as JSON."""
    if dtype == "bfloat16":
        values = to_array(data, dtype).tolist()
    else:
        code = _CODES[dtype]
        values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    text = _ENCODER.encode(values)
    if _NULL in text:
        # Which is what numbers become that JSON has no word for.
        text = json.dumps(values, separators=(",", ":")).encode()
    return text


def to_array(data: Any, dtype: str) -> NDArray[Any]:
    """Return a tensor's bytes as numbers, uncopied but for bfloat16, which becomes float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.dtype(dtype))


def _kind(dtype: str) -> type:
    """Return what a dtype's values are in Python."""
    return bool if dtype == "bool" else int if "int" in dtype else float


def _flat(name: str, data: Data, kind: type) -> list[Any]:
    """Return the values in their order, whatever they are nested in, if all rows are of one length."""
    try:
        if isinstance(data, list):
            depth = _depth(data)
            values: list[Any] = msgspec.convert(data, _nested(kind, depth))
        else:
            start = _BRACKETS.match(data)
            depth = start[0].count(b"[") if start else 1
            values = _decoder(kind, min(depth, _MAX_DEPTH)).decode(data)
    except UNREADABLE as error:
        if kind is int and isinstance(error, msgspec.ValidationError):
            return _whole(name, _flat(name, data, float))
        text = b"" if isinstance(data, list) else data
        detail = f"the data of input {name!r} can't be read: {explained(error, text)}"
        raise Unfit(Reason.BAD_INPUT, detail) from None
    for _ in range(min(depth, _MAX_DEPTH) - 1):
        if len({len(row) for row in values}) > 1:
            raise Unfit(Reason.BAD_INPUT, f"the data of input {name!r} has rows of different lengths")
        values = list(itertools.chain.from_iterable(values))
    return values


def _whole(name: str, values: list[float]) -> list[int]:
    """Return numbers as ints; raise `Unfit` unless they are whole."""
    for each in values:
        if not each.is_integer():
            raise Unfit(Reason.BAD_INPUT, f"input {name!r} has a value {each}; it is of whole numbers")
    return [int(each) for each in values]


def _depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list) and depth < _MAX_DEPTH:
        depth += 1
        data = data[0] if data else None
    return depth


@functools.cache
def _nested(kind: type, depth: int) -> Any:
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return nested


@functools.cache
def _decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_nested(kind, depth))


def _to_bfloat16(name: str, values: list[float]) -> bytes:
    """Return the upper halves of floats, rounded to the nearest, ties to even."""
    with np.errstate(over="ignore"):
        floats = np.array(values, np.float32)
    bits = floats.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # A NaN's lower bits might carry over into an infinity.
    halves = np.where(np.isnan(floats), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    infinite = np.isinf(to_array(halves.data, "bfloat16"))
    if infinite.any() and np.isfinite(np.array(values, np.float64)[infinite]).any():
        raise _out_of_range(name, values, "bfloat16")
    return halves.tobytes()


def _out_of_range(name: str, values: Sequence[float], dtype: str) -> Unfit:
    """Return the error for values of which a dtype can't hold one, with that one."""
    if "int" in dtype:
        least, most = min(values), max(values)
        value = least if least < np.iinfo(dtype).min else most
        shown = f"{value}" if abs(value) < 1 << 99 else "of many digits"
    else:
        shown = f"{max(filter(math.isfinite, values), key=abs):.6g}"
    return Unfit(Reason.BAD_INPUT, f"input {name!r} has a value {shown}; {datatype_of(dtype)} can't hold it")


_DATA = msgspec.Meta(extra_json_schema={"type": "array"})
_MICROSECONDS = msgspec.Meta(
    description="Microseconds until the answer is wanted; 0: none",
    extra_json_schema={"type": ["integer", "null"], "minimum": 0},
)
_MILLISECONDS = msgspec.Meta(extra_json_schema={"type": ["number", "null"], "exclusiveMinimum": 0})
_SEQUENCE_ID = msgspec.Meta(
    description="Which sequence it belongs to, of a model whose requests come in sequences; 0 or empty: none",
    extra_json_schema={"type": ["integer", "string", "null"]},
)
_FLAG = msgspec.Meta(extra_json_schema={"type": ["boolean", "null"]})
_AT_LEAST = msgspec.Meta(extra_json_schema={"type": ["number", "null"], "minimum": 0})
_CONTEXT = msgspec.Meta(extra_json_schema={"type": ["string", "null"]})
_PRIORITY = msgspec.Meta(extra_json_schema={"type": ["integer", "null"], "minimum": 0})


class RequestInputParameters(msgspec.Struct):
    """Size or place of an input's bytes, unless it came as JSON."""

    binary_data_size: int | None = None
    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int | None = None


class RequestInput(msgspec.Struct):
    """An input: with data, or with the size of its part behind the JSON."""

    name: str
    shape: tuple[int, ...]
    datatype: Datatype
    data: Annotated[msgspec.Raw, _DATA] | msgspec.UnsetType = msgspec.UNSET
    parameters: RequestInputParameters | None = None


class LooseInput(msgspec.Struct):
    """An input whose values are made before they are checked: JSON with NaN or Infinity in it."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: list[Any] | None = None
    parameters: RequestInputParameters | None = None


class RequestOutputParameters(msgspec.Struct):
    """The form in which an output is to be sent."""

    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int | None = None


class RequestOutput(msgspec.Struct):
    """An output that is wanted; without any, all are."""

    name: str
    parameters: RequestOutputParameters | None = None


class RequestParameters(msgspec.Struct):
    """A request's parameters, as far as they are read; others are let pass."""

    timeout: Annotated[Any, _MICROSECONDS] = None
    slo_ms: Annotated[Any, _MILLISECONDS] = None
    priority: Annotated[Any, _PRIORITY] = None
    sequence_id: Annotated[Any, _SEQUENCE_ID] = None
    sequence_start: Annotated[Any, _FLAG] = None
    sequence_end: Annotated[Any, _FLAG] = None
    binary_data_output: bool = False
    at_least: Annotated[Any, _AT_LEAST] = None
    context: Annotated[Any, _CONTEXT] = None


class InferRequest(msgspec.Struct):
    """A request to run a model."""

    inputs: tuple[RequestInput, ...]
    id: str = ""
    parameters: RequestParameters | None = None
    outputs: tuple[RequestOutput, ...] = ()


class LooseRequest(msgspec.Struct):
    """A request of such inputs."""

    inputs: tuple[LooseInput, ...]
    id: str = ""
    parameters: RequestParameters | None = None
    outputs: tuple[RequestOutput, ...] = ()


class ResponseOutputParameters(msgspec.Struct):
    """Parameters of an output whose bytes follow the JSON."""

    binary_data_size: int


class ResponseOutput(msgspec.Struct, omit_defaults=True):
    """An output: with data, or with the size of its part behind the JSON, or neither if it is elsewhere."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Annotated[msgspec.Raw, _DATA] | msgspec.UnsetType = msgspec.UNSET
    parameters: ResponseOutputParameters | msgspec.UnsetType = msgspec.UNSET


class ResponseParameters(msgspec.Struct, omit_defaults=True):
    """Facts about an answered request: its parts of time add up to ``total_ns``."""

    total_ns: int
    """Time from its first bytes at the gateway to its outputs there."""
    receive_ns: int
    """Time until it was there whole and had been read."""
    queue_ns: int
    """Time from there to its dispatch, without LOAD."""
    input_ns: int
    """Time from there until its inputs were in the worker's memory."""
    load_ns: int
    """LOAD of the model, if it was resident nowhere."""
    wait_ns: int
    """Time on the worker until EXEC began, without LOAD."""
    execute_ns: int
    """EXEC of the batch that it was in."""
    output_ns: int
    """Time from EXEC's end to its outputs at the gateway."""
    batch_size: int
    cold_start: bool
    """True if the model's weights were not on the device when the request came."""
    worker: str
    deadline_ns_left: int | None = None
    """Time left when the outputs came; not there for best effort."""
    cached: bool = False
    """True if the outputs are those of an earlier request of equal inputs."""
    steps: tuple[StepTiming, ...] = ()
    """Steps of a graph."""
    missing: tuple[str, ...] = ()
    """Steps that the answer was made without."""
    member: str = ""
    """The member that answered, of a family."""
    query_id: int = 0
    """Under which feedback finds the answer of an application."""
    models: tuple[str, ...] = ()
    """The members that its answer was made of."""
    defaults: int = 0
    """Rows that have its default, because too few members agree."""
    shared: bool = False
    """True if the context's stored state was not known in time, and the shared one stood in for it."""


class InferResponse(msgspec.Struct, omit_defaults=True):
    """A model's answer to a request."""

    model_name: str
    model_version: str
    outputs: list[ResponseOutput]
    parameters: ResponseParameters
    id: str = ""
