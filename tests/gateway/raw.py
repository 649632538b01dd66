"""A client that sends what it likes, over a real socket."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import zmq

from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import TO_CLIENT, encode
from mainspring.messages.peers import TensorHeader
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from tests.gateway.fakes import FakeCluster, wait_until
from tests.patience import PATIENCE_S

X = np.arange(4, dtype=np.float32).reshape(1, 4)
HEADER = TensorHeader("data", "float32", (1, 4))
_LIMITS = Limits(1 << 30, 1 << 30, 10_000, 1 << 30)
_FOR_A_WORKER_S = 5.0
"""Longest that the gateway's connection to the worker is waited for: a test may have none."""


class Raw:
    """A DEALER that sends what it likes."""

    def __init__(self, address: str, hello: bool = True, read_ahead: int = 1_000) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, read_ahead)
        self.socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE_S * 1e3))
        self.socket.connect(address)
        if hello:
            self.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
            assert isinstance(self.receive(), clients.ClientWelcome)

    def send(self, message: msgspec.Struct, *frames: bytes) -> None:
        self.socket.send_multipart([encode(message), *frames])

    def receive(self) -> clients.ToClient:
        return TO_CLIENT.decode(self.socket.recv_multipart()[0])

    def infer(
        self, key: int, model: str = "double", slo_ns: int | None = None, traceparent: str = ""
    ) -> None:
        request = clients.InferRequest(key, model, (HEADER,), slo_ns, traceparent=traceparent)
        self.send(request, X.tobytes())

    def ready(self, cluster: FakeCluster) -> None:
        """Wait until the gateway serves all models, and is connected to the worker, if it is told of one."""
        wait_until(lambda: self.served() == set(cluster.specs))
        give_up_s = time.monotonic() + _FOR_A_WORKER_S
        while not cluster.has_gateway_at_worker() and time.monotonic() < give_up_s:
            time.sleep(0.001)

    def served(self) -> set[str]:
        """Return the names of the models that the gateway serves: none before the controller's first word."""
        self.send(clients.ListModels(0))
        reply = self.receive()
        return {model.name for model in reply.models} if isinstance(reply, clients.ModelList) else set()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(0)


def counts(client: Raw) -> dict[str, int]:
    client.send(clients.GetStatus(77))
    reply = client.receive()
    assert isinstance(reply, clients.StatusReply)
    return reply.status.dropped_messages


class RawLocal:
    """A client past ZeroMQ that sends what it likes."""

    def __init__(self, address: str, role: str = Role.CLIENT) -> None:
        self._hub = Hub()
        self.link = Link(self._hub, address.replace("tcp://", "name://"), _LIMITS, shows=Pass(role))
        wait_until(self._settled)

    def send(self, message: clients.FromClient, *frames: bytes) -> None:
        assert self.link.send((encode(message), *frames)) is Delivery.SENT

    def receive(self) -> clients.ToClient:
        found: list[clients.ToClient] = []

        def look() -> bool:
            self._turn()
            message = self.link.receive()
            if message is not None:
                found.append(TO_CLIENT.decode(message[0]))
            return bool(found)

        wait_until(look)
        return found[0]

    def _settled(self) -> bool:
        self._turn()
        return self.link.connected or bool(self.link.failure)

    def _turn(self) -> None:
        self._hub.wait(1_000_000)

    def sent(self) -> bool:
        """Say whether all has been sent; nothing is read."""
        self._turn()
        return not self.link.waits

    def ended(self) -> bool:
        """Say whether the connection has ended, after taking what came."""
        self._turn()
        while self.link.receive() is not None:
            pass
        return self.link.ended > 0

    def __enter__(self) -> RawLocal:
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.close()
