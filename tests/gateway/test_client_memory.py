"""Inputs in memory of a client's own: what the gateway reads there, what it refuses, and what stays."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mainspring import Client
from mainspring.cli.launcher.addresses import free_ports
from mainspring.client.result import InferResult
from mainspring.gateway.client_memory import BadPlace, ClientMemories
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.memory import Lendings
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.clients import InferRequest, MemoryTaken, OfferMemory, Stretch
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from mainspring.transport.bounds import Delivery
from mainspring.transport.shared_memory import OwnMemory
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, wait_until
from tests.gateway.raw import Raw, RawLocal
from tests.patience import PATIENCE_S

COLUMNS = 1 << 20
WIDE = TensorHeader("data", "float32", (1, COLUMNS))
SIZE = 4 * COLUMNS
HOLD_BYTES = 64 << 20
MAPPED = "/memfd:mainspring-client"


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def mappings() -> int:
    """Return how often this process, which the gateway is a thread of, maps memory of clients."""
    return Path("/proc/self/maps").read_text().count(MAPPED)


def wide(seed: int, rows: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).random((rows, COLUMNS), np.float32)


def ready(client: Client) -> None:
    """Have the client's memory offered and taken."""
    wait_until(lambda: len(client.models()) >= 5)
    wait_until(lambda: client.infer("wide", {"data": wide(1)}) and client.shares_memory)


def spied(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[InferRequest]:
    """Return a list of the requests that name places, as the gateway takes them."""
    found: list[InferRequest] = []
    frames = ClientMemories.frames

    def note(self: ClientMemories, peer: bytes, request: InferRequest, parts: Any) -> list[Any]:
        found.append(request)
        return frames(self, peer, request, parts)

    monkeypatch.setattr(ClientMemories, "frames", note)
    return found


@pytest.mark.parametrize("allocated", [True, False], ids=["allocated", "copied"])
def test_large_inputs_are_read_where_they_lie(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, allocated: bool
) -> None:
    named = spied(cluster, monkeypatch)
    with gateway(cluster.address, local_clients=True) as address, Client(address) as client:
        ready(client)
        named.clear()
        given = client.allocate((3, COLUMNS)) if allocated else wide(2, 3)
        given[:] = wide(3, 3)
        answer = client.infer("wide", {"data": given})
        np.testing.assert_array_equal(answer["twice"], given * 2)
        # A part of an array is in the memory too.
        answer = client.infer("wide", {"data": given[1:2]})
        np.testing.assert_array_equal(answer["twice"], given[1:2] * 2)
        (whole,), (part,) = (each.places for each in named)
        assert whole is not None
        assert part is not None
        assert (whole.size, part.size) == (3 * SIZE, SIZE)
        if allocated:
            assert part.offset == whole.offset + SIZE
        # Small ones are sent.
        client.infer("double", {"data": np.ones((1, 4), np.float32)})
        assert len(named) == 2


def test_a_place_is_free_again_once_the_reply_came(cluster: FakeCluster) -> None:
    """Of memory for two inputs, many requests go through it, and what has no room is sent."""
    with (
        gateway(cluster.address, local_clients=True) as address,
        Client(address, memory_bytes=2 * SIZE + (1 << 20)) as client,
    ):
        ready(client)
        for seed in range(6):
            given = wide(seed)
            np.testing.assert_array_equal(client.infer("wide", {"data": given})["twice"], given * 2)
        futures: list[tuple[npt.NDArray[np.float32], Future[InferResult]]] = []
        for seed in range(6):
            given = wide(seed)
            futures.append((given, client.submit("wide", {"data": given})))
        for given, future in futures:
            np.testing.assert_array_equal(future.result(PATIENCE_S)["twice"], given * 2)
        del futures, future
        # All of it is free: the largest array that fits is in the memory.
        wait_until(lambda: client._links.get().memory.find(client.allocate((2, COLUMNS)).data) is not None)


def test_an_allocated_array_is_an_ordinary_one_where_nothing_can_be_shared(cluster: FakeCluster) -> None:
    with gateway(cluster.address, local_clients=False) as address, Client(address) as client:
        given = client.allocate((1, COLUMNS), "float32")
        given[:] = wide(4)
        wait_until(lambda: len(client.models()) >= 5)
        np.testing.assert_array_equal(client.infer("wide", {"data": given})["twice"], given * 2)
        assert not client.shares_memory
    with (
        gateway(cluster.address, local_clients=True, client_memory_bytes=0) as address,
        Client(address) as client,
    ):
        wait_until(lambda: len(client.models()) >= 5)
        for seed in range(3):
            given = client.allocate((1, COLUMNS))
            given[:] = wide(seed)
            np.testing.assert_array_equal(client.infer("wide", {"data": given})["twice"], given * 2)
        assert not client.shares_memory
    with Client("tcp://127.0.0.1:9", memory_bytes=1 << 20) as client:
        assert client.allocate((2, 3), np.int64).shape == (2, 3)
        assert client.allocate(0).size == 0
        assert client.allocate((COLUMNS,)).nbytes == SIZE, "more than there is room for"
    with pytest.raises(ValueError, match="memory_bytes is -1"):
        Client("tcp://127.0.0.1:9", memory_bytes=-1)


def test_a_gateway_that_starts_again_is_offered_the_memory_again(cluster: FakeCluster) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with Client(address, connect_timeout_s=PATIENCE_S) as client:
        given = client.allocate((1, COLUMNS))
        given[:] = wide(5)
        for _ in range(2):
            with gateway(cluster.address, address=address, local_clients=True):
                ready(client)
                np.testing.assert_array_equal(client.infer("wide", {"data": given})["twice"], given * 2)
            wait_until(lambda: not client.shares_memory)


def test_nothing_is_left_of_a_client_that_goes(cluster: FakeCluster) -> None:
    """Neither a mapping nor a descriptor, though one of its requests had no answer yet."""
    with gateway(cluster.address, local_clients=True) as address:
        with Client(address) as other:
            ready(other)
        gc.collect()
        wait_until(lambda: not mappings())
        before = len(os.listdir("/proc/self/fd"))
        client = Client(address)
        ready(client)
        assert mappings() == 2, "the client's own, and the gateway's"
        arrived = len(cluster.arrivals)
        lost = client.submit("mute", {"data": np.ones((1, 4), np.float32)})
        wait_until(lambda: len(cluster.arrivals) > arrived)
        client.close()
        assert lost.exception(PATIENCE_S) is not None
        del client, lost
        gc.collect()
        wait_until(lambda: not mappings())
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_what_equal_inputs_are_answered_with_is_made_of_a_copy(cluster: FakeCluster) -> None:
    """A client that writes while its request runs must not change what others are answered."""
    with (
        gateway(cluster.address, local_clients=True, cache_models=("wide",)) as address,
        Client(address) as client,
        Client(address) as other,
    ):
        ready(client)
        wait_until(lambda: len(other.models()) >= 5)
        given = client.allocate((1, COLUMNS))
        given[:] = asked = wide(7)
        seen: list[npt.NDArray[np.float32]] = []
        digest = PredictionCache.digest

        def spoil(self: PredictionCache, accepted: Any, frames: Any) -> bytes | None:
            found = digest(self, accepted, frames)
            if not seen:
                seen.append(given.copy())
                given[:] = 0
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PredictionCache, "digest", spoil)
            client.infer("wide", {"data": given})
        assert seen, "the cache looked at it"
        np.testing.assert_array_equal(other.infer("wide", {"data": asked})["twice"], asked * 2)


# --- offers and places of clients without manners ---


def greeted(client: RawLocal) -> RawLocal:
    client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
    welcome = client.receive()
    assert isinstance(welcome, clients.ClientWelcome)
    assert welcome.memory_bytes > 0
    return client


def offer(client: RawLocal, descriptor: int, size: int) -> str:
    """Offer memory; return the refusal. The descriptor is closed."""
    assert client.link.send_descriptor((encode(OfferMemory(size)),), descriptor) is Delivery.SENT
    os.close(descriptor)
    answer = client.receive()
    assert isinstance(answer, MemoryTaken)
    return answer.refusal


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def unsealed() -> int:
    return sealed(1 << 20, 0)


def a_file() -> int:
    return os.open(__file__, os.O_RDONLY)


def a_pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


@pytest.mark.parametrize(
    ("make", "size", "named"),
    [
        (unsealed, 1 << 20, "not sealed"),
        (a_file, 1 << 20, "not a file in memory"),
        (a_pipe, 1 << 20, "not a file in memory"),
        (lambda: sealed(1 << 20), 1 << 21, "1,048,576 bytes, and 2,097,152 were announced"),
        (lambda: sealed(1 << 20), 0, "client_memory_bytes"),
        (lambda: sealed(1 << 20), -5, "client_memory_bytes"),
        (lambda: sealed(1 << 40), 1 << 40, "client_memory_bytes"),
        (lambda: sealed(1 << 20), 1 << 62, "client_memory_bytes"),
    ],
)
def test_memory_that_can_not_be_read_is_refused_by_name(
    cluster: FakeCluster, make: Callable[[], int], size: int, named: str
) -> None:
    with gateway(cluster.address, local_clients=True) as address, RawLocal(address) as client:
        greeted(client).send(InferRequest(1, "wide", (WIDE,), None), wide(1).tobytes())
        assert isinstance(client.receive(), clients.InferReply)
        before = len(os.listdir("/proc/self/fd"))
        assert named in offer(client, make(), size)
        assert len(os.listdir("/proc/self/fd")) == before
        # The connection goes on, and its inputs are sent.
        client.send(InferRequest(2, "wide", (WIDE,), None), wide(1).tobytes())
        assert isinstance(client.receive(), clients.InferReply)


def test_memory_is_offered_once_and_with_its_descriptor(cluster: FakeCluster) -> None:
    with gateway(cluster.address, local_clients=True) as address, RawLocal(address) as client:
        greeted(client).send(OfferMemory(1 << 20))
        answer = client.receive()
        assert isinstance(answer, MemoryTaken)
        assert "did not come along" in answer.refusal
        assert offer(client, sealed(SIZE), SIZE) == ""
        client.send(OfferMemory(SIZE))
        answer = client.receive()
        assert isinstance(answer, MemoryTaken)
        assert answer.refusal


def test_what_all_clients_offer_is_bounded(cluster: FakeCluster) -> None:
    options = {"local_clients": True, "client_memory_bytes": 3 * SIZE}
    with gateway(cluster.address, **options) as address, RawLocal(address) as first:
        assert offer(greeted(first), sealed(2 * SIZE), 2 * SIZE) == ""
        with RawLocal(address) as second:
            assert f"to {SIZE:,} can be read" in offer(greeted(second), sealed(2 * SIZE), 2 * SIZE)
        with RawLocal(address) as third:
            assert offer(greeted(third), sealed(SIZE), SIZE) == ""
        # Who leaves makes room.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with RawLocal(address) as fourth:
                if not offer(greeted(fourth), sealed(SIZE), SIZE):
                    break
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("places", "frames", "named"),
    [
        ((Stretch(SIZE, 1),), 0, "input 'data' is said to be 1 bytes at 4,194,304"),
        ((Stretch(4, SIZE),), 0, "is said to be 4,194,304 bytes at 4"),
        ((Stretch(-4, SIZE),), 0, "at -4"),
        ((Stretch(0, -1),), 0, "to be -1 bytes"),
        ((Stretch(0, 0),), 0, "to be 0 bytes"),
        ((Stretch(0, SIZE), Stretch(0, SIZE)), 0, "2 places were named for 1 inputs"),
        ((None,), 0, "0 frames came, and more"),
        ((Stretch(0, SIZE),), 1, "1 frames came, and fewer"),
        ((Stretch(0, 100),), 0, "100 bytes"),
    ],
)
def test_a_place_that_is_not_there_is_the_request_s_error(
    cluster: FakeCluster, places: tuple[Stretch | None, ...], frames: int, named: str
) -> None:
    with gateway(cluster.address, local_clients=True) as address, RawLocal(address) as client:
        assert offer(greeted(client), sealed(SIZE), SIZE) == ""
        client.send(InferRequest(7, "wide", (WIDE,), None, places=places), *[b"x"] * frames)
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (7, Reason.BAD_INPUT)
        assert named in reply.detail
        client.send(InferRequest(8, "wide", (WIDE,), None, places=(Stretch(0, SIZE),)))
        assert isinstance(client.receive(), clients.InferReply)


def test_places_without_memory_are_refused_over_either_way(cluster: FakeCluster) -> None:
    request = InferRequest(1, "wide", (WIDE,), None, places=(Stretch(0, SIZE),))
    with gateway(cluster.address, local_clients=True) as address:
        with RawLocal(address) as client:
            greeted(client).send(request)
            reply = client.receive()
            assert isinstance(reply, clients.ErrorReply)
            assert "has no memory that the gateway reads" in reply.detail
        with Raw(address, hello=False) as remote:
            remote.send(clients.ClientHello(PROTOCOL_VERSION, "remote"))
            welcome = remote.receive()
            assert isinstance(welcome, clients.ClientWelcome)
            assert welcome.memory_bytes == 0
            remote.send(OfferMemory(SIZE))
            taken = remote.receive()
            assert isinstance(taken, MemoryTaken)
            assert "over a connection by name" in taken.refusal
            remote.send(request)
            reply = remote.receive()
            assert isinstance(reply, clients.ErrorReply)
            assert "has no memory that the gateway reads" in reply.detail


def test_inputs_in_memory_have_the_bound_of_messages() -> None:
    memories = ClientMemories(GatewayConfig(max_message_bytes=10_000), Lendings(), local=True)
    assert memories.offer(b"one", 1 << 20, sealed(1 << 20)) == ""
    header = TensorHeader("data", "uint8", (1, 6_000))
    request = InferRequest(1, "m", (header, header), None, places=(Stretch(0, 6_000), Stretch(0, 6_000)))
    with pytest.raises(BadPlace, match="12,000 bytes; the gateway takes at most 10,000"):
        memories.frames(b"one", request, ())
    memories.end(b"one")
    memories.end(b"one")
    with pytest.raises(BadPlace, match="has no memory"):
        memories.frames(b"one", request, ())


def test_huge_pages_are_not_taken() -> None:
    """Whether the host has one for each part of the file shows only as it is read."""
    try:
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
        os.ftruncate(descriptor, 2 << 20)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:
        pytest.skip("this kernel has no huge pages")
    memories = ClientMemories(GatewayConfig(), Lendings(), local=True)
    assert "huge pages" in memories.offer(b"one", 2 << 20, descriptor)


def test_the_client_s_own_memory_keeps_what_the_gateway_needs() -> None:
    own = OwnMemory("mainspring-client", 1 << 20, huge=False)
    memories = ClientMemories(GatewayConfig(), Lendings(), local=True)
    assert memories.offer(b"one", own.size, os.dup(own.descriptor)) == ""
    own.close()
