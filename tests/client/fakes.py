"""A gateway of a few lines that does as the tests say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import FROM_CLIENT, encode

WELCOME = clients.ClientWelcome(PROTOCOL_VERSION, "0", 1_000, 10)


@contextmanager
def fake_gateway(
    answer: Callable[[clients.FromClient], list[bytes]], address: str = "tcp://127.0.0.1:*"
) -> Iterator[str]:
    """A ROUTER that answers each message with one of these frames; yields its address."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if socket.poll(10):
                peer, head, *_ = socket.recv_multipart()
                frames = answer(FROM_CLIENT.decode(head))
                if frames:
                    socket.send_multipart([peer, *frames])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield socket.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        stop.set()
        thread.join()
        context.destroy(0)


def mute(message: clients.FromClient) -> list[bytes]:
    return [encode(WELCOME)] if isinstance(message, clients.ClientHello) else []
