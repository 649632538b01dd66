"""What the worker's tests need: a model, a controller and a gateway that do as they are told."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from queue import Queue
from typing import TypeVar

import msgspec

from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Action, Infer, Load, Open, Prepare, Result
from mainspring.messages.codec import FROM_WORKER, TO_CONTROLLER, encode
from mainspring.messages.model import PAGE_BYTES, ModelSpec, OpenDim, Profile, Symbol, TensorSpec, Term
from mainspring.messages.peers import Input, Output, Welcome, WorkerHello
from mainspring.worker.config import WorkerConfig
from mainspring.worker.server import run
from tests.blocking import Client, Server
from tests.patience import PATIENCE_S

MS = 1_000_000
SECOND = 1_000 * MS

Message = TypeVar("Message")


def spec(
    name: str = "m",
    *,
    infer_ms: float = 1,
    load_ms: float = 1,
    extents: tuple[int, ...] = (1,),
    floats: int = 3,
) -> ModelSpec:
    """A model of some floats in and two out."""
    sizes = (1, 2, 4)
    return ModelSpec(
        name=name,
        weights_hash=f"weights of {name}",
        executable="graph",
        batch_sizes=sizes,
        weights_bytes=sum(extents) * PAGE_BYTES,
        extents=extents,
        inputs=(TensorSpec("x", "float32", (floats,)),),
        outputs=(TensorSpec("y", "float32", (2,)),),
        profiles={"cpu": Profile({size: int(infer_ms * size * MS) for size in sizes}, int(load_ms * MS))},
    )


def load(
    action_id: int, pages: tuple[int, ...] = (0,), model: str = "m", window: tuple[int, int] | None = None
) -> Load:
    """A Load for worker ``w``; without a window it may begin during the next twenty seconds."""
    earliest_ns, latest_ns = window or _soon()
    return Load(action_id, "w", model, pages, earliest_ns, latest_ns, earliest_ns, MS)


def opening(action_id: int, model: str = "m", window: tuple[int, int] | None = None) -> Open:
    """An Open for worker ``w``; without a window it may begin during the next twenty seconds."""
    earliest_ns, latest_ns = window or _soon()
    return Open(action_id, "w", model, earliest_ns, latest_ns, earliest_ns, MS)


def infer(
    action_id: int,
    request_ids: tuple[int, ...] = (1,),
    rows: tuple[int, ...] | None = None,
    *,
    batch_size: int | None = None,
    model: str = "m",
    window: tuple[int, int] | None = None,
    sizes: tuple[int, ...] = (),
    request_sizes: tuple[tuple[int, ...], ...] = (),
) -> Infer:
    """An Infer for worker ``w``; each request has one row unless ``rows`` says otherwise."""
    rows = rows or tuple(1 for _ in request_ids)
    earliest_ns, latest_ns = window or _soon()
    cold = tuple(False for _ in request_ids)
    size = batch_size or sum(rows)
    return Infer(
        *(action_id, "w", model, size, request_ids, rows, cold, earliest_ns, latest_ns, earliest_ns, MS),
        sizes=sizes,
        request_sizes=request_sizes,
    )


def spec_of_lengths(name: str = "m") -> ModelSpec:
    """A model of three floats at each of up to 64 places in, and one more place of two out."""
    length, longer = OpenDim(0, (Term(0),)), OpenDim(0, (Term(0, plus=1),))
    return msgspec.structs.replace(
        spec(name),
        inputs=(TensorSpec("x", "float32", (64, 3), (length,)),),
        outputs=(TensorSpec("y", "float32", (65, 2), (longer,)),),
        symbols=(Symbol("seq", (16, 32, 64), least=2),),
    )


def _soon() -> tuple[int, int]:
    now_ns = time.monotonic_ns()
    return now_ns, now_ns + 20 * SECOND


class Cluster:
    """One worker in a thread, its controller and a gateway, over real sockets."""

    def __init__(self, config: WorkerConfig, *, welcome: bool = True) -> None:
        self.controller = Server(role="controller")
        self.controller_address = self.controller.address
        self._gateways: list[Client] = []
        self.config = msgspec.structs.replace(config, controller=self.controller_address)
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self._addresses: Queue[str] = Queue()
        self._ids = itertools.count(1)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.data_address = self._addresses.get(timeout=PATIENCE_S)
        self.gateway = self.connect_gateway()
        self.worker_id = b""
        self.received: list[object] = []
        if welcome:
            self.hello = self.expect(WorkerHello)
            self.say(Welcome(PROTOCOL_VERSION, 1))

    def next_id(self) -> int:
        """A fresh action id."""
        return next(self._ids)

    def connect_gateway(self) -> Client:
        """Another gateway's connection to the worker."""
        self._gateways.append(Client(self.data_address, role="gateway"))
        return self._gateways[-1]

    def say(self, message: msgspec.Struct | bytes) -> None:
        """The controller sends a message, or raw bytes."""
        data = message if isinstance(message, bytes) else encode(message)
        self.controller.send([self.worker_id, data])

    def do(self, action: Action) -> Result:
        """Send an action and return its result."""
        self.say(action)
        return self.result(action.action_id)

    def result(self, action_id: int) -> Result:
        """Wait for the result of an action."""
        return self.expect(Result, lambda result: result.action_id == action_id)

    def expect(self, kind: type[Message], condition: Callable[[Message], bool] = lambda _: True) -> Message:
        """Wait until the worker has sent such a message to the controller; take it out and return it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            for index, message in enumerate(self.received):
                if isinstance(message, kind) and condition(message):
                    return self.received.pop(index)  # type: ignore[return-value]
            left_ms = max(0, round((deadline_s - time.monotonic()) * 1000))
            assert self.controller.poll(left_ms), f"no {kind.__name__} came: {self.received}"
            self.worker_id, data = self.controller.receive()
            self.received.append(TO_CONTROLLER.decode(data))

    def resident(self, model: ModelSpec, pages: tuple[int, ...] = (0,)) -> None:
        """Prepare and load a model."""
        results = [
            self.do(Prepare(self.next_id(), "w", model)),
            self.do(load(self.next_id(), pages, model.name)),
        ]
        assert [result.status for result in results] == ["ok", "ok"], results

    def push(
        self,
        action_id: int,
        request_id: int,
        *frames: bytes | memoryview,
        withdrawn: bool = False,
        gateway: Client | None = None,
    ) -> None:
        """The gateway sends a request's inputs."""
        header = encode(Input(action_id, request_id, withdrawn))
        client = gateway or self.gateway
        client.send([header, *frames])
        client.flush()

    def output(self, gateway: Client | None = None) -> tuple[Output, Sequence[bytes]]:
        """Wait for one request's outputs."""
        header, *frames = (gateway or self.gateway).receive(PATIENCE_S * 1000)
        message = FROM_WORKER.decode(header)
        assert isinstance(message, Output), f"{message} came in place of outputs"
        return message, frames

    def close(self) -> None:
        """Stop the worker; raise what it raised."""
        self.stop.set()
        self.thread.join(PATIENCE_S)
        alive = self.thread.is_alive()
        for each in (self.controller, *self._gateways):
            each.close()
        assert not alive, "the worker did not stop"
        if self.failures:
            raise self.failures[0]

    def _run(self) -> None:
        try:
            run(self.config, self.stop, self._addresses.put)
        except BaseException as error:
            self.failures.append(error)
