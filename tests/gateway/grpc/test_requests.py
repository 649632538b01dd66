"""ModelInferRequests to what the request table takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferRequestedOutput, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.grpc import requests
from mainspring.gateway.grpc.messages import ModelInferRequest
from mainspring.gateway.grpc.requests import FIELDS
from mainspring.gateway.oip.parameters import version_of
from mainspring.gateway.oip.spans import Span
from mainspring.messages.codes import Reason
from mainspring.messages.model import slot_bytes
from tests.gateway.grpc.tensors import COLUMNS, DTYPES, ROWS, SLOT, array, datatype, echo

SIGNATURE = Signature(echo("float32"))
SLOTS = slot_bytes(SLOT) or 0


def raw_bytes(dtype: str) -> bytes:
    """Return the tensor as the model takes it."""
    values = array(dtype)
    if dtype != SLOT:
        return values.tobytes()
    return b"".join(each.ljust(SLOTS, b"\0") for each in values.ravel())


def taken(message: Any, dtype: str) -> requests.Inputs:
    parsed, raw = requests.parse(message.SerializeToString())
    return requests.inputs(parsed, raw, Signature(echo(dtype)))


def typed(dtype: str, **fields: Any) -> Any:
    """Return a request whose elements stand in fields of its contents."""
    message = ModelInferRequest(model_name=f"echo-{dtype}")
    tensor = message.inputs.add(name="data", datatype=datatype(dtype), shape=[ROWS, COLUMNS])
    tensor.contents.SetInParent()
    for name, values in fields.items():
        getattr(tensor.contents, name).extend(values)
    return message


@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_s_client_s_tensors_come_as_the_model_takes_them(dtype: str) -> None:
    given_input = InferInput("data", [ROWS, COLUMNS], datatype(dtype))
    given_input.set_data_from_numpy(array(dtype))
    message = _get_inference_request("m", [given_input], "", "7", None, 0, False, False, 0, None, None)
    found = taken(message, dtype)
    assert found.headers[0].dtype == dtype
    assert found.headers[0].shape == (ROWS, COLUMNS)
    assert bytes(found.frames[0]) == raw_bytes(dtype)


@pytest.mark.parametrize("dtype", [each for each in DTYPES if datatype(each) in FIELDS])
def test_elements_in_fields_come_as_the_model_takes_them(dtype: str) -> None:
    message = typed(dtype, **{FIELDS[datatype(dtype)]: array(dtype).ravel().tolist()})
    assert taken(message, dtype).frames == [raw_bytes(dtype)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_have_no_field(dtype: str) -> None:
    with pytest.raises(BadRequest, match="raw_input_contents"):
        taken(typed(dtype, fp32_contents=[1.0] * 6), dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_an_element_that_its_datatype_can_t_hold_is_named(dtype: str) -> None:
    limit = np.iinfo(dtype).max
    values = [0, limit + 1, 0, 0, 0, 0]
    with pytest.raises(BadRequest, match=f"element 1 of input 'data' is {limit + 1}; .* to {limit}"):
        taken(typed(dtype, **{FIELDS[datatype(dtype)]: values}), dtype)


@pytest.mark.parametrize("count", [0, ROWS * COLUMNS - 1, 1_000_000])
def test_elements_in_fields_are_counted_before_they_are_read(count: int) -> None:
    with pytest.raises(BadRequest, match=f"has {count:,} elements; its shape makes {ROWS * COLUMNS}"):
        taken(typed("float32", fp32_contents=[1.0] * count), "float32")


def test_no_more_is_read_than_a_request_can_have() -> None:
    message = typed("float32", fp32_contents=[0.0] * (requests.MOST_BESIDE_BYTES // 4))
    with pytest.raises(BadRequest, match="send large tensors there"):
        requests.parse(message.SerializeToString())
    message = typed("float32")
    message.inputs[0].shape.extend([1] * 100_000)
    with pytest.raises(BadRequest, match="a shape of 100,002 axes"):
        taken(message, "float32")
    for number in range(2_000):
        message.parameters[str(number)].bool_param = True
    with pytest.raises(BadRequest, match=r"2,000 parameters; at most 1,024"):
        requests.parameters(message.parameters)


def test_elements_in_a_wrong_field_are_refused() -> None:
    with pytest.raises(BadRequest, match="came in int_contents; elements of FP32 stand in fp32_contents"):
        taken(typed("float32", int_contents=[1] * 6), "float32")
    with pytest.raises(BadRequest, match="fp32_contents and fp64_contents"):
        taken(typed("float32", fp32_contents=[1] * 6, fp64_contents=[1]), "float32")


def test_contents_beside_raw_contents_are_refused() -> None:
    message = typed("float32", fp32_contents=[1] * 6)
    message.raw_input_contents.append(raw_bytes("float32"))
    with pytest.raises(BadRequest, match="the one or the other"):
        taken(message, "float32")


def test_a_tensor_without_elements_says_where_to_send_them() -> None:
    message = typed("float32")
    message.inputs[0].ClearField("contents")
    with pytest.raises(BadRequest, match="send them in raw_input_contents"):
        taken(message, "float32")


def test_as_many_raw_contents_as_inputs() -> None:
    message = typed("float32")
    message.inputs[0].ClearField("contents")
    message.raw_input_contents.extend([b"1234"] * 3)
    with pytest.raises(BadRequest, match="3 elements for 1 inputs"):
        taken(message, "float32")


@pytest.mark.parametrize("count", [5, 7])
def test_bytes_elements_are_counted(count: int) -> None:
    with pytest.raises(BadRequest, match=f"{count} elements; its shape makes 6"):
        taken(typed(SLOT, bytes_contents=[b"x"] * count), SLOT)


@pytest.mark.parametrize(
    "shape", [(ROWS,), (ROWS, COLUMNS + 1), (0, COLUMNS), (-1, COLUMNS), (1 << 40, COLUMNS), ()]
)
@pytest.mark.parametrize("dtype", ["float32", SLOT])
def test_a_wrong_shape_is_left_to_the_check_of_all_protocols(shape: tuple[int, ...], dtype: str) -> None:
    message = ModelInferRequest(raw_input_contents=[b"12"])
    message.inputs.add(name="data", datatype=datatype(dtype), shape=shape)
    found = taken(message, dtype)
    assert (found.headers[0].shape, found.frames) == (shape, [b""])


def test_an_unknown_input_is_left_to_the_check_of_all_protocols() -> None:
    message = ModelInferRequest(raw_input_contents=[b"12"])
    message.inputs.add(name="what", datatype="FP32", shape=[1])
    assert taken(message, "float32").headers[0].name == "what"


def test_another_datatype_is_refused_with_the_right_one() -> None:
    message = typed("float32", fp32_contents=[1] * 6)
    with pytest.raises(BadRequest, match=r"came as 'FP32'; .* takes INT32"):
        taken(message, "int32")


def shared(name: str, datatype: str, rows: int, size: int, **values: int | str) -> Any:
    """Return an input in shared memory, as Triton's client sends it, with further parameters."""
    tensor = InferInput(name, [rows, COLUMNS], datatype)
    tensor.set_shared_memory("region", size, offset=8)
    message = _get_inference_request("m", [tensor], "", "", None, 0, False, False, 0, None, None)
    for key, value in values.items():
        choice = message.inputs[0].parameters[key]
        if isinstance(value, int):
            choice.int64_param = value
        else:
            choice.string_param = value
    return message


def test_inputs_in_shared_memory_are_read_later() -> None:
    (frame,) = taken(shared("data", "FP32", ROWS, 24), "float32").frames
    assert frame.span == Span("region", 8, 24)
    assert frame.content(b"abc") == b"abc"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"shared_memory_byte_size": 23}, "shared_memory_byte_size 23; .* make 24"),
        ({"shared_memory_byte_size": -1}, "shared_memory_byte_size -1; it is a number of bytes"),
        ({"shared_memory_byte_size": "24"}, "shared_memory_byte_size 24; it is a number of bytes"),
        ({"shared_memory_offset": -8}, "shared_memory_offset -8; it is a number of bytes"),
        ({"shared_memory_region": 5}, "not a name"),
    ],
)
def test_what_is_no_part_of_shared_memory_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        taken(shared("data", "FP32", ROWS, 24, **values), "float32")


def test_contents_beside_raw_contents_are_refused_in_the_words_that_triton_has() -> None:
    message = typed("float32", fp32_contents=[1.0])
    message.raw_input_contents.extend([raw_bytes("float32")] * 2)
    with pytest.raises(BadRequest, match="has contents, and the request raw_input_contents") as refused:
        taken(message, "float32")
    assert refused.value.triton.startswith(  # type: ignore[attr-defined]
        "contents field must not be specified when using raw_input_contents for 'data' for model '"
    )


def test_parts_of_shared_memory_are_named_whole() -> None:
    message = shared("data", "FP32", ROWS, 24)
    message.inputs[0].contents.fp32_contents.append(1)
    with pytest.raises(BadRequest, match="has contents, and is in shared memory"):
        taken(message, "float32")
    for kept, said in (("region", "without 'shared_memory_byte_size'"), ("byte_size", "without .*_region'")):
        message = shared("data", "FP32", ROWS, 24)
        for name in ("region", "byte_size", "offset"):
            if name != kept:
                del message.inputs[0].parameters[f"shared_memory_{name}"]
        with pytest.raises(BadRequest, match=said):
            taken(message, "float32")


def test_raw_contents_are_of_the_other_inputs() -> None:
    message = shared("data", "FP32", ROWS, 24)
    message.raw_input_contents.append(b"x")
    with pytest.raises(BadRequest, match="1 elements for 0 inputs outside shared memory"):
        taken(message, "float32")


def test_outputs_that_go_to_shared_memory() -> None:
    output = InferRequestedOutput("same")
    output.set_shared_memory("region", 24, offset=8)
    tensor = output._get_tensor()
    assert requests.forms([tensor], SIGNATURE) == ({}, {"same": Span("region", 8, 24)})
    tensor.parameters["classification"].int64_param = 2
    with pytest.raises(BadRequest, match="can't set both 'shared_memory_region' and 'classification'"):
        requests.forms([tensor], SIGNATURE)


def test_classification_is_a_number_of_classes() -> None:
    wanted = [
        InferRequestedOutput("same", class_count=3)._get_tensor(),
        InferRequestedOutput("other")._get_tensor(),
    ]
    assert requests.forms(wanted, SIGNATURE) == ({"same": 3}, {})
    output = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="same")
    for field, value in (("int64_param", -1), ("string_param", "3"), ("bool_param", True)):
        setattr(output.parameters["classification"], field, value)
        with pytest.raises(BadRequest, match="it is a number of classes"):
            requests.forms([output], SIGNATURE)


def test_parameters_of_every_kind() -> None:
    message = service_pb2.ModelInferRequest()
    wanted = {"bool": True, "int64": -5, "string": "x", "double": 0.5, "uint64": (1 << 64) - 1}
    for kind, value in wanted.items():
        setattr(message.parameters[kind], f"{kind}_param", value)
    message.parameters["nothing"].SetInParent()
    parsed, _ = requests.parse(message.SerializeToString())
    assert requests.parameters(parsed.parameters) == {**wanted, "nothing": None}


@pytest.mark.parametrize(("text", "version"), [("", None), ("1", 1), ("007", 7), ("20261122", 20261122)])
def test_a_version_is_a_whole_number(text: str, version: int | None) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize("text", ["x", "0", "-1", "1.0", " 1", "\u0661", "9" * 30])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="whole number from 1 to 999999999999999999"):
        version_of(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for padded in (data, data + bytes(9_000)):
        try:
            message, raw = requests.parse(padded)
            requests.inputs(message, raw, SIGNATURE)
            requests.forms(message.outputs, SIGNATURE)
            requests.parameters(message.parameters)
        except BadRequest as error:
            assert error.reason in (Reason.BAD_MESSAGE, Reason.BAD_INPUT, Reason.BAD_OUTPUT)  # noqa: PT017
