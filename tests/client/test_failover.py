"""A client of several gateways, one of which is lost, drains, is silent or refuses it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.client.address import gateway_addresses
from mainspring.client.failover import MOST_SENDINGS, Gateways
from mainspring.client.sequences import Sequence
from mainspring.messages import clients, learning
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from tests.client.fakes import WELCOME, fake_gateway, mute
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S

X = np.ones((1, 4), np.float32)
NOWHERE = "tcp://127.0.0.1:1"
TIMING = clients.Timing(1, 1, 1, None, 1, False, "w")


class Gateway:
    """A gateway that can be started and killed; it answers what it is asked for while ``answers``."""

    def __init__(self, number: int, *, answers: bool = True) -> None:
        self.number = number
        self.answers = answers
        self.takes_s = 0.0
        """Time that each answer takes."""
        self.heard: list[clients.FromClient] = []
        self.address = ""
        self._stack = ExitStack()

    def start(self) -> Gateway:
        where = self.address or "tcp://127.0.0.1:*"
        self.address = self._stack.enter_context(fake_gateway(self._answer, where))
        return self

    def kill(self) -> None:
        self._stack.close()

    def requests(self) -> list[clients.InferRequest]:
        return [each for each in self.heard if isinstance(each, clients.InferRequest)]

    def _answer(self, message: clients.FromClient) -> list[bytes]:
        self.heard.append(message)
        if isinstance(message, clients.ClientHello):
            return mute(message)
        if isinstance(message, clients.ListModels) and self.answers:
            return [encode(clients.ModelList(message.key, ()))]
        if isinstance(message, clients.InferRequest) and self.answers:
            time.sleep(self.takes_s)
            header = TensorHeader("y", "float32", (1,))
            return [
                encode(clients.InferReply(message.key, (header,), TIMING)),
                np.float32(self.number).tobytes(),
            ]
        return []


@contextmanager
def gateways(*answers: bool) -> Iterator[list[Gateway]]:
    """As many gateways; the first is the one that clients are connected to first."""
    found = [Gateway(number, answers=each).start() for number, each in enumerate(answers)]
    try:
        yield found
    finally:
        for each in found:
            each.kill()


@contextmanager
def client_of(found: list[Gateway]) -> Iterator[Client]:
    """A client that uses the first of them, and is connected to all."""
    with Client([each.address for each in found], connect_timeout_s=PATIENCE_S) as client:
        use(client, 0)
        yield client


def use(client: Client, number: int) -> Gateways:
    """Have a client that is connected to all its gateways use this one."""
    channel = client._channel
    assert isinstance(channel, Gateways)
    wait_until(lambda: all(each.welcome is not None for each in channel._members))
    channel._at = number
    return channel


def test_what_has_no_reply_is_sent_again_with_the_time_that_is_left() -> None:
    with gateways(False, True) as [first, second], client_of([first, second]) as client:
        futures = [client.submit("m", {"data": X}, slo_ms=60_000) for _ in range(10)]
        wait_until(lambda: len(first.requests()) == 10)
        time.sleep(0.05)
        first.kill()
        assert [float(each.result()["y"][0]) for each in futures] == [1.0] * 10
        before = {each.key: each.slo_ns for each in first.requests()}
        assert {each.key for each in second.requests()} == before.keys(), "each was sent again once"
        assert all((each.slo_ns or 0) < (before[each.key] or 0) - 50e6 for each in second.requests())
        assert float(client.infer("m", {"data": X})["y"][0]) == 1, "it stays with the one that is there"


def test_a_gateway_that_lives_and_gives_no_reply_is_left_in_time_for_deadlines() -> None:
    with gateways(False, True) as [first, second], client_of([first, second]) as client:
        begin_s = time.monotonic()
        futures = [client.submit("m", {"data": X}, slo_ms=2_000) for _ in range(20)]
        assert [float(each.result()["y"][0]) for each in futures] == [1.0] * 20
        assert time.monotonic() - begin_s < 2.0
        assert len(first.requests()) == WELCOME.max_in_flight, "the others wait in the client"
        assert len(second.requests()) == 20, "each goes there once"
        wait_until(lambda: sum(isinstance(each, clients.CancelRequest) for each in first.heard) == 10)
        assert float(client.infer("m", {"data": X}, slo_ms=2_000)["y"][0]) == 1
        assert len(first.requests()) == 10, "it stays with the one that answers"


def test_slow_answers_are_hardly_ever_asked_for_twice() -> None:
    with gateways(True, True) as both, client_of(both) as client:
        for each in both:
            each.takes_s = 0.15
        answers = [float(client.infer("m", {"data": X}, slo_ms=400)["y"][0]) for _ in range(10)]
        assert answers == [0.0] * 10
        assert len(both[1].requests()) <= 2


def test_killed_again_and_again_each_request_has_one_reply() -> None:
    with gateways(True, True) as both, client_of(both) as client:
        answered = 0
        for round_number in range(6):
            futures = [client.submit("m", {"data": X}, slo_ms=60_000) for _ in range(50)]
            both[round_number % 2].kill()
            answered += sum(each.result()["y"].shape == (1,) for each in futures)
            both[round_number % 2].start()
        assert answered == 300


def test_a_request_that_breaks_gateways_is_not_sent_for_ever() -> None:
    with gateways(False, False) as both, client_of(both) as client:
        future = client.submit("m", {"data": X})
        for _ in range(MOST_SENDINGS):
            wait_until(lambda: any(each.requests() for each in both))
            holder = next(each for each in both if each.requests())
            holder.kill()
            holder.heard.clear()
            holder.start()
        with pytest.raises(mainspring.GatewayUnreachable, match=rf"sent {MOST_SENDINGS} times"):
            future.result()


def test_if_none_answers_the_error_names_each() -> None:
    refusal = encode(clients.ClientRefused("protocol_mismatch", "the gateway speaks version 2"))
    with (
        fake_gateway(lambda _: [refusal]) as other,
        Client([NOWHERE, "tcp://no.host.invalid:7400", other], connect_timeout_s=1.0) as client,
        pytest.raises(mainspring.GatewayUnreachable) as failed,
    ):
        client.infer("m", {"data": X}, slo_ms=60_000)
    assert re.search(r"none of 3 gateways answers within 1(\.\d)? s", str(failed.value))
    assert f"nobody answers at {NOWHERE}" in str(failed.value)
    assert "no.host.invalid" in str(failed.value)
    assert f"{other} refused this client (protocol_mismatch): the gateway speaks version 2" in str(
        failed.value
    )


def test_if_all_want_a_token_that_is_the_error_at_once() -> None:
    refusal = encode(clients.ClientRefused(Reason.UNAUTHENTICATED.value, "it needs a token"))
    with (
        fake_gateway(lambda _: [refusal]) as first,
        fake_gateway(lambda _: [refusal]) as second,
        Client([first, second], connect_timeout_s=PATIENCE_S) as client,
        pytest.raises(mainspring.Unauthenticated, match=rf"{first}.*{second}"),
    ):
        client.models()


def test_one_that_refuses_or_is_not_there_is_passed_over() -> None:
    refusal = encode(clients.ClientRefused(Reason.UNAUTHENTICATED.value, "it needs a token"))
    with (
        gateways(True) as [good],
        fake_gateway(lambda _: [refusal]) as bad,
        Client(f"{NOWHERE},{bad}, {good.address}", connect_timeout_s=PATIENCE_S) as client,
    ):
        assert client.models() == ()
        assert client.infer("m", {"data": X}, slo_ms=60_000)["y"].shape == (1,)


def test_what_waits_when_all_are_lost_goes_to_the_first_that_is_back() -> None:
    with gateways(True, True) as both, client_of(both) as client:
        for each in both:
            each.kill()
        wait_until(lambda: client._channel.welcome is None)
        future = client.submit("m", {"data": X}, slo_ms=60_000)
        both[1].start()
        assert float(future.result()["y"][0]) == 1


def test_a_gateway_that_drains_is_left_at_once_and_still_answers() -> None:
    told: list[clients.InferRequest] = []

    def drains(message: clients.FromClient) -> list[bytes]:
        if isinstance(message, clients.InferRequest):
            told.append(message)
            return [encode(clients.GoAway(60_000_000_000))]
        return mute(message)

    with (
        fake_gateway(drains) as leaving,
        gateways(True) as [other],
        Client([leaving, other.address], connect_timeout_s=PATIENCE_S) as client,
    ):
        use(client, 0)
        waiting = client.submit("m", {"data": X}, slo_ms=60_000)
        wait_until(lambda: bool(told))
        assert client.infer("m", {"data": X}, slo_ms=60_000)["y"].shape == (1,)
        assert not waiting.done(), "its gateway still answers it"


def test_one_that_stops_has_its_refusals_tried_elsewhere() -> None:
    def stops(message: clients.FromClient) -> list[bytes]:
        key = getattr(message, "key", 0)
        return mute(message) or [encode(clients.ErrorReply(key, Reason.SHUTTING_DOWN, "it stops"))]

    with (
        fake_gateway(stops) as stopping,
        gateways(True) as [other],
        Client([stopping, other.address], connect_timeout_s=PATIENCE_S) as client,
    ):
        use(client, 0)
        assert client.infer("m", {"data": X}, slo_ms=60_000)["y"].shape == (1,)
    with (
        fake_gateway(stops) as first,
        fake_gateway(stops) as second,
        Client([first, second]) as client,
        pytest.raises(mainspring.ShuttingDown),
    ):
        client.infer("m", {"data": X}, slo_ms=60_000)


def test_changes_and_feedback_are_not_sent_again() -> None:
    with gateways(False, False) as both, client_of(both) as client:
        channel = client._channel
        change = channel.call(clients.RemoveModel(channel.next_key(), "m"), 60.0)
        feedback = channel.call(learning.Observe(channel.next_key(), "app", 7), 60.0)
        wait_until(lambda: len(both[0].heard) == 3)
        both[0].kill()
        with pytest.raises(mainspring.GatewayUnreachable, match="the change may have been made"):
            change.result()
        with pytest.raises(mainspring.GatewayUnreachable, match="may have learnt"):
            feedback.result()
        changes = clients.RemoveModel | learning.Observe
        assert not [each for each in both[1].heard if isinstance(each, changes)]


def test_feedback_goes_to_the_gateway_that_answered() -> None:
    with gateways(True, True) as both, client_of(both) as client:
        channel = use(client, 0)
        channel.answered("app", 7, channel._members[1])
        for query_id in (7, 8):
            channel.call(learning.Observe(channel.next_key(), "app", query_id), 60.0)
        wait_until(lambda: any(isinstance(each, learning.Observe) for each in both[1].heard))
        wait_until(lambda: any(isinstance(each, learning.Observe) for each in both[0].heard))
        assert [each.query_id for each in both[1].heard if isinstance(each, learning.Observe)] == [7]


def test_a_sequence_stays_with_its_gateway_and_begins_again_elsewhere_when_that_is_lost() -> None:
    with gateways(True, True) as both, client_of(both) as client, client.sequence("m") as stream:
        assert float(stream.infer({"data": X}, slo_ms=60_000)["y"][0]) == 0
        use(client, 1)
        assert float(stream.infer({"data": X}, slo_ms=60_000)["y"][0]) == 0, "its state is there"
        both[0].answers = False
        future = client.submit("m", {"data": X}, slo_ms=60_000)
        assert float(future.result()["y"][0]) == 1, "others go where they like"
        with pytest.raises(mainspring.UnknownSequence, match="the state of the sequence was there"):
            _killed_meanwhile(both[0], stream)
        assert float(stream.infer({"data": X}, slo_ms=60_000)["y"][0]) == 1
        assert both[1].requests()[-1].sequence_start


def _killed_meanwhile(gateway: Gateway, stream: Sequence) -> None:
    """Kill a gateway once it has the sequence's next request, and raise what comes of that."""
    sent = len(gateway.requests())

    def kill() -> None:
        wait_until(lambda: len(gateway.requests()) > sent)
        gateway.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        stream.infer({"data": X}, slo_ms=60_000)
    finally:
        thread.join()


def test_a_call_that_was_handed_over_can_be_cancelled() -> None:
    with gateways(False, False) as both, client_of(both) as client:
        future = client.submit("m", {"data": X}, slo_ms=60_000)
        wait_until(lambda: len(both[0].requests()) == 1)
        both[0].kill()
        wait_until(lambda: len(both[1].requests()) == 1)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result()
        wait_until(lambda: any(isinstance(each, clients.CancelRequest) for each in both[1].heard))


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("tcp://a:1", ("tcp://a:1",)),
        ("tcp://a:1, tcp://b:2,tcp://a:1", ("tcp://a:1", "tcp://b:2")),
        (["tcp://a:1", "tcp://b:2"], ("tcp://a:1", "tcp://b:2")),
    ],
)
def test_addresses_are_a_list_or_a_text_with_commas(
    given: str | list[str], addresses: tuple[str, ...]
) -> None:
    assert gateway_addresses(given) == addresses


def test_no_address_at_all_is_an_error() -> None:
    for given in ([], ",", ["", " "]):
        with pytest.raises(ValueError, match="no gateway's address"):
            Client(given)


def test_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_ADDRESS", f"{NOWHERE},tcp://127.0.0.1:2")
    with Client() as client:
        assert client.address == f"{NOWHERE}, tcp://127.0.0.1:2"
