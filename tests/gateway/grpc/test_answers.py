"""Answers and refusals to messages, as Triton's client reads them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2

from mainspring.gateway.core.effects import Answer, Connection, Refuse
from mainspring.gateway.grpc import answers, status
from mainspring.gateway.oip.spans import Span
from mainspring.gateway.oip.steps import Steps, whole
from mainspring.messages.clients import StepTiming, Timing
from mainspring.messages.codes import Reason
from mainspring.messages.model import slot_bytes
from mainspring.messages.peers import TensorHeader
from tests.gateway.grpc.tensors import COLUMNS, DTYPES, ROWS, SLOT, array, datatype

CONNECTION = Connection("calls", b"1")
TIMING = Timing(
    total_ns=9, queue_ns=5, execute_ns=3, left_ns=-7, batch_size=4, cold_start=True, worker="worker-0"
)
ASKED = answers.Asked("id-1", "model", 3, {})


def nowhere(name: str, span: Span, content: Any) -> Steps[None]:
    raise AssertionError(f"{name} goes to {span} with {content!r}")


def test_outputs_in_shared_memory_do_not_come_along() -> None:
    placed: list[tuple[str, Span, bytes]] = []

    def place(name: str, span: Span, content: Any) -> Steps[None]:
        placed.append((name, span, bytes(content)))
        yield

    asked = ASKED._replace(spans={"same": Span("region", 8, 999)})
    made = answer("float32")
    response = service_pb2.ModelInferResponse.FromString(whole(answers.unary(asked, made, place)))
    assert placed == [("same", Span("region", 8, 999), array("float32").tobytes())]
    assert list(response.raw_output_contents) == [b""]
    assert (response.outputs[0].name, response.outputs[0].datatype) == ("same", "FP32")


def answer(dtype: str, timing: Timing = TIMING) -> Answer:
    values: Any = array(dtype)
    if dtype == SLOT:
        values = values.astype(f"S{slot_bytes(SLOT)}")
    header = TensorHeader("same", dtype, (ROWS, COLUMNS))
    return Answer(CONNECTION, 1, (header,), (memoryview(values.tobytes()),), timing)


def parameters(response: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_s_client_reads_what_the_model_gave(dtype: str) -> None:
    response = service_pb2.ModelInferResponse.FromString(whole(answers.unary(ASKED, answer(dtype), nowhere)))
    assert (response.model_name, response.model_version, response.id) == ("model", "3", "id-1")
    assert response.outputs[0].datatype == datatype(dtype)
    found = InferResult(response).as_numpy("same")
    assert found.shape == (ROWS, COLUMNS)
    assert found.tolist() == array(dtype).tolist()


def test_an_answer_says_where_its_time_went() -> None:
    response = service_pb2.ModelInferResponse.FromString(
        whole(answers.unary(ASKED, answer("float32"), nowhere))
    )
    assert parameters(response) == {
        "total_ns": 9,
        "receive_ns": 0,
        "queue_ns": 5,
        "input_ns": 0,
        "load_ns": 0,
        "wait_ns": 0,
        "execute_ns": 3,
        "output_ns": 0,
        "batch_size": 4,
        "cold_start": True,
        "worker": "worker-0",
        "deadline_ns_left": -7,
    }


def test_best_effort_has_no_deadline_to_tell_of() -> None:
    timing = Timing(
        total_ns=9, queue_ns=5, execute_ns=3, left_ns=None, batch_size=1, cold_start=False, worker="w"
    )
    response = service_pb2.ModelInferResponse.FromString(
        whole(answers.unary(ASKED, answer("int8", timing), nowhere))
    )
    assert "deadline_ns_left" not in parameters(response)


def test_an_answer_from_the_cache_says_so() -> None:
    timing = Timing(
        total_ns=9,
        queue_ns=0,
        execute_ns=0,
        left_ns=None,
        batch_size=0,
        cold_start=False,
        worker="",
        cached=True,
    )
    response = service_pb2.ModelInferResponse.FromString(
        whole(answers.unary(ASKED, answer("int8", timing), nowhere))
    )
    assert parameters(response)["cached"] is True


def test_an_answer_of_a_graph_lists_its_steps() -> None:
    steps = StepTiming("find", 1, end_ns=3, worker="w"), StepTiming("read", missing=True)
    timing = msgspec.structs.replace(TIMING, steps=steps)
    response = service_pb2.ModelInferResponse.FromString(
        whole(answers.unary(ASKED, answer("int8", timing), nowhere))
    )
    said = parameters(response)
    assert msgspec.json.decode(said["steps"], type=tuple[StepTiming, ...]) == steps
    assert said["missing"] == '["read"]'


def test_an_output_is_classified_on_request() -> None:
    asked = ASKED._replace(classes={"same": 2})
    response = service_pb2.ModelInferResponse.FromString(
        whole(answers.unary(asked, answer("int16"), nowhere))
    )
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [ROWS, 2])
    found = InferResult(response).as_numpy("same")
    assert found.tolist() == [[b"2:2", b"1:1"], [b"32767:0", b"5:2"]]


def test_a_streamed_answer_is_its_request_s_last() -> None:
    message = service_pb2.ModelStreamInferResponse.FromString(
        whole(answers.streamed(ASKED, answer("float64"), nowhere))
    )
    assert message.error_message == ""
    assert parameters(message.infer_response)["triton_final_response"] is True
    np.testing.assert_array_equal(InferResult(message.infer_response).as_numpy("same"), array("float64"))


def test_a_streamed_refusal_says_whose_and_why() -> None:
    refusal = Refuse(CONNECTION, 1, Reason.DEADLINE_UNREACHABLE, "too soon", 70_000_000)
    message = service_pb2.ModelStreamInferResponse.FromString(answers.streamed_refusal("id-2", refusal))
    assert message.error_message.startswith("deadline_unreachable: too soon")
    assert "70.0 ms from now" in message.error_message
    assert message.infer_response.id == "id-2"
    assert parameters(message.infer_response) == {
        "triton_final_response": True,
        "reason": "deadline_unreachable",
        "earliest_finish_ms": 70.0,
    }


def test_trailing_metadata_name_the_reason_and_the_earliest_finish() -> None:
    assert status.metadata(Reason.OVERLOADED) == (("x-mainspring-reason", "overloaded"),)
    assert status.metadata(Reason.DEADLINE_PASSED, 1_234_567) == (
        ("x-mainspring-reason", "deadline_passed"),
        ("x-mainspring-earliest-finish-ms", "1.235"),
    )
