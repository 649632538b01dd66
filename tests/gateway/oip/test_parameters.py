"""JSON that says what is meant: null for nothing, whole numbers as floats, and halves of characters."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.http.control import Change, IndexRequest
from mainspring.gateway.http.shared_memory import Registration
from mainspring.gateway.oip import generate, json_data, request
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.parameters import place_of, priority_of, slo_ns
from mainspring.messages.model import TensorSpec
from tests.gateway.fakes import make_spec
from tests.gateway.oip.models import signature

PAIR = signature(TensorSpec("a", "int32", (2,)), TensorSpec("b", "S16", ()))
FULL: dict[str, Any] = {
    "id": "one",
    "parameters": {
        "timeout": 150_000,
        "slo_ms": 50,
        "priority": 2,
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "binary_data_output": False,
    },
    "inputs": [
        {
            "name": "a",
            "shape": [1, 2],
            "datatype": "INT32",
            "parameters": {"binary_data_size": 8},
        },
        {"name": "b", "shape": [1], "datatype": "BYTES", "data": ["x"], "parameters": {}},
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 2}}],
}
BINARY = bytes(8)
OPTIONAL = (
    *(("id",), ("parameters",), ("outputs",), ("inputs", 1, "parameters"), ("outputs", 0, "parameters")),
    *(("parameters", name) for name in FULL["parameters"]),
    *(("outputs", 0, "parameters", name) for name in ("binary_data", "classification")),
    *(
        ("inputs", 1, "parameters", name)
        for name in (
            *("binary_data_size", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
        )
    ),
    ("inputs", 0, "data"),
)
"""Every field that may be absent."""


def parse(fields: dict[str, Any]) -> request.Parsed:
    text = json.dumps(fields).encode()
    return request.parse(PAIR, memoryview(text + BINARY), len(text), 1 << 20)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return the full request with another value of a field, or without it if that is Ellipsis."""
    found: dict[str, Any] = json.loads(json.dumps(FULL))
    *way, last = path
    place: Any = found
    for step in way:
        place = place[step]
    if value is ...:
        place.pop(last, None)
    else:
        place[last] = value
    return found


@pytest.mark.parametrize("path", OPTIONAL, ids=str)
def test_null_is_as_if_a_field_were_not_there(path: tuple[Any, ...]) -> None:
    assert parse(changed(path, None)) == parse(changed(path, ...))


def as_floats(value: Any) -> Any:
    """Return the same with every number a float."""
    if isinstance(value, dict):
        return {name: as_floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_floats(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_whole_numbers_may_be_written_as_floats_everywhere() -> None:
    one, other = parse(FULL), parse(as_floats(FULL))
    assert other[:3] == one[:3]
    assert other.wanted == one.wanted
    assert slo_ns(timeout_us=150_000.0) == slo_ns(timeout_us=150_000) == 150_000_000
    assert priority_of(2.0) == 2
    sequential = msgspec.structs.replace(make_spec("m"), sequencing=None)
    assert place_of(sequential, 7.0, None, None) == place_of(sequential, 7, None, None)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("inputs", 0, "shape"), [1.5, 2]), (("outputs", 0, "parameters", "classification"), 2.5)],
)
def test_numbers_that_are_not_whole_are_none(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(Unfit, match="Expected `int`, got `float`"):
        parse(changed(path, value))
    with pytest.raises(Unfit, match="it is a whole number of microseconds"):
        slo_ns(timeout_us=1.5)


def tensor(data: str) -> bytes:
    """Return a request with an input of INT32 whose data is this JSON."""
    text = '"b", "shape": [1], "datatype": "BYTES", "data": ["x"]'
    return (
        f'{{"inputs": [{{"name": "a", "shape": [1, 2], "datatype": "INT32", "data": {data}}},'
        f'{{"name": {text}}}]}}'
    ).encode()


def test_values_of_integers_may_be_whole_floats() -> None:
    for data in ("[1, 2]", "[1.0, 2e0]", "[[1, 2.0]]"):
        parsed = request.parse(PAIR, memoryview(tensor(data)), None, 1 << 20)
        assert parsed.frames[0] == (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    with pytest.raises(Unfit, match=r"input 'a' has a value 1\.5; it is of whole numbers"):
        request.parse(PAIR, memoryview(tensor("[1.5, 2]")), None, 1 << 20)
    with pytest.raises(Unfit, match="Expected `float`, got `null`"):
        request.parse(PAIR, memoryview(tensor("[1, null]")), None, 1 << 20)


@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"x\uD9abx", r"\\\udbff", r"\ud800\ud800"])
def test_half_a_character_is_called_so(half: str) -> None:
    texts = [
        f'{{"id": "{half}", "inputs": []}}'.encode(),
        tensor("[1, 2]").replace(b'["x"]', f'["{half}"]'.encode()),
    ]
    for text in texts:
        with pytest.raises(Unfit, match=r"stands alone, and is half of a character"):
            request.parse(PAIR, memoryview(text), None, 1 << 20)
    with pytest.raises(Unfit, match=r"stands alone, and is half of a character"):
        generate.parse(PAIR, memoryview(f'{{"a": [1, 2], "b": "{half}"}}'.encode()), 1 << 20)


def test_what_is_no_half_of_a_character_is_not_called_so() -> None:
    text = tensor("[1, 2]").replace(b'"x"', rb'"\ud83d\ude00\\ud800"')
    parsed = request.parse(PAIR, memoryview(text), None, 1 << 20)
    assert bytes(parsed.frames[1]).startswith("\U0001f600\\ud800".encode())
    with pytest.raises(Unfit, match="truncated"):
        request.parse(PAIR, memoryview(text[:-5]), None, 1 << 20)


def test_null_among_values_by_name() -> None:
    body = b'{"a": [1, 2], "b": "x", "id": null, "parameters": null, "timeout": null, "slo_ms": 5.0}'
    parsed = generate.parse(PAIR, memoryview(body), 1 << 20)
    assert (parsed.wanted.id, parsed.parameters.timeout, parsed.parameters.slo_ms) == ("", None, 5)
    with_parameters = generate.parse(
        PAIR,
        memoryview(b'{"a": [1, 2], "b": "x", "parameters": {"timeout": 9.0, "priority": null}}'),
        1 << 20,
    )
    assert with_parameters.parameters.timeout == 9


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b'{"ready": null}', IndexRequest()),
        (b"null", IndexRequest()),
        (b"", IndexRequest()),
        (b'{"parameters": null}', Change()),
        (b'{"key": "/x", "offset": null, "byte_size": 64.0}', Registration("/x", 64)),
    ],
)
def test_other_bodies(text: bytes, wanted: Any) -> None:
    assert json_data.decode(text, type(wanted)) == wanted


NUMBERS = st.integers(-(1 << 53), 1 << 53)
VALUES = st.recursive(
    NUMBERS | st.text() | st.booleans() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)


@given(VALUES)
def test_what_is_plain_already_means_the_same(value: Any) -> None:
    assert json_data.plain(value) == value
    assert json_data.plain(json_data.plain(value)) == json_data.plain(value)
