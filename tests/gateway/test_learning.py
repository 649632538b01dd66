"""Feedback that comes to another gateway than the one that answered, and what observers hear of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

import mainspring
from mainspring import Client
from mainspring.console.live import LiveStream
from mainspring.gateway.learning import learning
from mainspring.gateway.server import Addresses
from mainspring.messages.applications import ApplicationReport, ApplicationSpec
from mainspring.messages.clients import Learnt
from mainspring.messages.codec import encode
from mainspring.messages.learning import MOST_TOLD_BYTES, LearningOfGateways
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

APPLICATION = """
name = "sums"
members = ["one", "other"]
output = "sum"
kind = "value"
span = 10.0
slo_ms = 20000
"""
MODELS = [emulated("one", 1_000_000), emulated("other", 1_000_000)]


class Pair(NamedTuple):
    """Two gateways of one controller, each with a client."""

    controller: str
    addresses: Addresses
    """Those of the second one."""
    one: Client
    other: Client


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        controller = stack.enter_context(real_controller(MODELS))
        stack.enter_context(real_worker("worker", controller))
        first = stack.enter_context(serving(controller, name="a"))
        second = stack.enter_context(serving(controller, name="b", http_address="http://127.0.0.1:0"))
        one, other = (stack.enter_context(Client(each.zeromq)) for each in (first, second))
        wait_until(lambda: workers_ready(one, 1, 2), 20)
        one.add_graph(APPLICATION)
        wait_until(lambda: bool(other.graphs()), 20)
        yield Pair(controller, second, one, other)


def answer(client: Client) -> Learnt:
    learnt = client.infer("sums", {"data": X}).timing.learnt
    assert learnt is not None
    return learnt


def test_feedback_is_learnt_from_once_whichever_gateway_it_comes_to(pair: Pair) -> None:
    query_id = answer(pair.one).query_id
    (before,) = pair.one.applications()
    told = pair.other.observe("sums", query_id, rewards=[0.5], rows=[0])
    assert (told.joined, told.unknown) == (1, 0)
    body = {"query_id": query_id, "reward": [0.5, 0.5], "rows": [0, 1]}
    asked = urllib.request.Request(
        f"{pair.addresses.http}/v2/models/sums/observe", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(asked, timeout=20) as found:
        assert json.load(found) == {"joined": 1, "late": 0, "duplicate": 1, "unknown": 0}
    assert pair.one.observe("sums", query_id, rewards=[0.5], rows=[1]).duplicate == 1
    (after,) = pair.one.applications()
    assert (after.joined - before.joined, after.duplicate - before.duplicate) == (2, 2)
    assert pair.other.applications()[0].joined == 0


def test_what_no_gateway_answered_is_unknown_and_what_cannot_be_is_told(pair: Pair) -> None:
    assert pair.other.observe("sums", 12345 << 32, rewards=[0.5]).unknown == 1
    query_id = answer(pair.one).query_id
    with pytest.raises(mainspring.InvalidRequest, match="a reward is from 0 to 1, not 2 to 2"):
        pair.other.observe("sums", query_id, rewards=[2.0])
    with pytest.raises(mainspring.InvalidRequest, match="'one' is not an application"):
        pair.other.observe("one", query_id, rewards=[0.5])


def test_observers_hear_what_each_gateway_learnt(pair: Pair) -> None:
    pair.one.observe("sums", answer(pair.one).query_id, rewards=[1.0])
    pair.other.observe("sums", answer(pair.other).query_id, rewards=[1.0])
    told: list[LearningOfGateways] = []
    stream = LiveStream(pair.controller)
    stream.on_answer = lambda each: told.append(each) if isinstance(each, LearningOfGateways) else None

    def heard() -> bool:
        stream.poll(10_000_000)
        if not told or not {"a", "b"} <= told[-1].gateways.keys():
            return False
        return all(told[-1].gateways[name].applications == client.applications() for name, client in clients)

    clients = [("a", pair.one), ("b", pair.other)]
    wait_until(heard, 20)
    assert told[-1].gateways["b"].applications[0].joined > 0
    stream.close()


def test_a_message_that_would_be_too_long_says_how_many_it_leaves_out() -> None:
    reports = [
        ApplicationReport(ApplicationSpec(name=f"{number}-" + "x" * 900, members=("m",), output="y"), ())
        for number in range(500)
    ]
    message = learning(reports)
    assert len(message.applications) + message.more == len(reports)
    assert message.applications[0] == reports[0]
    assert MOST_TOLD_BYTES - 2_000 < len(encode(message)) < MOST_TOLD_BYTES + 100
    assert learning(reports[:3]) == learning(reports[:3]).__class__(tuple(reports[:3]))
