"""A client that is closed in the middle of things, or that its gateway has no room for."""

from __future__ import annotations

import threading

import pytest

import mainspring
from mainspring import Client
from mainspring.client.channel import Channel
from mainspring.client.connection import Connection
from mainspring.messages import clients
from mainspring.messages.codec import encode
from tests.client.fakes import fake_gateway, mute
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S


def test_a_client_that_is_turned_away_knocks_rarely_and_says_why_it_was() -> None:
    full = encode(clients.ClientRefused("too_many_clients", "1 client is busy here, the most it serves"))
    hellos: list[clients.FromClient] = []

    def answer(message: clients.FromClient) -> list[bytes]:
        hellos.append(message)
        return [full]

    with fake_gateway(answer) as address:
        with Client(address, connect_timeout_s=0.3) as client:
            for ask in (client.models, client.status):
                with pytest.raises(
                    mainspring.GatewayUnreachable, match=r"too_many_clients.*1 client is busy"
                ):
                    ask()
        assert 1 <= len(hellos) <= 3, "at once, after 200 ms, and after 400 ms more"
        with Connection(address) as connection:
            with pytest.raises(mainspring.GatewayUnreachable, match="too_many_clients"):
                connection.open(0.1)
            assert not connection.poll(1), "its next hello is not due"


def test_a_client_that_was_turned_away_is_served_once_there_is_room() -> None:
    asked: list[clients.FromClient] = []

    def answer(message: clients.FromClient) -> list[bytes]:
        asked.append(message)
        if isinstance(message, clients.ClientHello) and len(asked) == 1:
            return [encode(clients.ClientRefused("too_many_clients", "no room"))]
        return mute(message) or [encode(clients.ModelList(getattr(message, "key", 0), ()))]

    with fake_gateway(answer) as address, Client(address) as client:
        assert client.models() == ()


def test_closing_beside_a_cancellation_ends_every_other_call() -> None:
    def answer(message: clients.FromClient) -> list[bytes]:
        listed = isinstance(message, clients.ListModels)
        return [encode(clients.ModelList(getattr(message, "key", 0), ()))] if listed else mute(message)

    busy, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        # In the client's own thread.
        busy.set()
        go_on.wait(PATIENCE_S)

    with fake_gateway(answer) as address:
        channel = Channel(address, "", 5)
        given_up, kept = (channel.call(clients.GetStatus(channel.next_key())) for _ in range(2))
        channel.call(clients.ListModels(channel.next_key())).add_done_callback(hold)
        assert busy.wait(PATIENCE_S)
        assert given_up.cancel()
        closer = threading.Thread(target=channel.close)
        closer.start()
        wait_until(lambda: channel._closing)
        go_on.set()
        closer.join()
        with pytest.raises(mainspring.GatewayUnreachable, match="closed before the reply came"):
            kept.result(PATIENCE_S)
