"""What waits for a worker that does not take it is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.peer_connections import WorkerLinks
from mainspring.messages.peers import Input
from mainspring.transport.hub import Hub

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
    sent = [links.send("w", Input(1, 1), [bytes(size)]) for _ in range(4 * at_most)]
    assert at_most // 2 <= sum(sent) <= at_most
    assert not any(sent[at_most:])
    links.disconnect("w")
    links.connect("w", UNREACHABLE)
    assert links.send("w", Input(1, 1), [bytes(size)]), "with the link goes what waited for it"
