"""Garbage on every socket and to every peer; afterwards all still serve and their counters add up.

``make garbage`` runs the same with at least 100,000 messages.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import zmq

from mainspring import Client, MainspringError
from mainspring.client.connection import Connection
from mainspring.client.errors import GatewayUnreachable
from mainspring.messages import clients, peers
from mainspring.messages.actions import Infer
from mainspring.messages.codec import FROM_CLIENT, BadMessage, encode
from mainspring.messages.codes import Status
from mainspring.transport.bounds import Limits
from mainspring.transport.channel import head
from tests.blocking import Client as ClientSide
from tests.blocking import Server as ServerSide
from tests.controller.peers import FakeGateway, Peer, Stage
from tests.controller.peers import spec as page_spec
from tests.faults import garbage
from tests.gateway.fakes import MODELS, NUMBER, FakeCluster, fake_cluster, gateway, wait_until
from tests.gateway.raw import Raw, counts
from tests.patience import PATIENCE_S
from tests.transport.raw import admitted, by_tcp, connecting
from tests.worker.peers import Cluster, infer, spec

X = np.ones((1, 4), np.float32)
ROW = bytes(4 * 32768)


def drain(socket: zmq.Socket[bytes]) -> None:
    """Throw away what has come."""
    with contextlib.suppress(zmq.Again):
        while True:
            socket.recv_multipart(zmq.NOBLOCK)


def drain_all(conversation: ServerSide | ClientSide) -> None:
    """Throw away what has come to one of our own sockets."""
    while conversation.poll():
        conversation.receive()


def check_gateway(address: str) -> None:
    """A new client is served, and every request that was ever submitted is accounted for."""
    with Raw(address) as probe:
        # What garbage had the controller add need not make sense to the gateway.
        wait_until(lambda: probe.served() >= {*MODELS, "wide"})
        for key in range(20):
            probe.infer(key)
            assert isinstance(probe.receive(), clients.InferReply)

        def settled() -> bool:
            seen = counts(probe)
            ended = seen.get("answered", 0) + seen.get("refused", 0) + seen.get("abandoned", 0)
            return seen["submitted"] == ended

        wait_until(settled)


def test_clients_to_the_gateway() -> None:
    limits = {"best_effort_timeout_ms": 500.0, "max_slo_ms": 1_000.0}
    with fake_cluster() as cluster, gateway(cluster.address, **limits) as address:
        with Raw(address) as known, Raw(address, hello=False) as stranger:
            known.ready(cluster)

            def send(batch: list[list[bytes]]) -> None:
                for number, parts in enumerate(batch):
                    (known, stranger)[number % 5 == 0].socket.send_multipart(parts)
                drain(known.socket)
                drain(stranger.socket)

            garbage.storm(garbage.FROM_CLIENT, send)
        check_gateway(address)


def test_a_false_controller_to_the_gateway() -> None:
    with fake_cluster() as cluster, gateway(cluster.address, best_effort_timeout_ms=500.0) as address:
        with Client(address) as busy:
            wait_until(lambda: len(busy.models()) == len(cluster.specs))

            def send(batch: list[list[bytes]]) -> None:
                held = busy.submit("hold", {"data": X}, slo_ms=50)
                cluster.do(lambda: [cluster.controller.send([cluster._gateway, *parts]) for parts in batch])
                with contextlib.suppress(MainspringError):
                    held.result(PATIENCE_S)

            garbage.storm(garbage.TO_GATEWAY, send)
        restore(cluster)
        check_gateway(address)


def restore(cluster: FakeCluster) -> None:
    """Undo what valid messages among the garbage have done: make the gateway join anew."""
    for name in [name for name in cluster.specs if name == "fuzzed"]:
        del cluster.specs[name]
    before = len(cluster.hellos)
    cluster.tell(peers.Refused("unknown_session", "who?"))
    wait_until(lambda: len(cluster.hellos) > before)
    cluster.tell(peers.ModelDown("fuzzed"))
    cluster.tell(peers.Ping(1, 2))


def test_a_false_worker_to_the_gateway() -> None:
    with fake_cluster() as cluster, gateway(cluster.address, best_effort_timeout_ms=500.0) as address:
        with Client(address) as busy:
            wait_until(lambda: len(busy.models()) == len(cluster.specs))
            peer: list[bytes] = []
            take = cluster._take_input
            cluster._take_input = lambda parts: (peer.append(parts[0]), take(parts))  # type: ignore[assignment, func-returns-value, method-assign]
            while not peer:
                busy.infer("double", {"data": X})

            def send(batch: list[list[bytes]]) -> None:
                mute = busy.submit("mute", {"data": X}, slo_ms=50)
                cluster.do(lambda: [cluster.worker.send([peer[0], *parts]) for parts in batch])
                with contextlib.suppress(MainspringError):
                    mute.result(PATIENCE_S)

            garbage.storm((*garbage.OUTPUTS, peers.Output(1, NUMBER << 40, 1)), send)
        check_gateway(address)


def make_tolerant(peer: Peer) -> None:
    """Have a fake peer bear what it brings upon itself by saying that it is another."""
    decode, react = peer.decode, peer.on

    def decode_any(data: bytes) -> msgspec.Struct:
        try:
            return decode(data)
        except BadMessage:
            return peers.Goodbye("not for me")

    def react_if_possible(message: msgspec.Struct) -> None:
        with contextlib.suppress(KeyError):
            react(message)

    peer.decode = decode_any  # type: ignore[method-assign]
    peer.on = react_if_possible  # type: ignore[method-assign]


def test_peers_to_the_controller(stage: Stage) -> None:
    controller = stage.start((page_spec(),))
    asks, worker = stage.cluster("m0")
    liar = stage.gateway("liar")
    stranger = FakeGateway(stage.address, "stranger")
    stage.peers.append(stranger)
    for peer in (worker, liar, stranger):
        make_tolerant(peer)

    def send(batch: list[list[bytes]]) -> None:
        for number, parts in enumerate(batch):
            (liar, worker, stranger)[number % 3].socket.send(parts)
        asks.arrive(next(counter))
        stage.pump()
        for peer in (liar, stranger, worker):
            peer.received.clear()

    counter = iter(range(1_000, 1 << 30))
    garbage.storm(garbage.TO_CONTROLLER, send)
    # A worker that lied may have been dropped, or have lost its name: an honest one takes its place.
    worker.socket.close()
    stage.worker("w1")
    fresh = stage.gateway("g1")
    stage.until(lambda: stage.knows(fresh, "w1", 1))
    request_id = fresh.arrive(1, left_ms=None)
    honest = stage.peers[-2]
    stage.until(lambda: any(request_id in each.request_ids for each in honest.all(Infer)))
    seen = stage.status(fresh).dropped_messages
    assert not {"internal_error", "scheduler_error"} & seen.keys(), seen
    assert seen["bad_message"] > 0
    controller.scheduler.validate()


def check_worker(cluster: Cluster) -> None:
    """It answers, all of its IO memory is free, and each action has its one result."""
    model = spec("probe", floats=32768)
    cluster.resident(model, (7,))
    actions = [infer(cluster.next_id(), model="probe") for _ in range(7)]
    for action in actions:
        cluster.say(action)
        cluster.push(action.action_id, 1, ROW)
    assert [cluster.result(action.action_id).status for action in actions] == [Status.OK] * 7


def skip_ids(cluster: Cluster) -> None:
    """Leave the ids that the garbage may have used."""
    while cluster.next_id() < 1_000:
        pass


def test_gateways_to_the_worker(start: Callable[..., Cluster]) -> None:
    cluster = start(early_inputs=100)
    cluster.resident(spec("fuzzed"), (0,))
    skip_ids(cluster)
    other = cluster.connect_gateway()

    def send(batch: list[list[bytes]]) -> None:
        action = infer(cluster.next_id(), (1, 2), model="fuzzed")
        cluster.say(action)
        for number, parts in enumerate(batch):
            (cluster.gateway, other)[number % 2].send(parts)
        cluster.push(action.action_id, 1, bytes(12))
        cluster.push(action.action_id, 2, bytes(12))
        assert cluster.result(action.action_id).status is Status.OK
        drain_all(cluster.gateway)

    garbage.storm(garbage.INPUTS, send)
    check_worker(cluster)


def test_a_false_controller_to_the_worker(start: Callable[..., Cluster]) -> None:
    cluster = start()
    skip_ids(cluster)

    def send(batch: list[list[bytes]]) -> None:
        for parts in batch:
            cluster.controller.send([cluster.worker_id, *parts])
        drain_all(cluster.controller)
        cluster.push(5, 1, bytes(16))

    garbage.storm(garbage.TO_WORKER, send)
    cluster.say(peers.Refused("unknown_session", "begin anew"))
    drain_all(cluster.controller)
    cluster.received.clear()
    cluster.expect(peers.WorkerHello)
    cluster.say(peers.Welcome(1, 2))
    check_worker(cluster)


def test_raw_bytes_to_a_listener() -> None:
    """Whole connections of garbage, in pieces; one that speaks properly is served beside them."""
    server = ServerSide(limits=Limits(1 << 16, 1 << 20, 1_000))
    honest = ClientSide(server.address, b"honest")
    while not honest.link.connected:
        server.poll(1)
        honest.poll(1)
    ended: list[str] = []
    server.listener.on_violation = ended.append
    numbers = iter(range(1 << 30))

    def send(batch: list[list[bytes]]) -> None:
        for index, parts in enumerate(batch):
            framed = [head([len(part) for part in parts]), *parts]
            opening = connecting("tool", b"raw").opening
            stream = b"".join([opening if index % 4 == 1 else b"", *(framed if index % 3 else parts)])
            bent = garbage.flipped(stream or b"\0", next(numbers))
            known = index % 4 > 1
            connection = (
                admitted(server.address, "tool", pump=lambda: drain_all(server))
                if known
                else by_tcp(server.address)
            )
            with connection as raw, contextlib.suppress(OSError):
                for start in range(0, len(bent), 1 + index):
                    raw.send(bent[start : start + 1 + index])
                    server.poll()
                    drain_all(server)
        honest.send([b"hello", b"%d" % next(numbers)])
        while (received := server.receive())[0] != b"tool/honest":
            pass
        server.send(received)
        assert honest.receive() == received[1:]
        drain_all(server)

    try:
        garbage.storm(garbage.TO_CONTROLLER, send)
        assert ended
        assert len(server.listener._channels) == 1
    finally:
        server.close()
        honest.close()


@contextlib.contextmanager
def raving_gateway(raves: Callable[[], list[list[bytes]]]) -> Iterator[str]:
    """A gateway that welcomes, and answers everything else with what ``raves`` returns."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind("tcp://127.0.0.1:*")
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if not router.poll(10):
                continue
            peer, first, *_ = router.recv_multipart()
            if isinstance(FROM_CLIENT.decode(first), clients.ClientHello):
                router.send_multipart([peer, encode(garbage.TO_CLIENT[0])])
                continue
            for parts in raves():
                router.send_multipart([peer, *parts])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield router.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        stop.set()
        thread.join()
        context.destroy(0)


def reopen(connection: Connection) -> None:
    """Greet again, also after a welcome of another version or of no room, which a client rightly believes."""
    for _ in range(100):
        connection.refusal = None
        if connection.welcome is not None and connection.welcome.max_message_bytes < 1_000:
            connection.welcome = None
        if connection.welcome is None:
            connection._hello()
        with contextlib.suppress(GatewayUnreachable):
            connection.open(10)
            return
    raise AssertionError("it is never welcome again")


def test_a_false_gateway_to_the_client() -> None:
    batches: list[list[list[bytes]]] = []
    with (
        raving_gateway(lambda: batches.pop() if batches else []) as address,
        Client(address, guard_s=5) as client,
        Connection(address, name="fuzz") as low,
    ):
        low.open(10)
        keys = iter(range(1 << 30))

        def send(batch: list[list[bytes]]) -> None:
            last = next(keys) + 10
            batches.append([*batch, [encode(clients.Done(last))]])
            reopen(low)
            low.send(clients.ListModels(last))
            seen = False
            while not seen and low.poll(5_000):
                while (received := low.receive()) is not None:
                    seen = seen or received[0] == clients.Done(last)
            assert seen

        garbage.storm(garbage.TO_CLIENT, send)
        batches.clear()
        batches.append([*[[bytes([each])] for each in range(256)], [encode(clients.Done(1))]])
        assert client.submit("m", {"data": X}, slo_ms=1_000).exception(20) is None
