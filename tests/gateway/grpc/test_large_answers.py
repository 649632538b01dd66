"""What answers hold that are asked for, in the making or not read: bounded, and others are served."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from tritonclient.grpc import InferRequestedOutput, service_pb2
from tritonclient.utils import InferenceServerException

from mainspring.gateway.oip import datatypes
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import ModelUp
from tests.gateway.fakes import make_spec, wait_until
from tests.gateway.grpc.conftest import LARGE_BYTES, Fake
from tests.gateway.grpc.tensors import encoded, inputs
from tests.patience import PATIENCE_S

X = np.arange(4, dtype=np.float32).reshape(1, 4)
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def give(fake: Fake, name: str, output: TensorSpec) -> None:
    """Have a model give this output."""
    fake.cluster.tell(ModelUp(msgspec.structs.replace(make_spec(name), outputs=(output,))))
    wait_until(lambda: fake.client.get_model_metadata(name).outputs[0].name == output.name)


def test_a_connection_s_answers_have_a_bound() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, max_answer_bytes_per_connection=10 * LARGE_BYTES + 1_000)
        give(fake, "hold", TensorSpec("much", "uint8", (LARGE_BYTES,)))
        ended: queue.Queue[Any] = queue.Queue()
        calls = [
            fake.client.async_infer("hold", inputs(X), lambda result, error: ended.put(error))
            for _ in range(12)
        ]
        for _ in range(2):
            error = ended.get(timeout=PATIENCE_S)
            assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
            assert "overloaded: answers on this connection" in error.message()
            assert "read them, or ask for less at once" in error.message()
        assert fake.client.infer("echo-int8", inputs(np.zeros((2, 3), np.int8), "INT8")) is not None
        for call in calls:
            call.cancel()
        wait_until(lambda: len(fake.cluster.cancels) == 10)
        wait_until(lambda: _takes_all(fake))


def _takes_all(fake: Fake) -> bool:
    """Say whether the connection's whole budget is free again."""
    ended: queue.Queue[Any] = queue.Queue()
    for _ in range(10):
        fake.client.async_infer("large", inputs(X), lambda result, error: ended.put(error))
    return all(ended.get(timeout=PATIENCE_S) is None for _ in range(10))


def test_all_answers_together_have_a_bound() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, max_answer_bytes=3 * LARGE_BYTES + 1_000)
        give(fake, "hold", TensorSpec("much", "uint8", (LARGE_BYTES,)))
        held = [fake.client.async_infer("hold", inputs(X), lambda result, error: None) for _ in range(3)]
        wait_until(lambda: len(fake.cluster.arrivals) == 3)
        with pytest.raises(InferenceServerException, match="answers of all clients") as caught:
            fake.client.infer("large", inputs(X))
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        held[0].cancel()
        wait_until(lambda: _answers(fake))


def _answers(fake: Fake) -> bool:
    try:
        return fake.client.infer("large", inputs(X)) is not None
    except InferenceServerException:
        return False


@contextlib.contextmanager
def one_way(address: str) -> Iterator[str]:
    """Pass on what a client sends, and read nothing of what it is sent behind its first 100 bytes."""
    host, _, port = address.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:

        def run() -> None:
            client, _ = listener.accept()
            stack.callback(client.close)
            server = stack.enter_context(socket.create_connection((host, int(port))))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.sendall(server.recv(100))
            with contextlib.suppress(OSError):
                while data := client.recv(1 << 16):
                    server.sendall(data)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("streams", [False, True])
def test_answers_that_are_not_read_count_until_they_are(streams: bool) -> None:
    count = 60
    with ExitStack() as stack:
        fake = Fake(stack, max_answer_bytes_per_connection=8 * LARGE_BYTES)
        channel = grpc.insecure_channel(stack.enter_context(one_way(fake.address)))
        stack.callback(channel.close)
        before = fake.client.get_inference_statistics("large").model_stats[0].inference_stats
        if streams:
            messages = iter([encoded("large", X, str(number)) for number in range(count)])
            calls: list[Any] = [channel.stream_stream(STREAM)(messages)]
        else:
            calls = [channel.unary_unary(INFER).future(encoded("large", X)) for _ in range(count)]

        def all_seen() -> bool:
            stats = fake.client.get_inference_statistics("large").model_stats[0].inference_stats
            return bool(stats.success.count + stats.fail.count - before.success.count == count)

        wait_until(all_seen, 30)
        taken = [each.model for each in fake.cluster.arrivals].count("large")
        assert 8 <= taken < count, "a megabyte for each of them waits to be read"
        assert fake.client.infer("large", inputs(X)), "on another connection"
        for call in calls:
            call.cancel()


def test_a_stream_goes_on_behind_a_refusal_for_want_of_room() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, max_answer_bytes_per_connection=2 * LARGE_BYTES)
        give(fake, "hold", TensorSpec("much", "uint8", (LARGE_BYTES,)))
        messages = [encoded("hold", X, "a"), encoded("hold", X, "b"), encoded("large", X, "c")]
        call = fake.channel.stream_stream(STREAM)(iter(messages))
        answer = service_pb2.ModelStreamInferResponse.FromString(next(call))
        assert answer.infer_response.id == "c"
        assert answer.error_message.startswith("overloaded: answers on this connection")
        assert answer.infer_response.parameters["reason"].string_param == "overloaded"
        call.cancel()
        wait_until(lambda: len(fake.cluster.cancels) == 2)


@pytest.mark.parametrize("streams", [False, True])
def test_a_large_answer_of_bytes_elements_is_made_in_slices(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = datatypes.join

    def counted(found: list[bytes]) -> bytes:
        sizes.append(len(found))
        return plain(found)

    monkeypatch.setattr(datatypes, "join", counted)
    with ExitStack() as stack:
        fake = Fake(stack)
        give(fake, "large", TensorSpec("much", "S8", (LARGE_BYTES // 8,)))
        data = encoded("large", X)
        if streams:
            answer = next(fake.channel.stream_stream(STREAM)(iter([data])))
            response = service_pb2.ModelStreamInferResponse.FromString(answer).infer_response
        else:
            response = service_pb2.ModelInferResponse.FromString(fake.channel.unary_unary(INFER)(data))
        assert response.outputs[0].datatype == "BYTES"
        assert response.raw_output_contents[0] == bytes(4 * (LARGE_BYTES // 8))
        assert sizes == [4_096] * 32


def test_too_many_classes_of_a_large_output_are_refused() -> None:
    with ExitStack() as stack:
        fake = Fake(stack)
        wanted = [InferRequestedOutput("much", class_count=5)]
        found = fake.client.infer("large", inputs(X), outputs=wanted).as_numpy("much")
        assert found.tolist() == [[b"0:0", b"0:1", b"0:2", b"0:3", b"0:4"]]
        wanted = [InferRequestedOutput("much", class_count=5_000)]
        with pytest.raises(InferenceServerException, match="at most the highest 4,096"):
            fake.client.infer("large", inputs(X), outputs=wanted)
