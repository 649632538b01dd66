"""What clients mean by JSON that is not quite of the types that are read: whole numbers and null. Pure.

JSON has one kind of numbers: ``3.0`` and ``3e0`` are as whole as ``3``, and programs whose numbers are floats
write them so. Null is how others say that there is nothing. What decodes as it is takes no time for this:
only what does not is looked at again.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
"""What reading JSON raises."""
NULL: Final = b"null"
_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_LONGEST = 300
Value = TypeVar("Value")


class _Input(msgspec.Struct, omit_defaults=True):
    """An input as it came; its data are looked at elsewhere."""

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
    found = None if isinstance(error, msgspec.ValidationError) else _SURROGATE.search(bytes(text))
    if found is None:
        return str(error)[:_LONGEST]
    half = found[0][-6:].decode()
    return (
        f"{half} stands alone, and is half of a character: such a character is two of them, as in "
        "\\ud83d\\ude00, or itself in UTF-8"
    )
