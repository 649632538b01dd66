"""The clients when the gateway is not there, goes away, says nothing, or is of another version."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import ERROR_OF_REASON, error_of
from mainspring.client.requests import Call
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from tests.client.fakes import WELCOME, fake_gateway, mute
from tests.gateway.fakes import fake_cluster, gateway, wait_until
from tests.patience import PATIENCE_S

X = np.ones((1, 4), np.float32)


def test_no_gateway_names_the_address_and_what_to_start() -> None:
    with Client("tcp://127.0.0.1:1", connect_timeout_s=0.2) as client:
        with pytest.raises(
            mainspring.GatewayUnreachable, match=r"127\.0\.0\.1:1 within 0\.2\d* s.*mainspring up"
        ):
            client.infer("m", {"data": X}, slo_ms=5_000)
        with pytest.raises(mainspring.Unavailable):
            client.models()


def test_a_request_does_not_wait_longer_for_a_gateway_than_its_slo() -> None:
    with (
        Client("tcp://127.0.0.1:1", connect_timeout_s=PATIENCE_S) as client,
        pytest.raises(mainspring.GatewayUnreachable, match=r"within 0\.\d+ s"),
    ):
        client.infer("m", {"data": X}, slo_ms=50)


@pytest.mark.parametrize(
    "address",
    ["nonsense", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:0", "tcp://[::1", "tcp://::1:7400", "unix:///x"],
)
def test_an_address_that_is_none_is_a_clear_error(address: str) -> None:
    with pytest.raises(mainspring.GatewayUnreachable, match="is not an address; write it like tcp://"):
        Client(address)


def test_a_gateway_that_never_answers_is_given_up_after_the_guard() -> None:
    with fake_gateway(mute) as address, Client(address, guard_s=0.2, best_effort_timeout_s=0.3) as client:
        for slo_ms in (50, None):
            with pytest.raises(mainspring.TimedOut, match="did not answer"):
                client.infer("m", {"data": X}, slo_ms)


def test_another_protocol_version_is_a_clear_error() -> None:
    refusal = encode(clients.ClientRefused("protocol_mismatch", "the gateway speaks version 2"))
    with fake_gateway(lambda _: [refusal]) as address, Client(address) as client:
        with pytest.raises(mainspring.GatewayUnreachable, match="speaks version 2"):
            client.infer("m", {"data": X})
        with pytest.raises(mainspring.GatewayUnreachable, match="speaks version 2"):
            client.models()


def test_a_welcome_of_another_protocol_version_is_a_clear_error() -> None:
    welcome = encode(clients.ClientWelcome(PROTOCOL_VERSION + 1, "9.9", 1_000, 10))
    asked: list[clients.FromClient] = []

    def answer(message: clients.FromClient) -> list[bytes]:
        asked.append(message)
        return [welcome]

    with fake_gateway(answer) as address:
        complaint = (
            r"protocol_mismatch\): it speaks protocol 2 \(release 9\.9\), this client protocol 1; install"
        )
        with Client(address) as client, pytest.raises(mainspring.GatewayUnreachable, match=complaint):
            client.infer("m", {"data": X})
        with Connection(address) as low, pytest.raises(mainspring.GatewayUnreachable, match=complaint):
            low.open(timeout_s=PATIENCE_S)
    assert {type(each) for each in asked} == {clients.ClientHello}, "it must be asked nothing else"


def test_a_gateway_of_the_right_version_may_take_the_place_of_a_wrong_one() -> None:
    wrong = encode(clients.ClientWelcome(PROTOCOL_VERSION + 1, "9.9", 1_000, 10))
    with fake_gateway(lambda _: [wrong]) as address:
        client = Client(address, connect_timeout_s=PATIENCE_S)
        with pytest.raises(mainspring.GatewayUnreachable, match="protocol_mismatch"):
            client.models()

    def right(message: clients.FromClient) -> list[bytes]:
        return mute(message) or [encode(clients.ModelList(getattr(message, "key", 0), ()))]

    def served() -> bool:
        with contextlib.suppress(mainspring.GatewayUnreachable):
            return client.models() == ()
        return False

    with fake_gateway(right, address):
        wait_until(served)
        client.close()


def test_an_input_beyond_the_gateways_limit_is_not_sent() -> None:
    with (
        fake_gateway(mute) as address,
        Client(address) as client,
        pytest.raises(mainspring.InvalidInput, match=r"1,[67]\d\d bytes.* at most 1,000"),
    ):
        client.infer("m", {"data": np.ones((100, 4), np.float32)})


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\xfe"],
        [encode(clients.InferReply(1, (TensorHeader("y", "float32", (9,)),), None)), b"1"],  # type: ignore[arg-type]
    ],
)
def test_replies_that_are_none_are_dropped(frames: list[bytes]) -> None:
    def answer(message: clients.FromClient) -> list[bytes]:
        if isinstance(message, clients.ListModels):
            return [encode(clients.ModelList(message.key, ()))]
        return mute(message) or frames

    with fake_gateway(answer) as address, Client(address, guard_s=0.2) as client:
        client.models()
        with pytest.raises(mainspring.TimedOut):
            client.infer("m", {"data": X}, slo_ms=500)


def test_outputs_that_do_not_fit_their_headers_are_an_error() -> None:
    timing = clients.Timing(1, 1, 1, None, 1, False, "w")

    def answer(message: clients.FromClient) -> list[bytes]:
        key = getattr(message, "key", 0)
        reply = clients.InferReply(key, (TensorHeader("y", "float32", (9,)),), timing)
        return mute(message) or [encode(reply), b"1234"]

    with (
        fake_gateway(answer) as address,
        Client(address) as client,
        pytest.raises(mainspring.MainspringError, match="can't be read"),
    ):
        client.infer("m", {"data": X})


def test_a_break_ends_what_is_in_flight_and_the_client_comes_back() -> None:
    with fake_cluster() as cluster:
        with gateway(cluster.address) as address:
            client = Client(address, connect_timeout_s=PATIENCE_S)
            wait_until(lambda: len(client.models()) >= 5)
        # The gateway is gone; a mute one takes its place, and breaks.
        with fake_gateway(mute, address):
            lost = client.submit("hold", {"data": X}, slo_ms=60_000)
            assert isinstance(lost, Call)
            wait_until(lambda: lost.sent)
        with pytest.raises(mainspring.GatewayUnreachable, match="broke before the reply"):
            lost.result(PATIENCE_S)
        with gateway(cluster.address, address=address):
            wait_until(lambda: len(client.models()) >= 5)
            np.testing.assert_array_equal(client.infer("double", {"data": X})["twice"], X * 2)
            client.close()


def test_a_reply_that_came_just_before_the_break_is_delivered() -> None:
    """As when a gateway drains: it answers and is gone, before a busy client has had a look."""

    def answer(message: clients.FromClient) -> list[bytes]:
        return mute(message) or [encode(clients.ModelList(getattr(message, "key", 0), ()))]

    with fake_gateway(answer) as address:
        connection = Connection(address)
        connection.open(timeout_s=PATIENCE_S)
        connection.send(clients.ListModels(7))
        time.sleep(0.1)
    time.sleep(0.1)
    with connection:
        received = connection.receive()
        assert received is not None
        assert received[0] == clients.ModelList(7, ())
        wait_until(lambda: connection.receive() is None and connection.link_lost == 1)
        with pytest.raises(mainspring.GatewayUnreachable, match="no connection"):
            connection.send(clients.ListModels(8))


def test_a_gateway_that_forgot_the_client_is_greeted_again() -> None:
    forgot = encode(clients.ClientRefused("unknown_session", "say hello first"))
    asked: list[clients.FromClient] = []

    def answer(message: clients.FromClient) -> list[bytes]:
        asked.append(message)
        if isinstance(message, clients.ClientHello):
            return [encode(WELCOME)]
        return [forgot] if len(asked) < 3 else [encode(clients.ModelList(getattr(message, "key", 0), ()))]

    with fake_gateway(answer) as address, Client(address) as client:
        with pytest.raises(mainspring.GatewayUnreachable, match="broke"):
            client.models()
        assert client.models() == ()
    assert sum(isinstance(each, clients.ClientHello) for each in asked) == 2


def test_the_low_level_connection_drives_a_loop_of_its_own() -> None:
    header = TensorHeader("data", "float32", (1, 4))
    with fake_cluster() as cluster, gateway(cluster.address) as address, Connection(address) as connection:
        welcome = connection.open(timeout_s=PATIENCE_S)
        assert welcome.max_in_flight > 0
        wait_until(lambda: _served(connection))
        for key in range(500):
            connection.send(clients.InferRequest(key, "double", (header,), None), [X])
        keys: list[int] = []
        while len(keys) < 500:
            assert connection.poll(5_000)
            while (received := connection.receive()) is not None:
                reply, frames = received
                assert isinstance(reply, clients.InferReply)
                np.testing.assert_array_equal(np.frombuffer(frames[0], np.float32), X[0] * 2)
                keys.append(reply.key)
        assert sorted(keys) == list(range(500))
        assert connection.link_lost == 0


def _served(connection: Connection) -> bool:
    connection.send(clients.ListModels(1))
    while (received := connection.receive()) is None:
        assert connection.poll(5_000)
    assert isinstance(received[0], clients.ModelList)
    return len(received[0].models) >= 5


def test_the_low_level_connection_says_what_is_wrong() -> None:
    with Connection("tcp://127.0.0.1:1") as connection:
        with pytest.raises(mainspring.GatewayUnreachable, match="no connection"):
            connection.send(clients.ListModels(1))
        with pytest.raises(mainspring.GatewayUnreachable, match="no gateway answers"):
            connection.open(0.1)


def test_a_future_cancelled_before_it_is_sent_is_never_sent() -> None:
    asked: list[clients.FromClient] = []

    def answer(message: clients.FromClient) -> list[bytes]:
        asked.append(message)
        return mute(message) or [encode(clients.ModelList(getattr(message, "key", 0), ()))]

    with fake_gateway(mute) as address:
        pass
    client = Client(address, connect_timeout_s=PATIENCE_S)
    future = client.submit("m", {"data": X})
    assert future.cancel()
    with fake_gateway(answer, address):
        client.models()
        client.close()
    assert not [each for each in asked if isinstance(each, clients.InferRequest | clients.CancelRequest)]


def test_every_reason_has_an_error_of_its_own() -> None:
    assert set(ERROR_OF_REASON) == set(Reason)
    assert len(set(ERROR_OF_REASON.values())) == len(Reason)
    for reason in Reason:
        error = error_of(clients.ErrorReply(1, reason, "what happened"))
        assert error.reason is reason
        assert str(error).startswith("what happened")
        assert type(error).__name__ in mainspring.__all__
