"""Clients that send garbage, too much, too many, or do not read: bounded, and the others are served."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from contextlib import ExitStack
from typing import Any

import grpc
import msgspec
import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient, service_pb2
from tritonclient.utils import InferenceServerException

from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import ModelUp
from tests.gateway.fakes import make_spec, wait_until
from tests.gateway.grpc.conftest import Fake, Live
from tests.gateway.grpc.tensors import encoded, inputs
from tests.patience import PATIENCE_S

X = np.arange(4, dtype=np.float32).reshape(1, 4)
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GARBAGE = {
    "nothing": b"",
    "noise": os.urandom(4096),
    "zeros": bytes(1 << 20),
    "another protocol": b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a preface": PREFACE[:9],
    "a preface and noise": PREFACE + os.urandom(4096),
    "a frame of 16 MiB that never comes": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1000),
    "settings without end": PREFACE + b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" * 3 + bytes(10),
    "the beginning of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(32),
}


def serves(live: Live) -> None:
    with InferenceServerClient(live.address) as client:
        data = np.ones((1, 1000), np.float32)
        assert client.infer("quick", inputs(data), client_timeout=30).as_numpy("output") is not None


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_port_harms_nobody(live_cluster: Live, sent: bytes) -> None:
    host, _, port = live_cluster.address.partition(":")
    with ExitStack() as stack:
        for _ in range(5):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 10))
            connection.settimeout(0.05)
            try:
                connection.sendall(sent)
                connection.recv(1)
            except OSError:
                # Closed by the other side already, or kept open and silent.
                pass
        serves(live_cluster)


def test_a_thousand_idle_connections_harm_nobody(live_cluster: Live) -> None:
    host, _, port = live_cluster.address.partition(":")
    with ExitStack() as stack:
        for _ in range(1_000):
            stack.enter_context(socket.create_connection((host, int(port)), 30)).send(PREFACE)
        serves(live_cluster)


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_a_message_larger_than_the_limit_is_refused_before_it_takes_memory(
    live_cluster: Live, compression: grpc.Compression
) -> None:
    process = psutil.Process(live_cluster.gateway_pid)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(live_cluster.address, options) as channel:
        before = process.memory_info().rss
        call = channel.unary_unary(INFER).future(bytes(250 << 20), compression=compression, timeout=120)
        most = before
        while not call.done():
            most = max(most, process.memory_info().rss)
            time.sleep(0.002)
        assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in call.details()
        assert most - before < 150 << 20, "the limit is 64 MiB"
    serves(live_cluster)


@pytest.mark.parametrize("name", ["LogSettings", "RepositoryIndex", "ModelConfig"])
def test_a_question_of_absurd_length_is_refused(fake: Fake, name: str) -> None:
    call = fake.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
    with pytest.raises(grpc.RpcError, match="too long for") as caught:
        call(b"\x0a\x00" * (1 << 20), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_metadata_larger_than_the_limit_is_refused(live_cluster: Live) -> None:
    with grpc.insecure_channel(live_cluster.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=(("x-much", "y" * 40_000),), timeout=20)
        assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    serves(live_cluster)


def test_bytes_that_are_no_message_are_refused(live_cluster: Live) -> None:
    with grpc.insecure_channel(live_cluster.address) as channel:
        for size in (3, 20_000):
            for name in ("ModelInfer", "ModelConfig", "RepositoryIndex"):
                with pytest.raises(grpc.RpcError, match="bad_message") as caught:
                    channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"\xff" * size)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_more_calls_than_the_limit_are_refused() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_max_calls=4)
        ended: queue.Queue[Any] = queue.Queue()
        calls = [
            fake.client.async_infer("hold", inputs(X), lambda result, error: ended.put(error))
            for _ in range(8)
        ]
        codes = [ended.get(timeout=PATIENCE_S).status() for _ in range(4)]
        assert codes == ["StatusCode.RESOURCE_EXHAUSTED"] * 4
        for call in calls:
            call.cancel()
        wait_until(lambda: len(fake.cluster.cancels) == 4)
        wait_until(lambda: fake.client.infer("double", inputs(X)))


def test_more_calls_on_one_connection_than_the_limit_wait_in_the_client() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_max_streams=2)
        ended: queue.Queue[Any] = queue.Queue()
        held = [fake.client.async_infer("hold", inputs(X), lambda result, error: None) for _ in range(2)]
        wait_until(lambda: len(fake.cluster.arrivals) == 2)
        fake.client.async_infer("double", inputs(X), lambda result, error: ended.put(result))
        with InferenceServerClient(
            fake.address, channel_args=[("grpc.use_local_subchannel_pool", 1)]
        ) as other:
            other.infer("double", inputs(X), client_timeout=20)
        assert ended.empty()
        held[0].cancel()
        assert ended.get(timeout=PATIENCE_S) is not None


def test_a_connection_that_says_nothing_is_closed() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_handshake_timeout_ms=1_000.0)
        host, _, port = fake.address.partition(":")
        silent = stack.enter_context(socket.create_connection((host, int(port)), 20))
        with contextlib.suppress(ConnectionError):
            while silent.recv(1_000):
                # The server's own preface comes first.
                pass
        assert fake.client.is_server_live()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1_000):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_more_connections_than_the_limit_are_turned_away() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_max_connections=2)
        host, _, port = fake.address.partition(":")
        opened = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(8)]
        closed: set[int] = set()

        def turned_away() -> bool:
            for number, each in enumerate(opened):
                each.settimeout(0.01)
                try:
                    while each.recv(1_000):
                        # The server's preface.
                        pass
                    closed.add(number)
                except ConnectionError:
                    closed.add(number)
                except TimeoutError:
                    pass
            return len(closed) >= 6

        wait_until(turned_away, 30)
        assert fake.client.is_server_live()


SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.mark.parametrize("said", [b"P", PREFACE[:16], PREFACE + SETTINGS, PREFACE + 2 * SETTINGS])
def test_connections_that_ask_for_nothing_keep_no_new_client_waiting(said: bytes) -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_max_connections=40, grpc_handshake_timeout_ms=60_000.0)
        kept, ended = fake.client, queue.Queue[Any]()
        kept.async_infer("hold", inputs(X), lambda result, error: ended.put(error))
        wait_until(lambda: len(fake.cluster.arrivals) == 1)
        host, _, port = fake.address.partition(":")
        for _ in range(120):
            stack.enter_context(socket.create_connection((host, int(port)), 20)).sendall(said)
        channel = [("grpc.use_local_subchannel_pool", 1)]
        began = time.monotonic()
        with InferenceServerClient(fake.address, channel_args=channel) as other:

            def served() -> bool:
                with contextlib.suppress(InferenceServerException):
                    return bool(other.is_server_live())
                return False

            wait_until(served, 30)
        assert time.monotonic() - began < 8, "far less than the handshake of a silent one may take"
        kept.infer("double", inputs(X))
        assert ended.empty(), "a call in flight goes on"


def test_the_first_call_of_a_client_is_answered_beside_any_number_of_silent_ones() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_max_connections=40, grpc_handshake_timeout_ms=60_000.0)
        host, _, port = fake.address.partition(":")
        for _ in range(400):
            stack.enter_context(socket.create_connection((host, int(port)), 20))
        channel = [("grpc.use_local_subchannel_pool", 1)]
        with InferenceServerClient(fake.address, channel_args=channel) as other:
            assert other.is_server_live()


def test_one_connection_s_requests_in_flight_are_bounded() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, max_in_flight_per_connection=3)
        found: queue.Queue[Any] = queue.Queue()
        fake.client.start_stream(lambda result, error: found.put(error))
        for _ in range(5):
            fake.client.async_stream_infer("hold", inputs(X))
        for _ in range(2):
            assert "overloaded" in found.get(timeout=PATIENCE_S).message()
        fake.client.stop_stream(cancel_requests=True)


def test_a_stream_asks_for_no_more_at_once_than_may_wait_for_its_reader() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_backlog_bytes=10 << 20)
        much = (TensorSpec("much", "uint8", (1 << 20,)),)
        fake.cluster.tell(ModelUp(msgspec.structs.replace(make_spec("hold"), outputs=much)))
        wait_until(lambda: fake.client.get_model_metadata("hold").outputs[0].name == "much")
        call = fake.channel.stream_stream(STREAM)(encoded("hold", X, str(number)) for number in range(50))
        wait_until(lambda: len(fake.cluster.arrivals) == 11)
        for _ in range(20):
            fake.client.infer("double", inputs(X))
        assert [each.model for each in fake.cluster.arrivals].count("hold") == 11, "10 MiB, and one more"
        call.cancel()
        wait_until(lambda: len(fake.cluster.cancels) == 11)


def test_a_stream_whose_answers_are_not_read_is_not_read_either() -> None:
    with ExitStack() as stack:
        fake = Fake(stack, grpc_backlog_bytes=10 << 20)
        count = 200
        call = fake.channel.stream_stream(STREAM)
        answers = call(encoded("large", X, str(number)) for number in range(count))
        wait_until(lambda: fake.cluster.arrivals)
        taken, since = -1, time.monotonic()
        while time.monotonic() - since < 0.5:
            if len(fake.cluster.arrivals) != taken:
                taken, since = len(fake.cluster.arrivals), time.monotonic()
            time.sleep(0.01)
        assert 0 < taken < count, "a megabyte for each of them waits to be read"
        found = {service_pb2.ModelStreamInferResponse.FromString(each).infer_response.id for each in answers}
        assert found == set(map(str, range(count)))
