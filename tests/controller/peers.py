"""Fake gateways and workers on real sockets, pumped by the test's own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mainspring.controller.config import ControllerConfig
from mainspring.controller.server import Controller
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codec import TO_GATEWAY, TO_WORKER, encode
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.model import PAGE_BYTES, Artifact, ModelSpec, Profile, TensorSpec
from mainspring.messages.peers import (
    AdminReply,
    AdminRequest,
    Arrival,
    GatewayHello,
    Ping,
    Pong,
    Welcome,
    WorkerHello,
)
from mainspring.messages.status import ClusterStatus
from mainspring.scheduler.config import SchedulerConfig
from tests.blocking import Client
from tests.patience import PATIENCE_S

Kind = TypeVar("Kind", bound=msgspec.Struct)
Action = Prepare | Release | Load | Unload | Infer
MS = 1_000_000


def spec(name: str = "m0", weights_hash: str = "h0", infer_ms: float = 1.0) -> ModelSpec:
    """A model of one page."""
    return ModelSpec(
        name=name,
        weights_hash=weights_hash,
        executable="x0",
        batch_sizes=(1, 2, 4),
        weights_bytes=1000,
        extents=(1,),
        inputs=(TensorSpec("data", "float32", (4,)),),
        outputs=(TensorSpec("out", "float32", (2,)),),
        profiles={"cpu": Profile({size: round(infer_ms * MS) for size in (1, 2, 4)}, MS)},
    )


class Peer:
    """A connection that answers pings, keeps every other message, and may have a clock of its own."""

    kind = "peer"

    def __init__(self, address: str, name: str, peer_id: str | None = None, offset_ns: int = 0) -> None:
        self.name = name
        self.offset_ns = offset_ns
        self.answers_pings = True
        self.pings = 0
        self.health: DeviceHealth | None = None
        """What its pongs say of its device."""
        self.received: list[msgspec.Struct] = []
        self.socket = Client(address, (peer_id or f"{self.kind}:{name}").encode(), role=self.kind)

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.offset_ns

    def send(self, message: msgspec.Struct) -> None:
        self.socket.send([encode(message)])

    def decode(self, data: bytes) -> msgspec.Struct:
        raise NotImplementedError

    def on(self, message: msgspec.Struct) -> None:
        """React to a message; each is kept in ``received`` anyway, pings apart."""

    def pump(self) -> None:
        while self.socket.poll():
            message = self.decode(self.socket.receive()[0])
            if isinstance(message, Ping):
                self.pings += 1
                if self.answers_pings:
                    at_ns = self.now_ns()
                    self.send(
                        Pong(message.sequence, message.sent_ns, at_ns, self.now_ns(), health=self.health)
                    )
                continue
            self.received.append(message)
            self.on(message)

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.received if isinstance(message, kind)]

    def last(self, kind: type[Kind]) -> Kind:
        return self.all(kind)[-1]

    def close(self) -> None:
        self.socket.close()


class FakeGateway(Peer):
    kind = "gateway"

    def decode(self, data: bytes) -> msgspec.Struct:
        return TO_GATEWAY.decode(data)

    def hello(self) -> None:
        self.send(GatewayHello(PROTOCOL_VERSION, self.name))

    def arrive(self, counter: int, model: str = "m0", rows: int = 1, left_ms: float | None = 10_000) -> int:
        """Send a request; return its id."""
        request_id = (self.last(Welcome).number << 40) + counter
        self.send(Arrival(request_id, model, rows, None if left_ms is None else round(left_ms * MS)))
        return request_id


class FakeWorker(Peer):
    """Ends every action at once with OK, those of ``holds`` apart."""

    kind = "worker"

    def __init__(self, address: str, name: str, peer_id: str | None = None, offset_ns: int = 0) -> None:
        super().__init__(address, name, peer_id, offset_ns)
        self.holds: tuple[type, ...] = ()
        self.prepared: dict[str, Artifact] = {}
        self.resident: dict[str, Resident] = {}

    def decode(self, data: bytes) -> msgspec.Struct:
        return TO_WORKER.decode(data)

    def hello(self, **changes: object) -> None:
        hello = WorkerHello(
            PROTOCOL_VERSION,
            self.name,
            "cpu",
            8,
            PAGE_BYTES,
            "tcp://127.0.0.1:1",
            self.prepared,
            tuple(self.resident.values()),
            ("memory is not locked",),
        )
        self.send(msgspec.structs.replace(hello, **changes))

    def on(self, message: msgspec.Struct) -> None:
        if isinstance(message, Action) and not isinstance(message, self.holds):
            self.end(message)

    def end(self, action: Action, status: Status = Status.OK) -> None:
        """Report an action's end, and remember what it changed."""
        match action:
            case Prepare(model=model):
                self.prepared[model.name] = model.artifact
            case Load(model=name, pages=pages):
                self.resident[name] = Resident(name, self.prepared[name], pages)
            case Unload(model=name):
                del self.resident[name]
        at_ns = self.now_ns()
        inputs_ns = at_ns if isinstance(action, Infer) else 0
        self.send(Result(action.action_id, self.name, status, at_ns, at_ns + 1000, 1000, inputs_ns=inputs_ns))


class Stage:
    """A controller in a thread, and the fake peers around it."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.controllers: list[tuple[Controller, threading.Thread, threading.Event]] = []

    def start(
        self,
        models: tuple[ModelSpec, ...] = (),
        scheduler: SchedulerConfig | None = None,
        **config: object,
    ) -> Controller:
        """Start a controller; a later one may take the address of one that was stopped."""
        settings = {"address": "tcp://127.0.0.1:*", "drain_timeout_ms": 300.0, **config}
        controller = Controller(
            msgspec.convert(settings, ControllerConfig), scheduler or SchedulerConfig(), models
        )
        stop = threading.Event()
        thread = threading.Thread(target=controller.serve, args=(stop,))
        self.address = controller.address
        self.controllers.append((controller, thread, stop))
        thread.start()
        return controller

    def stop(self) -> None:
        """Stop the newest controller, keeping its peers alive, and check its scheduler's state."""
        controller, thread, stop = self.controllers.pop()
        stop.set()
        self.until(lambda: not thread.is_alive())
        controller.scheduler.validate()

    def gateway(self, name: str = "g0", peer_id: str | None = None) -> FakeGateway:
        """Connect a gateway and wait until it is welcome."""
        gateway = FakeGateway(self.address, name, peer_id)
        self.peers.append(gateway)
        gateway.hello()
        self.until(lambda: bool(gateway.all(Welcome)))
        return gateway

    def worker(self, name: str = "w0", peer_id: str | None = None, offset_ns: int = 0) -> FakeWorker:
        """Connect a worker and say hello; `joined` waits for the scheduler to know it."""
        worker = FakeWorker(self.address, name, peer_id, offset_ns)
        self.peers.append(worker)
        worker.hello()
        return worker

    def cluster(self, *models: str) -> tuple[FakeGateway, FakeWorker]:
        """A gateway and a worker on which these models are prepared."""
        gateway, worker = self.gateway(), self.worker()
        self.until(lambda: set(worker.prepared) == set(models) and self.knows(gateway, "w0", len(models)))
        return gateway, worker

    def knows(self, gateway: FakeGateway, worker: str, prepared: int = 0) -> bool:
        """Whether the scheduler knows this worker with so many prepared models."""
        found = {status.worker: status for status in self.status(gateway).workers}
        return worker in found and found[worker].prepared >= prepared

    def status(self, gateway: FakeGateway) -> ClusterStatus:
        """Ask for the status, fresh."""
        time.sleep(0.06)
        status = self.admin(gateway, status=True).status
        assert status is not None
        return status

    def admin(
        self,
        gateway: FakeGateway,
        add: ModelSpec | None = None,
        remove: str | None = None,
        status: bool = False,
    ) -> AdminReply:
        """Ask as an administrator and return the answer."""
        token = 1 + max((reply.token for reply in gateway.all(AdminReply)), default=0)
        gateway.send(AdminRequest(token, add, remove, status))
        self.until(lambda: any(reply.token == token for reply in gateway.all(AdminReply)))
        return gateway.last(AdminReply)

    def pump(self) -> None:
        """Let every peer take in what has come."""
        for peer in self.peers:
            if not peer.socket.closed:
                peer.pump()

    def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Pump until a condition holds; fail with what every peer has seen if it does not come true."""
        give_up_s = time.monotonic() + patience_s
        while True:
            self.pump()
            if condition():
                return
            if time.monotonic() > give_up_s:
                seen = {f"{peer.kind} {peer.name}": peer.received[-8:] for peer in self.peers}
                raise AssertionError(f"it did not happen within {patience_s} s; last messages: {seen}")
            time.sleep(0.001)

    def pump_for(self, seconds: float) -> None:
        """Pump for a while."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.pump()
            time.sleep(0.001)

    def close(self) -> None:
        while self.controllers:
            self.stop()
        for peer in self.peers:
            peer.close()
