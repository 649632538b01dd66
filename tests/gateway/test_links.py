"""What waits for a worker that does not take it is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from mainspring.gateway.backlog import LARGE_BYTES, Backlog
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.links import WorkerLinks
from mainspring.messages.peers import Input
from mainspring.transport.hub import Hub
from tests.gateway.fakes import wait_until

UNREACHABLE = "tcp://127.0.0.1:9"


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@pytest.mark.parametrize(("size", "at_most"), [(1 << 19, 4), (1 << 15, 48)])
def test_inputs_for_a_worker_that_cannot_be_reached_are_bounded_in_bytes(
    hub: Hub, size: int, at_most: int
) -> None:
    links = WorkerLinks(hub, GatewayConfig(input_backlog_bytes=1 << 20), lambda _: None)
    links.connect("w", UNREACHABLE)
    sent = [links.send("w", Input(1, 1), [zmq.Frame(bytes(size))]) for _ in range(4 * at_most)]
    assert at_most // 2 <= sum(sent) <= at_most
    assert not any(sent[at_most:])
    links.disconnect("w")
    links.connect("w", UNREACHABLE)
    assert links.send("w", Input(1, 1), [zmq.Frame(bytes(size))]), "with the link goes what waited for it"


def test_small_messages_count_too_though_few_are_tracked() -> None:
    backlog = Backlog()
    quarter = [bytes(LARGE_BYTES // 4)]
    sent = [backlog.admit(b"", quarter, 0) for _ in range(4)]
    assert [parts and len(parts[0]) for parts in sent] == [1, 1, 1, 0]
    assert backlog.waiting_bytes() == LARGE_BYTES
    assert backlog.admit(b"", quarter * 4, 0) is None
    assert backlog.waiting_bytes() == LARGE_BYTES, "what was not sent does not count"
    sent.clear()
    wait_until(lambda: backlog.waiting_bytes() == 0)
    assert backlog.admit(b"", quarter * 4, 0) is not None


def test_the_parts_of_a_tracked_message_are_those_of_the_message() -> None:
    large = bytes(LARGE_BYTES)
    parts = Backlog().admit(b"head", [zmq.Frame(large), b"tail"], 0)
    assert parts is not None
    assert [bytes(part) for part in (*parts[0], *parts[1])] == [b"head", large, b"tail"]
