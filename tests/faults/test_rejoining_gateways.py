"""Gateways that lose the controller and join again, again and again, with requests in flight.

The real controller's shell with its scheduler and the real request tables, in virtual time by seed; only
the sockets and the device are missing. Messages between two processes stay in order and take their time.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Accepted, Answer, Arrive, Connection, Push, Refuse, Withdraw
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import Signature
from mainspring.messages import PROTOCOL_VERSION, peers
from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codec import TO_GATEWAY, TO_WORKER, encode
from mainspring.messages.codes import Status
from mainspring.transport.bounds import Delivery
from tests.controller.peers import MS, spec
from tests.controller.test_shell import Bench, Wire
from tests.fuzz import seeded

WORKER = b"worker/w"
SIGNATURE = Signature(spec())
STEPS = 3_000


class Mail(Wire):
    """What the controller sends, kept for each peer until it is delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[bytes, deque[bytes]] = {}

    def send(self, peer: bytes, parts: Sequence[bytes]) -> Delivery:
        self.boxes.setdefault(peer, deque()).append(parts[0])
        return Delivery.SENT


class Gateway:
    """A request table that joins the controller whenever it is not joined."""

    def __init__(self, name: str) -> None:
        self.peer = b"gateway/" + name.encode()
        self.core = GatewayCore(GatewayConfig(), {"m0": SIGNATURE})
        self.joined = False
        self.submitted: list[int] = []
        self.replies: Counter[int] = Counter()
        self.answered = 0


class Town(Bench):
    """One controller, one device, several gateways."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now_ns = 20
        self.wire = self.mail = Mail()
        self.shell._outbox._wire = self.mail
        self.gateways = [Gateway(f"gateway-{number}") for number in range(3)]
        self.inputs: dict[tuple[int, int], Gateway | None] = {}
        self.waiting: list[Infer] = []
        self.numbers: set[int] = set()

    def to_controller(self, peer: bytes, message: msgspec.Struct) -> None:
        self.shell.receive(self.now_ns, peer, [encode(message)])

    # --- gateways ---

    def submit(self, gateway: Gateway) -> None:
        key = len(gateway.submitted)
        gateway.submitted.append(key)
        slo_ns = self.random.choice([None, 30 * MS, 300 * MS, 3_000 * MS])
        accepted = Accepted("m0", 1, slo_ns, (0,), (0,), SIGNATURE)
        gateway.core.submit(self.now_ns, Connection("test", b"c"), key, accepted, [bytes(16)])

    def part(self, gateway: Gateway) -> None:
        """The two lose each other: either side notices first, or the gateway just says hello again."""
        how = self.random.randrange(3)
        if how == 0:
            self.to_controller(gateway.peer, peers.Goodbye("leaving"))
        if how < 2:
            gateway.joined = False
            gateway.core.controller_lost(self.now_ns)
        self.to_controller(
            gateway.peer,
            peers.GatewayHello(PROTOCOL_VERSION, gateway.peer.decode().partition("/")[2]),
        )

    def take(self, gateway: Gateway, data: bytes) -> None:
        match TO_GATEWAY.decode(data):
            case peers.Welcome(number=number):
                gateway.joined = True
                self.numbers.add(number)
                gateway.core.controller_welcomed(self.now_ns, number)
            case peers.Dispatch() as dispatch:
                gateway.core.dispatched(self.now_ns, dispatch)
            case peers.Rejected() as rejected:
                gateway.core.rejected(self.now_ns, rejected)
            case peers.Refused(code="unknown_session"):
                gateway.joined = False
                gateway.core.controller_lost(self.now_ns)
                self.part(gateway)
            case peers.Ping() as ping:
                self.to_controller(gateway.peer, peers.Pong(ping.sequence, ping.sent_ns, 1, 1))

    def drain(self, gateway: Gateway) -> None:
        for send in gateway.core.drain():
            match send:
                case Arrive():
                    left_ns = None if send.deadline_ns is None else send.deadline_ns - self.now_ns
                    arrival = peers.Arrival(send.request_id, send.model, send.rows, left_ns)
                    self.to_controller(gateway.peer, arrival)
                case Withdraw():
                    self.to_controller(gateway.peer, peers.Cancel(send.request_id))
                case Push(message=message):
                    key = (message.action_id, message.request_id)
                    self.inputs[key] = None if message.withdrawn else gateway
                case Answer() | Refuse():
                    gateway.replies[send.key] += 1
                    gateway.answered += isinstance(send, Answer)
        gateway.core.validate()

    # --- the device ---

    def work(self, data: bytes) -> None:
        match TO_WORKER.decode(data):
            case Infer() as infer:
                self.waiting.append(infer)
            case Prepare() | Release() | Load() | Unload() as action:
                self.end(action.action_id, Status.OK)
            case peers.Ping() as ping:
                self.to_controller(WORKER, peers.Pong(ping.sequence, ping.sent_ns, self.now_ns, self.now_ns))

    def run_waiting(self) -> None:
        """Run what has its inputs; end what has waited in vain."""
        for infer in list(self.waiting):
            keys = [(infer.action_id, request_id) for request_id in infer.request_ids]
            if all(key in self.inputs for key in keys):
                for key in keys:
                    gateway = self.inputs[key]
                    if gateway is not None:
                        output = peers.Output(infer.action_id, key[1], MS)
                        gateway.core.outputs(self.now_ns, output, (bytes(8),))
                self.end(infer.action_id, Status.OK)
            elif self.now_ns > infer.latest_ns:
                self.end(infer.action_id, Status.INPUT_MISSING)
            else:
                continue
            self.waiting.remove(infer)

    def end(self, action_id: int, status: Status) -> None:
        self.to_controller(WORKER, Result(action_id, "w0", status, self.now_ns, self.now_ns + 1, 1))

    # --- time ---

    def step(self, deliveries: int) -> None:
        """Deliver some of what is on its way, and let a little time pass."""
        self.now_ns += self.random.randrange(2 * MS)
        for _ in range(deliveries):
            full = sorted(to for to, box in self.mail.boxes.items() if box)
            if not full:
                break
            peer = self.random.choice(full)
            data = self.mail.boxes[peer].popleft()
            gateway = next((each for each in self.gateways if each.peer == peer), None)
            if gateway is not None:
                self.take(gateway, data)
            elif peer == WORKER:
                self.work(data)
        self.run_waiting()
        for gateway in self.gateways:
            gateway.core.tick(self.now_ns)
            self.drain(gateway)
        if self.now_ns >= self.shell.peers.next_beat_ns:
            self.shell.peers.beat(self.now_ns)
        self.schedule(self.now_ns)


@seeded(4)
def test_every_request_has_one_reply_however_often_gateways_leave_and_come_back(seed: int) -> None:
    town = Town(seed)
    for gateway in town.gateways:
        town.part(gateway)
    for number in range(STEPS):
        if town.random.random() < 0.3:
            town.submit(town.random.choice(town.gateways))
        if town.random.random() < 0.05:
            town.part(town.random.choice(town.gateways))
        town.step(town.random.randrange(6))
        if number % 20 == 0:
            town.scheduler.validate()
    for _ in range(6_000):
        town.step(20)
    town.scheduler.validate()
    for gateway in town.gateways:
        assert gateway.core.in_flight == 0
        missing = [key for key in gateway.submitted if gateway.replies[key] != 1]
        assert not missing, f"seed {seed}: {missing[:5]}, {gateway.replies.most_common(3)}"
        assert gateway.answered > 0.3 * len(gateway.submitted), "it should serve meanwhile"
    assert len(town.numbers) > 50, "gateways should have joined many times"
    assert town.scheduler.status().requests_queued == 0
    assert not {"internal_error", "scheduler_error"} & town.dropped.snapshot().keys()
