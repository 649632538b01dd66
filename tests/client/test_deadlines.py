"""An SLO counts from the caller's call: whole paths against gateways that do as the tests say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

import mainspring
from mainspring import AsyncClient, Client
from mainspring.client.requests import InferCall
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import encode
from mainspring.messages.peers import TensorHeader
from tests.client.fakes import fake_gateway
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S

X = np.ones((1, 4), np.float32)
TIMING = clients.Timing(1_000, 1, 1, 1, 1, False, "w")


class Script:
    """A gateway that notes what comes, welcomes, and answers requests while it is `open`."""

    def __init__(self, *, acknowledges: bool = True, answers: bool = True) -> None:
        self.seen: list[clients.FromClient] = []
        self.answers = answers
        self.pause_s = 0.0
        self._welcome = clients.ClientWelcome(PROTOCOL_VERSION, "0", 1 << 20, 100, acknowledges)

    @property
    def requests(self) -> list[clients.InferRequest]:
        return [each for each in self.seen if isinstance(each, clients.InferRequest)]

    def __call__(self, message: clients.FromClient) -> list[bytes]:
        self.seen.append(message)
        if isinstance(message, clients.ClientHello):
            return [encode(self._welcome)]
        if not isinstance(message, clients.InferRequest) or not self.answers:
            return []
        time.sleep(self.pause_s)
        header = TensorHeader("y", "float32", (1,))
        return [encode(clients.InferReply(message.key, (header,), TIMING, time.monotonic_ns())), b"1234"]


def test_what_is_left_is_sent_and_when_it_was_sent() -> None:
    script = Script()
    with fake_gateway(script) as address, Client(address) as client:
        began_ns = time.monotonic_ns()
        result = client.infer("m", {"data": X}, slo_ms=60_000)
        sent = script.requests[0]
        assert sent.sent_ns is not None
        assert sent.slo_ns is not None
        assert sent.slo_ns <= 60_000_000_000 - (sent.sent_ns - began_ns) + result.timing.elapsed_ns
        assert sent.slo_ns < 60_000_000_000
        assert sent.acknowledge, "the first one, to learn what a round trip takes"
    assert result.timing.slo_ns == 60_000_000_000
    assert not result.late


def test_what_waits_in_the_client_is_sent_with_what_is_left_of_it() -> None:
    """A client that may have one request at the gateway: the second one's time runs here."""
    script = Script()
    script.pause_s = 0.05
    with fake_gateway(script) as address, Client(address, max_in_flight=1) as client:
        before_ns = time.monotonic_ns()
        futures = [client.submit("m", {"data": X}, slo_ms=60_000) for _ in range(3)]
        submitting_ns = time.monotonic_ns() - before_ns
        for future in futures:
            future.result(PATIENCE_S)
    left = [each.slo_ns for each in script.requests]
    assert None not in left
    assert left[0] > left[1] > left[2], "each by what it waited"  # type: ignore[operator]
    # The first was sent at the earliest when submitting began, the third at the latest submitted at its end.
    assert 60 * 10**9 - left[2] >= 2 * 50_000_000 - submitting_ns  # type: ignore[operator]


def test_what_has_no_time_left_is_refused_here_before_its_deadline_and_never_sent() -> None:
    script = Script(answers=False)
    with fake_gateway(script) as address, Client(address, max_in_flight=1, guard_s=60) as client:
        held = client.submit("m", {"data": X}, slo_ms=60_000)
        assert isinstance(held, InferCall)
        wait_until(lambda: held.sent)
        began_ns = time.monotonic_ns()
        with pytest.raises(mainspring.DeadlinePassed, match="in this client") as caught:
            client.infer("m", {"data": X}, slo_ms=2_000)
        assert caught.value.reason == "deadline_passed"
        assert isinstance(caught.value, mainspring.DeadlineError)
        assert time.monotonic_ns() - began_ns < 2_000_000_000
        assert len(script.requests) == 1
        held.cancel()


def test_bytes_wait_in_the_client_until_the_gateway_has_read_those_before() -> None:
    script = Script(answers=False)
    with fake_gateway(script) as address, Client(address, max_unread_bytes=40, guard_s=60) as client:
        futures = [client.submit("m", {"data": X}, slo_ms=60_000) for _ in range(5)]
        wait_until(lambda: len(script.requests) == 2)
        time.sleep(0.05)
        assert len(script.requests) == 2, "of 16 bytes each"
        for future in futures:
            future.cancel()


def test_a_request_that_was_given_up_is_cancelled_at_the_gateway() -> None:
    script = Script(answers=False)
    with fake_gateway(script) as address, Client(address, guard_s=0.05) as client:
        with pytest.raises(mainspring.TimedOut, match="did not answer"):
            client.infer("m", {"data": X}, slo_ms=200)
        key = script.requests[0].key
        wait_until(lambda: clients.CancelRequest(key) in script.seen)


def test_a_result_after_its_slo_says_that_it_is_late() -> None:
    script = Script()
    script.pause_s = 0.3
    with fake_gateway(script) as address, Client(address) as client:
        result = client.infer("m", {"data": X}, slo_ms=200)
        assert result.late
        assert result.timing.late
        assert result.timing.left_ns == 1, "whatever the gateway says"
        assert result.timing.elapsed_ms > 200
        assert not client.infer("m", {"data": X}).late, "best effort never is"


def test_the_way_back_is_learnt_from_answers_that_took_long() -> None:
    script = Script()
    with fake_gateway(script) as address, Client(address) as client:
        for _ in range(3):
            client.infer("m", {"data": X}, slo_ms=60_000)
        calm_ns = script.requests[-1].back_ns
        busy, go_on = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            # In the client's own thread, so that nothing is read meanwhile.
            busy.set()
            go_on.wait(PATIENCE_S)

        script.pause_s = 0.1
        client.submit("m", {"data": X}, slo_ms=60_000).add_done_callback(hold)
        second = client.submit("m", {"data": X}, slo_ms=60_000)
        assert busy.wait(PATIENCE_S)
        wait_until(lambda: len(script.requests) == 5)
        time.sleep(0.3)
        script.pause_s = 0.0
        go_on.set()
        second.result(PATIENCE_S)
        client.infer("m", {"data": X}, slo_ms=60_000)
        assert script.requests[-1].back_ns > calm_ns + 20_000_000


def test_an_awaited_request_counts_from_its_call_not_from_its_first_step() -> None:
    script = Script()

    async def ask() -> mainspring.InferResult:
        async with AsyncClient(address) as client:
            called = client.infer("m", {"data": X}, slo_ms=60_000)
            time.sleep(0.2)
            return await called

    with fake_gateway(script) as address:
        result = asyncio.run(ask())
    assert result.timing.elapsed_ns >= 200_000_000
    assert script.requests[0].slo_ns is not None
    assert script.requests[0].slo_ns <= 59_800_000_000


def test_a_thousand_at_once_each_get_one_outcome_and_most_hear_early_that_they_can_not_be_sent() -> None:
    """With a gateway that answers few of them: the rest waits here, and is refused here."""
    script = Script()
    script.pause_s = 0.01

    async def ask() -> list[str]:
        async with AsyncClient(address, max_in_flight=4) as client:

            async def one() -> str:
                try:
                    await client.infer("m", {"data": X}, slo_ms=3_000)
                except mainspring.DeadlineError as error:
                    return type(error).__name__
                return "answered"

            return await asyncio.gather(*(one() for _ in range(1_000)))

    with fake_gateway(script) as address:
        outcomes = asyncio.run(ask())
    counts = Counter(outcomes)
    assert counts.total() == 1_000
    assert counts["answered"] == len(script.requests) >= 8
    assert counts["DeadlineUnreachable"] > counts["DeadlinePassed"] > 0
    assert set(counts) == {"answered", "DeadlinePassed", "DeadlineUnreachable"}
    left = [each.slo_ns for each in script.requests]
    assert all(each is not None and each > 0 for each in left)
