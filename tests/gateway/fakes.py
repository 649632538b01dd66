"""A controller and a worker on real sockets that do as the tests say, and a gateway between them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.server import Addresses
from mainspring.messages import PROTOCOL_VERSION, peers
from mainspring.messages.codec import FROM_GATEWAY, TO_CONTROLLER, encode
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus, ModelStatus
from tests.blocking import Server
from tests.patience import PATIENCE_S

WORKER = "fake"
NUMBER = 3


def make_spec(name: str, columns: int = 4) -> ModelSpec:
    """Return a model that takes ``data`` and gives it ``twice`` and its rows' ``sum``."""
    return ModelSpec(
        name=name,
        weights_hash="0" * 64,
        executable="1" * 64,
        batch_sizes=(1, 2, 4, 8),
        weights_bytes=1,
        extents=(1,),
        inputs=(TensorSpec("data", "float32", (columns,)),),
        outputs=(TensorSpec("twice", "float32", (columns,)), TensorSpec("sum", "float32", ())),
        profiles={},
    )


MODELS = ("double", "hold", "reject", "mute")
"""What the fake cluster does with a request: answers it, nothing at all, rejects it, or dispatches it to a
worker that never answers."""


class FakeCluster:
    """One thread with the controller's socket and the worker's; ``do`` runs something on it."""

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        *,
        number: int = NUMBER,
        models: tuple[str, ...] = (*MODELS, "wide"),
        worker: str = WORKER,
    ) -> None:
        """``number`` is what a gateway is welcomed with; ``worker`` is the worker's name."""
        self.specs = {name: make_spec(name, 1 << 20 if name == "wide" else 4) for name in models}
        self.number, self.worker_name = number, worker
        self.shard_map: ShardMap | None = None
        self.told_maps: list[ShardMap] = []
        self.hellos: list[peers.GatewayHello] = []
        self.arrivals: list[peers.Arrival] = []
        self.cancels: list[int] = []
        self.inputs: list[peers.Input] = []
        self.goodbyes = 0
        self.silent = False
        self.forget = False
        self.refuse_code = ""
        self._gateway = b""
        self._next_action = 0
        self._columns: dict[int, str] = {}
        self._todo: queue.Queue[Callable[[], object]] = queue.Queue()
        self._stop = threading.Event()
        self.controller = Server(address, role="controller")
        self.address = self.controller.address
        self.worker = Server(role="worker", name=worker.encode())
        self.data_address = self.worker.address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the cluster's thread and wait for it; raise what it raises."""
        ended: Future[object] = Future()

        def run() -> None:
            try:
                ended.set_result(action())
            except Exception as error:
                ended.set_exception(error)

        self._todo.put(run)
        ended.result(PATIENCE_S)

    def tell(self, message: msgspec.Struct) -> None:
        """Send the gateway a message from the controller."""
        self.do(lambda: self._send(message))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.controller.close()
        self.worker.close()

    def _run(self) -> None:
        pinged = 0.0
        while not self._stop.is_set():
            for side, take in ((self.controller, self._from_gateway), (self.worker, self._take_input)):
                for number in range(100):
                    if not side.poll(0 if number else 1):
                        break
                    take(side.receive())
            while not self._todo.empty():
                self._todo.get()()
            if time.monotonic() - pinged > 0.1 and not self.silent:
                pinged = time.monotonic()
                self._send(peers.Ping(1, 2))

    def _send(self, message: msgspec.Struct) -> None:
        if self._gateway:
            self.controller.send([self._gateway, encode(message)])

    def _from_gateway(self, parts: list[Any]) -> None:
        message = TO_CONTROLLER.decode(parts[1])
        if self.silent:
            return
        if self.forget and not isinstance(message, peers.GatewayHello):
            self.controller.send([parts[0], encode(peers.Refused("unknown_session", "who?"))])
            return
        match message:
            case peers.GatewayHello():
                self.forget = False
                self.hellos.append(message)
                self._gateway = parts[0]
                if self.refuse_code:
                    self._send(peers.Refused(self.refuse_code, "not this one"))
                    return
                self._send(peers.Welcome(PROTOCOL_VERSION, self.number))
                if self.shard_map is not None:
                    self._send(self.shard_map)
                self._send(peers.WorkerUp(self.worker_name, self.data_address))
                for spec in self.specs.values():
                    self._send(peers.ModelUp(spec))
                self._send(peers.Ping(1, 2))
            case ShardMap():
                self.told_maps.append(message)
            case peers.Arrival():
                self.arrivals.append(message)
                self._arrived(message)
            case peers.Cancel():
                self.cancels.append(message.request_id)
            case peers.AdminRequest():
                self._admin(message)
            case peers.Goodbye():
                self.goodbyes += 1

    def _arrived(self, message: peers.Arrival) -> None:
        if message.model == "reject":
            self._send(
                peers.Rejected(message.request_id, Reason.DEADLINE_UNREACHABLE, "too soon", 70_000_000)
            )
        elif message.model != "hold":
            self.dispatch(message.request_id, message.model)

    def has_gateway_at_worker(self) -> bool:
        """Say whether a gateway is connected to the worker."""
        return bool(self.worker.listener._peers)

    def dispatch(self, request_id: int, model: str = "double") -> None:
        """Dispatch a request to the worker; on the cluster's thread."""
        self._next_action += 1
        self._columns[request_id] = model
        self._send(peers.Dispatch(self._next_action, self.worker_name, (request_id,), (True,), 2))

    def _admin(self, message: peers.AdminRequest) -> None:
        if message.status:
            models = tuple([ModelStatus(name, 1, (self.worker_name,), (), 0) for name in self.specs])
            status = ClusterStatus("clockwork", (), models, 0, {"odd": 1})
            self._send(peers.AdminReply(message.token, status=status))
        elif message.metrics:
            metrics = ClusterMetrics((1,), (1,), (1,), (), (), 9, 4, (1,))
            self._send(peers.AdminReply(message.token, metrics=metrics))
        elif message.add is not None and message.add.name in self.specs:
            self._send(peers.AdminReply(message.token, Reason.MODEL_EXISTS, "there is one"))
        elif message.add is not None:
            self.specs[message.add.name] = message.add
            self._send(peers.ModelUp(message.add))
            self._send(peers.AdminReply(message.token))
        elif message.remove is not None:
            self.specs.pop(message.remove, None)
            self._send(peers.ModelDown(message.remove))
            self._send(peers.AdminReply(message.token))

    def _take_input(self, parts: list[Any]) -> None:
        message = FROM_GATEWAY.decode(parts[1])
        if not isinstance(message, peers.Input):
            # It takes no descriptors, and answers no offer: as a worker of another host.
            return
        self.inputs.append(message)
        model = self._columns.get(message.request_id, "mute")
        if message.withdrawn or model == "mute":
            return
        x = np.frombuffer(parts[2], np.float32).reshape(-1, self.specs[model].inputs[0].shape[0])
        outputs = [(x * 2).tobytes(), x.sum(axis=1, dtype=np.float32).tobytes()]
        head = encode(peers.Output(message.action_id, message.request_id, 1_000))
        self.worker.send([parts[0], head, *outputs])


@contextmanager
def fake_cluster(**options: Any) -> Iterator[FakeCluster]:
    cluster = FakeCluster(**options)
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def gateway(controller_address: str, **options: Any) -> Iterator[str]:
    """Run a gateway in a thread; yield its address for ZeroMQ's clients."""
    with serving(controller_address, **options) as addresses:
        yield addresses.zeromq


@contextmanager
def serving(controller_address: str, **options: Any) -> Iterator[Addresses]:
    """Run a gateway in a thread; yield all of its addresses."""
    # Most tests are about clients over ZeroMQ, which those of this process would not use by themselves.
    given: dict[str, Any] = {"local_clients": False, "keyless_loopback": True, "drain_timeout_ms": 200.0}
    # No controller is lost unless a test wants it, so none gets a request twice or never: where the machine
    # stands still, the pings of its thread are late.
    given |= {"controller_timeout_ms": 1_000.0 * PATIENCE_S, **options}
    config = GatewayConfig(controller_address=controller_address, **{"address": "tcp://127.0.0.1:*", **given})
    stop = threading.Event()
    ready: queue.Queue[Addresses] = queue.Queue()
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            server.run(config, stop, ready.put)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    wait_until(lambda: failed or not ready.empty())
    assert not failed, failed
    try:
        yield ready.get()
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert not failed, failed


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; fail with it if it never does."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        time.sleep(0.005)
