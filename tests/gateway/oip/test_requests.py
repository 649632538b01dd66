"""Bodies as tritonclient writes them, and as nobody should."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip.datatypes import Unfit, datatype_of
from mainspring.gateway.oip.generate import parse as generated
from mainspring.gateway.oip.request import BINARY, JSON, Form, Parsed, parse
from mainspring.gateway.oip.spans import Span
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec
from tests.gateway.oip.models import arrays, equal, numpy_dtype, signature

LIMIT = 1 << 20
ELEMENTS = st.lists(
    st.binary(max_size=8).filter(lambda each: not each.endswith(b"\0")), min_size=1, max_size=8
)


def encoded(array: NDArray[Any], datatype: str, *, binary: bool, **options: Any) -> tuple[bytes, int | None]:
    """Return the body that tritonclient sends for input ``x``, and what it says of its JSON's length."""
    http = pytest.importorskip("tritonclient.http")
    tensor = http.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    body, size = http.InferenceServerClient.generate_request_body([tensor], **options)
    return body, size


def parsed(model: Signature, body: bytes, json_bytes: int | None = None) -> Parsed:
    return parse(model, memoryview(body), json_bytes, LIMIT)


def refused(model: Signature, body: bytes | dict[str, Any], json_bytes: int | None = None) -> Unfit:
    with pytest.raises(Unfit) as caught:
        parsed(model, body if isinstance(body, bytes) else json.dumps(body).encode(), json_bytes)
    return caught.value


@given(arrays(), st.booleans())
def test_numbers_come_as_tritonclient_sent_them(drawn: tuple[str, NDArray[Any]], binary: bool) -> None:
    dtype, array = drawn
    binary = binary or dtype == "bfloat16"
    body, json_bytes = encoded(array, datatype_of(dtype), binary=binary)
    found = parsed(signature(TensorSpec("x", dtype, array.shape[1:])), body, json_bytes)
    (header,), (frame,) = found.inputs, found.frames
    assert (header.name, header.dtype, header.shape) == ("x", dtype, array.shape)
    assert equal(np.frombuffer(frame, numpy_dtype(dtype)).reshape(array.shape), array)


@given(ELEMENTS, st.booleans())
def test_bytes_come_in_slots(elements: list[bytes], binary: bool) -> None:
    if not binary:
        elements = [each.hex().encode()[:8] for each in elements]
    array = np.array(elements, dtype=np.object_)
    body, json_bytes = encoded(array, "BYTES", binary=binary)
    found = parsed(signature(TensorSpec("x", "S8", ())), body, json_bytes)
    assert found.inputs[0].dtype == "S8"
    assert bytes(found.frames[0]) == b"".join(each.ljust(8, b"\0") for each in elements)


@given(arrays(finite=True), st.data())
def test_nested_data_is_as_good_as_flat(drawn: tuple[str, NDArray[Any]], data: st.DataObject) -> None:
    dtype, array = drawn
    shown = array.astype(np.float32) if dtype == "bfloat16" else array
    nested = shown.reshape(-1).tolist() if data.draw(st.booleans()) else shown.tolist()
    request = {
        "inputs": [{"name": "x", "shape": array.shape, "datatype": datatype_of(dtype), "data": nested}]
    }
    found = parsed(signature(TensorSpec("x", dtype, array.shape[1:])), json.dumps(request).encode())
    assert equal(np.frombuffer(found.frames[0], numpy_dtype(dtype)).reshape(array.shape), array)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_in_json_is_rounded_to_the_nearest(value: float) -> None:
    request = {"inputs": [{"name": "x", "shape": [1], "datatype": "BF16", "data": [value]}]}
    model, wanted = signature(TensorSpec("x", "bfloat16", ())), np.array([value], ml_dtypes.bfloat16)
    if np.isinf(wanted.astype(np.float32)).any():
        assert "BF16 can't hold it" in refused(model, request).detail
    else:
        found = parsed(model, json.dumps(request).encode())
        assert bytes(found.frames[0]) == wanted.tobytes()


def test_json_and_binary_tensors_mix_and_a_binary_one_stays_in_the_body() -> None:
    http = pytest.importorskip("tritonclient.http")
    a, b, c = (http.InferInput(name, [2, 2], "FP32") for name in "abc")
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    for place, tensor in enumerate((a, b, c)):
        tensor.set_data_from_numpy(values + place, binary_data=tensor is not b)
    body, json_bytes = http.InferenceServerClient.generate_request_body([a, b, c])
    found = parsed(signature(*(TensorSpec(name, "float32", (2,)) for name in "abc")), body, json_bytes)
    for place, frame in enumerate(found.frames):
        assert equal(np.frombuffer(frame, np.float32).reshape(2, 2), values + place)
    assert found.frames[0].obj is body
    assert found.frames[2].obj is body


def test_what_is_wanted_is_understood() -> None:
    http = pytest.importorskip("tritonclient.http")
    outputs = [
        http.InferRequestedOutput("o"),
        http.InferRequestedOutput("p", binary_data=False, class_count=3),
    ]
    array = np.ones((1, 2), np.float32)
    model = signature(TensorSpec("x", "float32", (2,)))
    options: dict[str, Any] = {"outputs": outputs, "request_id": "17", "timeout": 25_000, "priority": 2}
    found = parsed(model, *encoded(array, "FP32", binary=True, **options))
    assert found.outputs == ("o", "p")
    assert found.wanted.id == "17"
    assert found.wanted.forms == {"o": BINARY, "p": Form(False, 3)}
    assert (found.parameters.timeout, found.parameters.priority) == (25_000, 2)
    found = parsed(model, *encoded(array, "FP32", binary=True))
    assert (found.outputs, found.wanted.default) == (None, BINARY)
    plain = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}],"outputs":[{"name":"o"}]}'
    assert parsed(model, plain).wanted.default is JSON


def test_a_body_without_json_is_the_one_input() -> None:
    found = parsed(signature(TensorSpec("x", "int16", (3,))), bytes(range(12)), 0)
    assert found.inputs[0].shape == (2, 3)
    assert bytes(found.frames[0]) == bytes(range(12))
    assert found.wanted.default is BINARY
    found = parsed(signature(TensorSpec("x", "S8", (1,))), b"text", 0)
    assert (found.inputs[0].shape, bytes(found.frames[0])) == ((1, 1), b"text\0\0\0\0")
    two = signature(TensorSpec("x", "int16", (3,)), TensorSpec("y", "int16", (3,)))
    assert "has 2 inputs" in refused(two, b"1234", 0).detail
    assert "6 bytes each" in refused(signature(TensorSpec("x", "int16", (3,))), b"1234567", 0).detail
    assert "6 bytes each" in refused(signature(TensorSpec("x", "int16", (3,))), b"", 0).detail
    assert "has 2" in refused(signature(TensorSpec("x", "S8", (2,))), b"text", 0).detail


ONE = signature(TensorSpec("x", "float32", (2,)))
GOOD = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"datatype": "FP64"}, "came as 'FP64'; model 'm' takes FP32"),
        ({"datatype": "FLOAT"}, "which is not a datatype"),
        ({"datatype": "BYTES"}, "no slots for BYTES"),
        ({"data": [1]}, "has 1 values; its shape makes 2"),
        ({"data": [[1], [2, 3]]}, "rows of different lengths"),
        ({"data": ["a", "b"]}, "Expected `float`, got `str`"),
        ({"data": [1e39, 0]}, "FP32 can't hold it"),
        ({"data": None}, "neither data nor the parameter binary_data_size"),
        ({"data": {}}, "Expected `array`"),
        ({"name": 3}, "inputs[0].name"),
        ({"shape": [1, "2"]}, "inputs[0].shape"),
        ({"parameters": {"binary_data_size": 8}}, "0 bytes are left"),
        ({"parameters": {"binary_data_size": -1}}, "binary_data_size -1"),
    ],
)
def test_a_wrong_input_is_refused_with_what_is_wrong(change: dict[str, Any], said: str) -> None:
    assert said in refused(ONE, {"inputs": [{**GOOD, **change}]}).detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `inputs`"),
        (b"\xff", "not UTF-8"),
        (b'{"inputs": NaN}', "Expected `array`"),
        (b'{"inputs": [], "x": NaN', "can't be read"),
        (b'{"inputs": [], "id": 3}', "$.id"),
        (
            b'{"inputs": [], "outputs": [{"name": "o", "parameters": {"classification": -1}}]}',
            "classification -1",
        ),
        (b"[" * 100_000, "can't be read"),
        (b'{"inputs":' * 100_000, "can't be read"),
    ],
)
def test_a_body_that_says_nothing_is_refused(body: bytes, said: str) -> None:
    assert said in refused(ONE, body).detail


@pytest.mark.parametrize(
    "found",
    [
        b'{"id": "@", "inputs": []}',
        b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": ["fine", "@"]}]}',
        b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": [NaN, "@"]}]}',
        b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": ["\\ud800@"]}]}',
        b'@{"inputs": []}',
    ],
)
@pytest.mark.parametrize("wrong", [b"\xff", b"a\xc3", b"\xe2\x98"])
def test_a_byte_that_is_no_text_is_named_by_its_place_in_the_body(found: bytes, wrong: bytes) -> None:
    body = found.replace(b"@", wrong)
    byte = wrong[-1] if wrong.startswith(b"a") else wrong[0]
    where = f"it is not UTF-8: the byte 0x{byte:02x} at position {body.index(byte)} "
    assert where in refused(signature(TensorSpec("x", "S8", (1,))), body).detail
    generate = found.replace(b'"inputs"', b'"x": "@", "inputs"').replace(b"@", wrong)
    with pytest.raises(Unfit, match=f"the byte 0x{byte:02x} at position {generate.index(byte)} "):
        generated(signature(TensorSpec("x", "S8", (1,))), memoryview(generate), LIMIT)


def shared(region: object = "r", **others: object) -> dict[str, object]:
    """Return the parameters of a tensor in shared memory."""
    return {"parameters": {"shared_memory_region": region, **others}}


def body_of(given: dict[str, object], output: dict[str, object] | None = None) -> bytes:
    fields: dict[str, object] = {"inputs": [{**GOOD, **given}]}
    if output is not None:
        fields["outputs"] = [{"name": "o", **output}]
    return json.dumps(fields).encode()


IN_MEMORY = {"name": GOOD["name"], "shape": GOOD["shape"], "datatype": GOOD["datatype"]}


def in_memory(**parameters: object) -> bytes:
    return json.dumps({"inputs": [{**IN_MEMORY, **shared(**parameters)}]}).encode()


def test_tensors_in_shared_memory_are_read_and_written_later() -> None:
    output = {"name": "o", **shared(shared_memory_byte_size=64, shared_memory_offset=16)}
    given = {**IN_MEMORY, **shared(shared_memory_byte_size=8)}
    found = parsed(ONE, json.dumps({"inputs": [given], "outputs": [output]}).encode())
    assert found.spans == [Span("r", 0, 8), Span("r", 16, 64)]
    assert found.frames[0].content(b"12345678") == b"12345678"
    assert found.wanted.forms == {"o": Form(True, span=Span("r", 16, 64))}
    assert found.is_binary


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (body_of(shared(shared_memory_byte_size=8)), "in shared memory, and came with the request too"),
        (in_memory(shared_memory_byte_size=7), "shared_memory_byte_size 7; .* make 8"),
        (in_memory(), "without 'shared_memory_byte_size'"),
        (in_memory(region=None, shared_memory_byte_size=8), "without 'shared_memory_region'"),
        (in_memory(shared_memory_byte_size=8, shared_memory_offset=-1), "shared_memory_offset -1"),
        (in_memory(shared_memory_byte_size=1 << 64), "it is a number of bytes"),
        (in_memory(region=7, shared_memory_byte_size=8), "can't be read"),
        (body_of({}, shared(shared_memory_offset=3)), "without 'shared_memory_byte_size'"),
        (
            body_of({}, shared(shared_memory_byte_size=8, classification=1)),
            "can't set both .* 'classification'",
        ),
    ],
)
def test_what_is_no_part_of_shared_memory_is_refused(body: bytes, said: str) -> None:
    assert re.search(said, refused(ONE, body).detail)


def test_an_output_has_room_before_the_model_runs() -> None:
    model = signature(TensorSpec("x", "float32", (2,)), outputs=[TensorSpec("o", "float32", (3,))])
    for rows in (1, 2):
        given = {**GOOD, "shape": [rows, 2], "data": [1, 2] * rows}
        for size, fits in ((12 * rows, True), (12 * rows - 1, False)):
            output = {"name": "o", **shared(shared_memory_byte_size=size)}
            body = json.dumps({"inputs": [given], "outputs": [output]}).encode()
            if fits:
                assert parsed(model, body).spans == [Span("r", 0, size)]
            else:
                assert f"({size} bytes) should be at least {12 * rows} bytes" in refused(model, body).detail


def test_lengths_that_lie_are_refused() -> None:
    body = json.dumps({"inputs": [{**GOOD, "parameters": {"binary_data_size": 8}}]}).encode()
    assert len(parsed(ONE, body + bytes(8), len(body)).frames[0]) == 8
    assert "7 bytes are left" in refused(ONE, body + bytes(7), len(body)).detail
    assert "1 bytes follow" in refused(ONE, body + bytes(9), len(body)).detail
    assert refused(ONE, body, len(body) + 1).reason is Reason.BAD_MESSAGE
    assert "truncated" in refused(ONE, body + bytes(8), len(body) - 1).detail
    with pytest.raises(Unfit, match="more than 10 bytes"):
        parse(ONE, memoryview(body), None, 10)


def test_shapes_that_promise_much_allocate_nothing() -> None:
    """Whatever the model does not take is left to the check that all protocols share, without its bytes."""
    for shape in ([10**9, 2], [1 << 70, 2], [1] * 20_000, [0, 2], [-1, 2], [], [1, 3]):
        found = parsed(ONE, json.dumps({"inputs": [{**GOOD, "shape": shape}]}).encode())
        assert found.inputs[0].shape == tuple(shape)
        assert found.frames == [b""]
    found = parsed(ONE, json.dumps({"inputs": [{**GOOD, "name": "y", "datatype": "?"}]}).encode())
    assert found.inputs[0].name == "y"


def whole(data: str = "[1, 2, 3, 4]") -> str:
    return f'{{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": {data}}}'


ASKED = '{"name": "y"}'


def repeated(text: str, count: int) -> str:
    return f"[{','.join([text] * count)}]"


@pytest.mark.parametrize(
    "fields",
    [
        f'"inputs": [{whole(repeated("1", 100_000))}]',
        f'"inputs": [{whole(repeated("[]", 50_000))}]',
        f'"inputs": {repeated(whole(), 5_000)}',
        f'"inputs": [{whole()}], "outputs": {repeated(ASKED, 10_000)}',
        f'"inputs": [{whole()}], "odd": {repeated("NaN", 100_000)}',
    ],
    ids=["values", "rows", "inputs", "outputs", "parameters"],
)
def test_values_are_counted_before_they_are_read(fields: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value takes thirty times as long to read as to count, and nobody else is served meanwhile."""
    model = signature(TensorSpec("x", "float32", (4,)))
    monkeypatch.setattr("mainspring.gateway.oip.request._decoded", None)
    error = refused(model, f"{{{fields}}}".encode())
    assert error.reason is Reason.BAD_MESSAGE
    assert "values; one for model 'm' has" in error.detail


def test_the_largest_request_that_a_model_takes_is_read() -> None:
    model = signature(TensorSpec("x", "float32", (20_000,)))
    rows = np.arange(8 * 20_000, dtype=np.float32).reshape(8, 20_000)
    body = {"inputs": [{"name": "x", "shape": [8, 20_000], "datatype": "FP32", "data": rows.tolist()}]}
    found = parse(model, memoryview(json.dumps(body).encode()), None, 16 << 20)
    assert found.frames[0] == rows.tobytes()
    words = signature(TensorSpec("x", "S16", (1_000,)))
    texts = ["," * 16] * 8_000
    body = {"inputs": [{"name": "x", "shape": [8, 1_000], "datatype": "BYTES", "data": texts}]}
    assert parsed(words, json.dumps(body).encode()).frames[0] == b"," * 16 * 8_000


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_more_tensors_than_any_model_has_are_not_looked_at(what: str) -> None:
    tensor = json.loads(whole())
    error = refused(signature(TensorSpec("x", "float32", (4,))), {"inputs": [tensor], what: [tensor] * 300})
    assert (error.reason, f"names 300 {what}" in error.detail) == (Reason.BAD_MESSAGE, True)


def test_elements_that_lie_are_refused() -> None:
    model = signature(TensorSpec("x", "S4", (2,)))

    def body(content: bytes) -> tuple[bytes, int]:
        tensor = {"name": "x", "shape": [1, 2], "datatype": "BYTES"}
        text = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(content)}}]}).encode()
        return text + content, len(text)

    good = b"\1\0\0\0a\2\0\0\0bc"
    assert bytes(parsed(model, *body(good)).frames[0]) == b"a\0\0\0bc\0\0"
    for content, said in (
        (b"\1\0\0\0a", "1 elements only; its shape makes 2"),
        (good + b"\0\0\0\0", "4 more bytes"),
        (b"\1\0\0\0a\377\377\377\377", "element 1 of input 'x' ends behind"),
        (b"\1\0\0\0a\1\0", "element 1 of input 'x' ends behind"),
        (b"\5\0\0\0abcde\0\0\0\0", "has 5 bytes; at most 4 fit"),
        (b"\2\0\0\0a\0\0\0\0\0", "ends with a zero byte"),
    ):
        assert said in refused(model, *body(content)).detail


@given(st.binary(max_size=200), st.none() | st.integers(0, 250))
def test_no_body_does_harm(body: bytes, json_bytes: int | None) -> None:
    for model in (ONE, signature(TensorSpec("x", "S4", (2,)))):
        with contextlib.suppress(Unfit):
            assert len(parsed(model, body, json_bytes).inputs) == len(parsed(model, body, json_bytes).frames)
