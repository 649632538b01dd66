"""A gateway in a thread, between a controller and a worker that do as the tests say, and Triton's client."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferRequestedOutput, service_pb2
from tritonclient.utils import InferenceServerException

from mainspring.gateway.grpc.peers import Call, Peers
from tests.gateway.fakes import serving, wait_until
from tests.gateway.grpc.conftest import Fake
from tests.gateway.grpc.tensors import COLUMNS, DTYPES, ROWS, array, datatype, encoded, inputs
from tests.patience import PATIENCE_S

INFER = "/inference.GRPCInferenceService/ModelInfer"
X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_every_datatype_comes_back_as_it_went(fake: Fake, dtype: str) -> None:
    values = array(dtype)
    result = fake.client.infer(f"echo-{dtype}", inputs(values, datatype(dtype)))
    assert result.get_output("same").datatype == datatype(dtype)
    found = result.as_numpy("same")
    assert found.shape == (ROWS, COLUMNS)
    assert found.tolist() == values.tolist()


def test_outputs_can_be_chosen_and_ids_come_back(fake: Fake) -> None:
    result = fake.client.infer("double", inputs(X), request_id="mine")
    assert result.get_response().id == "mine"
    assert result.as_numpy("twice").tolist() == (X * 2).tolist()
    assert result.as_numpy("sum").tolist() == [6.0]
    wanted = [InferRequestedOutput("sum")]
    chosen = fake.client.infer("double", inputs(X), outputs=wanted).get_response()
    assert [output.name for output in chosen.outputs] == ["sum"]


def test_a_tensor_of_many_megabytes_passes(fake: Fake) -> None:
    values = np.random.default_rng(1).random((2, 1 << 20)).astype(np.float32)
    result = fake.client.infer("wide", inputs(values))
    np.testing.assert_array_equal(result.as_numpy("twice"), values * 2)


def test_a_refusal_names_the_earliest_finish_in_words_and_metadata(fake: Fake) -> None:
    call = fake.channel.unary_unary(INFER)
    with pytest.raises(grpc.RpcError) as caught:
        call(encoded("reject", X), timeout=20)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "70.0 ms from now" in caught.value.details()
    assert {each.key: each.value for each in caught.value.trailing_metadata()} == {
        "x-mainspring-reason": "deadline_unreachable",
        "x-mainspring-earliest-finish-ms": "70.000",
    }


@pytest.mark.parametrize(
    ("said", "nearest_s"),
    [
        ({"timeout": 5_000_000}, 5),
        ({"timeout": 0}, None),
        ({"parameters": {"slo_ms": 4_000}}, 4),
        ({"parameters": {"slo_ms": 3_500.5}}, 3.5005),
        ({"headers": {"x-mainspring-slo-ms": "3000"}}, 3),
        ({"client_timeout": 6.0}, 6),
        ({"client_timeout": 6.0, "timeout": 5_000_000}, 5),
        ({"client_timeout": 2.0, "timeout": 5_000_000, "parameters": {"slo_ms": 4_000}}, 2),
        ({"client_timeout": 1e9}, None),
        ({}, None),
    ],
)
def test_the_nearest_deadline_counts(fake: Fake, said: dict[str, Any], nearest_s: float | None) -> None:
    fake.client.infer("double", inputs(X), **said)
    left_ns = fake.cluster.arrivals[-1].left_ns
    if nearest_s is None:
        assert left_ns is None
    else:
        assert left_ns is not None
        # gRPC's clients round their deadlines up, by a percent at most.
        assert 0 < left_ns <= nearest_s * 1.02e9


def test_the_server_s_default_counts_where_nothing_is_said() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, default_slo_ms=8_000.0, model_slo_ms={"double": 7_000.0})
        for name, least_s, most_s in (("double", 1, 7), ("echo-int8", 7.001, 8)):
            values = X if name == "double" else array("int8")
            fake.client.infer(name, inputs(values, "FP32" if name == "double" else "INT8"))
            left_ns = fake.cluster.arrivals[-1].left_ns
            assert left_ns is not None
            assert left_ns <= most_s * 1e9
            assert least_s == 1 or left_ns > 0
        fake.client.infer("double", inputs(X), timeout=20_000_000)
        assert (fake.cluster.arrivals[-1].left_ns or 0) > 8e9


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[Peers]:
    """Put a server's clients here whenever one of them has begun a call."""
    begun: queue.Queue[Peers] = queue.Queue()
    plain = Peers.call

    def noted(self: Peers, name: str) -> Call:
        call = plain(self, name)
        begun.put(self)
        return call

    monkeypatch.setattr(Peers, "call", noted)
    return begun


@pytest.mark.parametrize(("timeout_us", "call_s"), [(10_000_000, PATIENCE_S), (None, 10.0)])
def test_the_clock_starts_with_the_head_of_a_call(
    fake: Fake, peers: queue.Queue[Peers], timeout_us: int | None, call_s: float
) -> None:
    """A large message takes its time, and what it took is gone for the request, once."""
    took_s: list[float] = []

    def slowly() -> Iterator[bytes]:
        peers.get(timeout=PATIENCE_S)
        began_s = time.monotonic()
        time.sleep(0.3)
        took_s.append(time.monotonic() - began_s)
        yield encoded("double", X, timeout_us=timeout_us)

    began_s = time.monotonic()
    assert fake.channel.stream_unary(INFER)(slowly(), timeout=call_s)
    left_s = (fake.cluster.arrivals[-1].left_ns or 0) / 1e9
    # gRPC's clients round their deadlines up, by a percent at most.
    assert 10 - (time.monotonic() - began_s) <= left_s <= 10.1 - took_s[0]


def test_a_call_without_a_message_is_told_what_it_takes(fake: Fake) -> None:
    with pytest.raises(grpc.RpcError, match="takes one ModelInferRequest") as caught:
        fake.channel.stream_unary(INFER)(iter(()), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_that_is_given_up_before_its_message_came_leaves_nothing(
    fake: Fake, peers: queue.Queue[Peers]
) -> None:
    arrived, never = len(fake.cluster.arrivals), threading.Event()

    def waiting() -> Iterator[bytes]:
        never.wait(PATIENCE_S)
        yield encoded("double", X)

    given_up = fake.channel.stream_unary(INFER).future(waiting(), timeout=PATIENCE_S)
    held = peers.get(timeout=PATIENCE_S)
    assert len(held) == 1
    given_up.cancel()
    wait_until(lambda: len(held) == 0)
    passed = fake.channel.stream_unary(INFER).future(waiting(), timeout=1.0)
    assert passed.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: len(held) == 0)
    never.set()
    fake.client.infer("double", inputs(X))
    assert len(fake.cluster.arrivals) == arrived + 1


def test_a_message_is_let_go_without_a_garbage_collection(fake: Fake) -> None:
    """Gateways collect seldom: what a message leaves until then would be gigabytes under load."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            fake.client.infer("double", inputs(X))
        left = [each for each in gc.get_objects() if type(each).__name__ == "async_generator"]
        assert len(left) < 10, left
    finally:
        gc.enable()


def test_what_is_no_deadline_is_refused(fake: Fake) -> None:
    with pytest.raises(InferenceServerException, match="whole number of microseconds") as caught:
        fake.client.infer("double", inputs(X), timeout=-1)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="x-mainspring-slo-ms"):
        fake.client.infer("double", inputs(X), headers={"x-mainspring-slo-ms": "soon"})


def test_a_request_s_priority_reaches_the_controller(fake: Fake) -> None:
    fake.client.infer("double", inputs(X), priority=3)
    fake.client.infer("double", inputs(X))
    assert [arrival.priority for arrival in fake.cluster.arrivals] == [3, 0]


def test_a_cancelled_call_gives_its_request_up(fake: Fake) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    call = fake.client.async_infer("hold", inputs(X), lambda result, error: ended.put(error))
    wait_until(lambda: fake.cluster.arrivals)
    call.cancel()
    wait_until(lambda: fake.cluster.cancels)
    assert fake.cluster.cancels == [fake.cluster.arrivals[0].request_id]
    assert ended.get(timeout=PATIENCE_S).status() == "StatusCode.CANCELLED"


def test_a_call_whose_deadline_passed_gives_its_request_up(fake: Fake) -> None:
    with pytest.raises(InferenceServerException) as caught:
        fake.client.infer("hold", inputs(X), client_timeout=1.0)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until(lambda: fake.cluster.cancels)


def test_a_client_that_is_gone_takes_its_requests_with_it(fake: Fake) -> None:
    other = InferenceServerClient(fake.address)
    for _ in range(3):
        other.async_infer("hold", inputs(X), lambda result, error: None)
    wait_until(lambda: len(fake.cluster.arrivals) == 3)
    other.close()
    wait_until(lambda: len(fake.cluster.cancels) == 3)


def test_a_stream_answers_in_the_order_of_completion(fake: Fake) -> None:
    found: queue.Queue[Any] = queue.Queue()
    fake.client.start_stream(lambda result, error: found.put((result, error)))
    fake.client.async_stream_infer("hold", inputs(X), request_id="held")
    wait_until(lambda: fake.cluster.arrivals)
    held = fake.cluster.arrivals[0].request_id
    fake.client.async_stream_infer("double", inputs(X), request_id="quick")
    fake.client.async_stream_infer("nothing", inputs(X), request_id="unknown")
    fake.client.async_stream_infer("reject", inputs(X), request_id="rejected")
    first = [found.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [result.get_response().id for result, _ in first if result] == ["quick"]
    words = [error.message() for _, error in first if error]
    assert any("unknown_model" in each for each in words)
    assert any("70.0 ms from now" in each for each in words)
    fake.cluster.do(lambda: fake.cluster.dispatch(held, "double"))
    result, error = found.get(timeout=PATIENCE_S)
    assert error is None
    assert result.get_response().id == "held"
    fake.client.stop_stream()


def test_a_dropped_stream_gives_its_requests_up(fake: Fake) -> None:
    found: queue.Queue[Any] = queue.Queue()
    fake.client.start_stream(lambda result, error: found.put(error))
    for number in range(4):
        fake.client.async_stream_infer("hold", inputs(X), request_id=str(number))
    wait_until(lambda: len(fake.cluster.arrivals) == 4)
    fake.client.stop_stream(cancel_requests=True)
    wait_until(lambda: len(fake.cluster.cancels) == 4)


def test_a_stream_that_has_said_all_still_gets_its_answers(fake: Fake) -> None:
    call = fake.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    messages = [encoded("double", X, str(number)) for number in range(50)]
    answers = [service_pb2.ModelStreamInferResponse.FromString(each) for each in call(iter(messages))]
    assert sorted(int(each.infer_response.id) for each in answers) == list(range(50))
    assert not any(each.error_message for each in answers)


def test_garbage_in_a_stream_is_answered_and_the_stream_goes_on(fake: Fake) -> None:
    call = fake.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    answers = [
        service_pb2.ModelStreamInferResponse.FromString(each)
        for each in call(iter([b"\xff" * 20, b"\xff" * 20_000, encoded("double", X, "fine")]))
    ]
    assert [each.infer_response.parameters["reason"].string_param for each in answers[:2]] == [
        "bad_message"
    ] * 2
    assert answers[2].infer_response.id == "fine"


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        (encoded("nothing", X), "NOT_FOUND", "unknown_model"),
        (encoded("reject", X), "DEADLINE_EXCEEDED", "70.0 ms from now"),
        (b"\xff" * 20, "INVALID_ARGUMENT", "bad_message"),
    ],
    ids=["unknown", "rejected", "garbage"],
)
def test_the_first_error_ends_a_stream_that_asks_for_it(
    fake: Fake, last: bytes, code: str, said: str
) -> None:
    sent: queue.Queue[bytes] = queue.Queue()
    call = fake.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    answers = call(iter(sent.get, b""), timeout=PATIENCE_S, metadata=(("triton_grpc_error", "true"),))
    sent.put(encoded("double", X, "fine"))
    assert service_pb2.ModelStreamInferResponse.FromString(next(answers)).infer_response.id == "fine"
    sent.put(encoded("hold", X, "held"))
    wait_until(lambda: len(fake.cluster.arrivals) == 2)
    sent.put(last)
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert (caught.value.code().name, said in caught.value.details()) == (code, True)
    wait_until(lambda: fake.cluster.cancels)
    sent.put(b"")


def test_grpc_web_is_told_that_it_is_not_spoken(fake: Fake) -> None:
    for method, message in ((INFER, encoded("double", X)), (INFER.replace("ModelInfer", "ServerLive"), b"")):
        with pytest.raises(grpc.RpcError) as caught:
            fake.channel.unary_unary(method)(message, timeout=20, metadata=(("x-grpc-web", "1"),))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gRPC-Web is not spoken here: put a proxy in front" in caught.value.details()


def test_a_gateway_without_a_controller_is_live_and_not_ready() -> None:
    with (
        serving("tcp://127.0.0.1:1", grpc_address="grpc://127.0.0.1:0") as served,
        InferenceServerClient(served.grpc.removeprefix("grpc://")) as client,
        grpc.insecure_channel(served.grpc.removeprefix("grpc://")) as channel,
    ):
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("double")
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02"
        with pytest.raises(InferenceServerException, match="has not reached its controller") as caught:
            client.infer("double", inputs(X))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"


def test_a_watch_of_the_health_tells_each_change() -> None:
    with ExitStack() as outer:
        with ExitStack() as stack:
            fake = Fake(stack)
            channel = outer.enter_context(grpc.insecure_channel(fake.address))
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert next(watch) == b"\x08\x01"
            unknown = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x03abc")
            assert next(unknown) == b"\x08\x03"
        assert next(watch) == b"\x08\x02"
        assert next(watch, None) is None


def test_a_stop_answers_what_is_in_flight() -> None:
    with ExitStack() as outer:
        found: queue.Queue[Any] = queue.Queue()
        with ExitStack() as stack:
            fake = Fake(stack)
            other = outer.enter_context(InferenceServerClient(fake.address))
            other.async_infer("hold", inputs(X), lambda result, error: found.put(error))
            wait_until(lambda: fake.cluster.arrivals)
        error = found.get(timeout=PATIENCE_S)
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert "shutting_down" in error.message()
