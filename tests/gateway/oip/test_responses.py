"""Bodies as tritonclient reads them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.oip import datatypes, json_data
from mainspring.gateway.oip.classification import MOST_CLASSES, check_classes, classify
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.metadata import model_metadata
from mainspring.gateway.oip.model_config import model_config
from mainspring.gateway.oip.request import BINARY, JSON, Form, Wanted
from mainspring.gateway.oip.response import Body, parameters_of, render
from mainspring.gateway.oip.steps import SLICE_VALUES, whole
from mainspring.messages.clients import StepTiming
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import TensorHeader
from tests.gateway.oip.models import TIMING, answer_of, arrays, equal, rendered, signature


def as_read(body: Body) -> Any:
    """Return what tritonclient makes of a body."""
    http = pytest.importorskip("tritonclient.http")
    content = b"".join(map(bytes, [*body.texts, *body.tensors]))
    assert len(content) == body.size
    return http.InferenceServerClient.parse_response_body(
        content, header_length=body.text_bytes if body.tensors else None
    )


def text_of(body: Body) -> Any:
    return json.loads(b"".join(body.texts))


@given(arrays(), st.booleans())
def test_numbers_arrive_as_they_were(drawn: tuple[str, NDArray[Any]], binary: bool) -> None:
    dtype, array = drawn
    header = TensorHeader("y", dtype, array.shape)
    body = rendered(header, array.tobytes(), Wanted(forms={"y": Form(binary)}))
    assert bool(body.tensors) is binary
    found = as_read(body).as_numpy("y")
    assert equal(found, array)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5), st.booleans())
def test_slots_arrive_as_bytes_elements(texts: list[str], binary: bool) -> None:
    texts = [text.replace("\0", "0") for text in texts]
    frame = datatypes.to_slots("y", [text.encode() for text in texts], 40)
    body = rendered(TensorHeader("y", "S40", (len(texts), 1)), frame, Wanted(default=Form(binary)))
    found = as_read(body).as_numpy("y")
    assert found.shape == (len(texts), 1)
    assert [each if isinstance(each, str) else each.decode() for each in found[:, 0]] == texts


def test_a_frame_is_sent_from_where_it_lies() -> None:
    frame = memoryview(bytes(8))
    body = rendered(TensorHeader("y", "float32", (1, 2)), frame, Wanted(default=BINARY))
    assert body.tensors[0] is frame


def test_the_rest_of_a_response() -> None:
    frame = np.array([[1, 2]], np.float32).tobytes()
    answer = answer_of(TensorHeader("y", "float32", (1, 2)), frame)
    found = text_of(whole(render("name", "3", Wanted(id="17"), answer)))
    assert found == {
        "model_name": "name",
        "model_version": "3",
        "id": "17",
        "parameters": {
            "total_ns": 9,
            "receive_ns": 0,
            "queue_ns": 2,
            "input_ns": 0,
            "load_ns": 0,
            "wait_ns": 0,
            "execute_ns": 3,
            "output_ns": 0,
            "batch_size": 8,
            "cold_start": True,
            "worker": "worker-0",
            "deadline_ns_left": 4,
        },
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }
    best_effort = parameters_of(msgspec.structs.replace(TIMING, left_ns=None))
    assert b"deadline_ns_left" not in msgspec.json.encode(best_effort)
    steps = StepTiming("find", 1, end_ns=3, worker="w"), StepTiming("read", missing=True)
    graph = msgspec.json.encode(parameters_of(msgspec.structs.replace(TIMING, steps=steps)))
    assert graph.endswith(
        b'"steps":[{"name":"find","rows":1,"end_ns":3,"worker":"w"},{"name":"read","missing":true}],'
        b'"missing":["read"]}'
    )


@given(arrays(), st.integers(1, 5))
def test_classes_are_the_highest_values_in_their_order(drawn: tuple[str, NDArray[Any]], count: int) -> None:
    dtype, array = drawn
    numbers = json_data.to_array(array.tobytes(), dtype).reshape(array.shape)
    named = whole(classify(numbers, count))
    for row, found in zip(numbers.reshape(len(numbers), -1), named, strict=True):
        assert len(found) == min(count, row.size)
        indices = [int(each.split(b":")[1]) for each in found]
        assert len(set(indices)) == len(indices)
        chosen = row[indices].tolist()
        if not np.isnan(row.astype(np.float64)).any():
            assert chosen == sorted(row.tolist(), reverse=True)[: len(found)]


def test_classes_are_named_as_triton_names_them() -> None:
    rows = np.array([[1, 5, 10, 4], [0.5, 0.25, 2, 2]], np.float32)
    assert whole(classify(rows, 2)) == [[b"10.000000:2", b"5.000000:1"], [b"2.000000:2", b"2.000000:3"]]
    assert whole(classify(rows.astype(np.uint8), 1)) == [[b"10:2"], [b"2:2"]]

    body = rendered(TensorHeader("y", "float32", (2, 4)), rows.tobytes(), Wanted(forms={"y": Form(False, 2)}))
    output = text_of(body)["outputs"][0]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == ["10.000000:2", "5.000000:1", "2.000000:2", "2.000000:3"]
    body = rendered(TensorHeader("y", "float32", (2, 4)), rows.tobytes(), Wanted(forms={"y": Form(True, 9)}))
    assert as_read(body).as_numpy("y").shape == (2, 4)


def test_classes_have_their_labels_where_there_are_some() -> None:
    rows = np.array([[3, 1, 2, 0]], np.float32)
    named = whole(classify(rows, 4, ("TENCH", "", "Straße: 2")))
    assert named == [[b"3.000000:0:TENCH", "2.000000:2:Straße: 2".encode(), b"1.000000:1", b"0.000000:3"]]
    wanted = Wanted(forms={"y": Form(False, 2)}, labels={"y": ("cat", "dog"), "z": ("no",)})
    body = rendered(TensorHeader("y", "float32", (1, 4)), rows.tobytes(), wanted)
    assert text_of(body)["outputs"][0]["data"] == ["3.000000:0:cat", "2.000000:2"]


def test_a_large_answer_is_made_in_slices() -> None:
    values = 10 * SLICE_VALUES + 7
    array = np.random.default_rng(1).standard_normal((1, values)).astype(np.float32)
    array[0, 5] = np.nan
    steps = render("m", "1", Wanted(), answer_of(TensorHeader("y", "float32", (1, values)), array.tobytes()))
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as ended:
        body = ended.value
    assert pauses == 10
    assert np.array_equal(as_read(body).as_numpy("y"), array, equal_nan=True)


def test_many_outputs_are_made_in_slices_together() -> None:
    count = SLICE_VALUES
    headers = [TensorHeader(f"y{number}", "int8", (1, count)) for number in range(10)]
    answer = msgspec.structs.replace(
        answer_of(headers[0], b""), outputs=tuple(headers), frames=(bytes(count),) * 10
    )
    assert len(list(render("m", "1", Wanted(), answer))) == 2
    assert list(render("m", "1", Wanted(default=BINARY), answer)) == []


@pytest.mark.parametrize("binary", [False, True])
def test_many_elements_are_made_in_slices(binary: bool) -> None:
    texts = [b"%d" % number for number in range(3 * SLICE_VALUES)]
    frame = datatypes.to_slots("y", texts, 8)
    header = TensorHeader("y", "S8", (1, len(texts)))
    wanted = Wanted(default=Form(binary))
    assert len(list(render("m", "1", wanted, answer_of(header, frame)))) == 2
    found = as_read(rendered(header, frame, wanted)).as_numpy("y")
    assert [each if isinstance(each, bytes) else each.encode() for each in found[0]] == texts


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8", "bool"])
@pytest.mark.parametrize("count", [1, 5, 2_000, 4_096])
def test_the_highest_of_many_values_are_found_without_ordering_all(dtype: str, count: int) -> None:
    generator = np.random.default_rng(count)
    rows = generator.integers(0, 1_000, (2, 3 * SLICE_VALUES)).astype(dtype)
    if dtype == "float32":
        rows[0, 10_000:] = np.nan
        rows[1] = np.nan
        rows[1, ::5] = 3
    plain = rows.astype(np.uint8) if dtype == "bool" else rows
    keys = -plain if dtype == "float32" else ~plain
    order = np.argsort(keys, axis=1, kind="stable")[:, :count]
    found = [[int(each.split(b":")[1]) for each in row] for row in whole(classify(rows, count))]
    assert found == order.tolist()


def test_bytes_have_no_highest_values() -> None:
    texts = signature(outputs=[TensorSpec("y", "S8", (4,))])
    check_classes(texts, "y", 0)
    with pytest.raises(Unfit, match="its values are BYTES") as caught:
        check_classes(texts, "y", 1)
    assert caught.value.triton == "class result not available for output due to unsupported type 'BYTES'"


def test_more_classes_of_a_large_output_than_can_be_ordered_quickly_are_refused() -> None:
    small = signature(outputs=[TensorSpec("y", "float32", (MOST_CLASSES,))])
    large = signature(outputs=[TensorSpec("y", "float32", (MOST_CLASSES + 1,))])
    check_classes(small, "y", 10 * MOST_CLASSES)
    check_classes(large, "y", MOST_CLASSES)
    with pytest.raises(BadRequest, match="at most the highest 4,096 are named"):
        check_classes(large, "y", MOST_CLASSES + 1)
    with pytest.raises(BadRequest, match="number of classes"):
        check_classes(large, "y", -1)


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_text_that_is_no_unicode_arrives_marked_in_json_and_whole_in_binary(form: Form) -> None:
    found = as_read(rendered(TensorHeader("y", "S2", (1,)), b"\xff\0", Wanted(default=form))).as_numpy("y")
    assert found[0] == (b"\xff" if form is BINARY else "\ufffd")


def test_metadata_names_tensors_with_a_free_first_axis() -> None:
    spec = signature(
        TensorSpec("x", "float32", (3, 4)),
        outputs=[TensorSpec("y", "S8", ()), TensorSpec("z", "bfloat16", (2,))],
    ).spec
    found = msgspec.to_builtins(model_metadata("name", spec, (1, 3)))
    assert (found["name"], found["versions"]) == ("name", ("1", "3"))
    assert found["inputs"] == ({"name": "x", "datatype": "FP32", "shape": (-1, 3, 4)},)
    assert [each["datatype"] for each in found["outputs"]] == ["BYTES", "BF16"]
    config = model_config("name", spec, '{"max_batch_size": 4, "parameters": {"a": {"string_value": "b"}}}')
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("x", "TYPE_FP32", [3, 4])
    ]
    assert [each["data_type"] for each in config["output"]] == ["TYPE_STRING", "TYPE_BF16"]
    assert (config["max_batch_size"], config["name"]) == (4, "name")
    assert model_config("name", spec)["max_batch_size"] == 8
