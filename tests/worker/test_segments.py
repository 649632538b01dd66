"""A worker and the memory that it shares with a gateway of its host, over a real connection."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from mainspring.messages.codec import encode
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import (
    ClientSegment,
    ClientSegmentOver,
    ClientSegmentTaken,
    Input,
    Output,
    Place,
    Read,
    Segment,
)
from mainspring.transport.bounds import Delivery
from mainspring.transport.shared_memory import OwnMemory
from mainspring.transport.slab import TABLE_BYTES
from tests.patience import PATIENCE_S
from tests.worker.peers import Cluster, infer, spec
from tests.worker.sharing import Sharing

FLOATS = 50_000
SIZE = 4 * FLOATS
Start = Callable[..., Cluster]


@pytest.fixture
def large(start: Start) -> Iterator[tuple[Cluster, Sharing]]:
    """A worker with a model of large inputs and outputs, and a gateway that shares memory with it."""
    cluster = start(io_bytes=8 << 20)
    cluster.resident(of_large_tensors())
    sharing = Sharing(cluster.data_address)
    yield cluster, sharing
    sharing.close()


def of_large_tensors() -> ModelSpec:
    """A model of as many floats in and out."""
    return msgspec.structs.replace(spec(floats=FLOATS), outputs=(TensorSpec("y", "float32", (FLOATS,)),))


def test_inputs_are_read_where_they_are_and_outputs_come_the_same_way(large: tuple[Cluster, Sharing]) -> None:
    cluster, sharing = large
    held, place = sharing.placed(np.ones(FLOATS, np.float32).tobytes())
    action = cluster.next_id()
    cluster.say(infer(action, (1,)))
    sharing.send(Input(action, 1, places=(place,)))
    output, frames = sharing.receive()
    assert isinstance(output, Output)
    assert output.taken == 1
    assert not frames
    (found,) = output.places
    assert found is not None
    assert sharing.outputs is not None
    assert not sharing.outputs.read(found.offset, found.size, found.slot).any()
    assert sharing.outputs.holds(found.slot, found.stamp)
    assert cluster.result(action).status is Status.OK
    sharing.send(Read((found.stamp,)))
    del held


def test_inputs_in_a_clients_memory_are_read_there(large: tuple[Cluster, Sharing]) -> None:
    """Its segment is handed on by the gateway, named by a number, and over once the gateway says so."""
    cluster, sharing = large
    own = OwnMemory("test-client", 1 << 21, huge=False)
    own.bytes[4096 : 4096 + SIZE] = np.ones(FLOATS, np.float32).view(np.uint8)

    def hand_on(number: int, size: int = own.size, descriptor: int = own.descriptor) -> str:
        offer = encode(ClientSegment(number, size))
        assert sharing.link.send_descriptor((offer,), descriptor) is Delivery.SENT
        answer, _ = sharing.receive()
        assert isinstance(answer, ClientSegmentTaken)
        assert answer.number == number
        return answer.refusal

    def status(place: Place) -> Status:
        action = cluster.next_id()
        cluster.say(infer(action, (1,)))
        sharing.send(Input(action, 1, places=(place,)))
        return cluster.result(action).status

    for number in (1, 2, 3):
        # As often as clients come: not as many descriptors as there are over all of the connection's time.
        assert hand_on(number) == ""
    assert "were announced" in hand_on(4, own.size + 1)
    with open(__file__, "rb") as file:
        assert "not a file in memory" in hand_on(4, 100, file.fileno())
    for number in range(5, 40):
        assert hand_on(number) == ""
        sharing.send(ClientSegmentOver(number))
    assert status(Place(4096, SIZE, 0, 0, 2)) is Status.OK
    output, _ = sharing.receive()
    assert isinstance(output, Output)
    assert output.taken == 1
    for wrong in (
        Place(4096, SIZE, 0, 0, 4),
        Place(4096, SIZE, 0, 0, 7),
        Place(own.size - 8, SIZE, 0, 0, 2),
        Place(-8, SIZE, 0, 0, 2),
        Place(1 << 62, SIZE, 0, 0, 2),
        Place(4096, 0, 0, 0, 2),
    ):
        assert status(wrong) is not Status.OK, wrong
    assert status(Place(4096, SIZE, 0, 0, 2)) is Status.OK
    own.close()


def test_the_memory_of_outputs_is_used_again_once_they_were_read(large: tuple[Cluster, Sharing]) -> None:
    cluster, sharing = large
    held, place = sharing.placed(bytes(SIZE))
    seen: list[Place] = []
    for number in range(3):
        action = cluster.next_id()
        cluster.say(infer(action, (number,)))
        sharing.send(Input(action, number, places=(place,), read=tuple(each.stamp for each in seen[-1:])))
        output, _ = sharing.receive()
        assert isinstance(output, Output)
        (found,) = output.places
        assert found is not None
        seen.append(found)
        cluster.result(action)
    assert len({each.offset for each in seen}) == 1
    assert len({each.stamp for each in seen}) == 3
    del held


def test_a_full_memory_leaves_frames(start: Start) -> None:
    cluster = start(io_bytes=8 << 20, slab_bytes=1)
    cluster.resident(of_large_tensors())
    sharing = Sharing(cluster.data_address)
    held, place = sharing.placed(bytes(SIZE))
    kinds = []
    for number in range(12):
        action = cluster.next_id()
        cluster.say(infer(action, (number,)))
        sharing.send(Input(action, number, places=(place,)))
        output, frames = sharing.receive()
        assert isinstance(output, Output)
        kinds.append(bool(frames))
        assert sum(map(len, frames)) in (0, SIZE)
        assert cluster.result(action).status is Status.OK
    assert kinds == sorted(kinds), "frames once there is no room, and never before"
    assert kinds[0] is False
    assert kinds[-1] is True
    sharing.close()
    del held


@pytest.mark.parametrize(
    "place",
    [
        Place(0, SIZE, 0, 1),
        Place(TABLE_BYTES, 1 << 40, 0, 1),
        Place((4 << 20) - 8, SIZE, 0, 1),
        Place(1 << 62, SIZE, 0, 1),
        Place(TABLE_BYTES, SIZE, 1 << 30, 1),
        Place(TABLE_BYTES, SIZE, 5, 77),
        Place(TABLE_BYTES, SIZE - 4, 0, 1),
    ],
    ids=["table", "too long", "beyond the end", "far beyond", "no slot", "other stamp", "other size"],
)
def test_an_input_that_is_not_there_ends_its_action_and_is_counted(
    large: tuple[Cluster, Sharing], place: Place
) -> None:
    cluster, sharing = large
    held, _ = sharing.placed(bytes(SIZE))
    action = cluster.next_id()
    cluster.say(infer(action, (1,)))
    sharing.send(Input(action, 1, places=(place,)))
    assert cluster.result(action).status is Status.INPUT_MISSING
    held, good = sharing.placed(bytes(SIZE))
    action = cluster.next_id()
    cluster.say(infer(action, (1,)))
    sharing.send(Input(action, 1, places=(good,)))
    output, _ = sharing.receive()
    assert isinstance(output, Output)
    assert output.taken == 2, "an unusable input was taken, too"
    assert cluster.result(action).status is Status.OK
    del held


def test_an_unusable_input_that_comes_before_its_action_ends_it_at_once(
    large: tuple[Cluster, Sharing],
) -> None:
    cluster, sharing = large
    _, good = sharing.placed(bytes(SIZE))
    action, other = cluster.next_id(), cluster.next_id()
    sharing.send(Input(action, 1, places=(Place(1 << 62, SIZE, 0, 1),)))
    cluster.say(infer(other, (9,)))
    sharing.send(Input(other, 9, places=(good,)))
    assert cluster.result(other).status is Status.OK
    never_ns = time.monotonic_ns() + 3_600 * 10**9
    cluster.say(infer(action, (1,), window=(0, never_ns)))
    assert cluster.result(action).status is Status.INPUT_MISSING


def test_an_input_that_comes_before_its_action_is_copied_aside(large: tuple[Cluster, Sharing]) -> None:
    cluster, sharing = large
    held, place = sharing.placed(bytes(SIZE))
    action = cluster.next_id()
    sharing.send(Input(action, 1, places=(place,)))
    other = cluster.next_id()
    cluster.say(infer(other, (9,)))
    sharing.send(Input(other, 9, places=(place,)))
    output, _ = sharing.receive()
    assert isinstance(output, Output)
    assert output.taken == 2, "the gateway may use the place again"
    held[:] = b"\xff" * SIZE
    del held
    again, _ = sharing.placed(b"\xff" * SIZE)
    cluster.say(infer(action, (1,)))
    assert cluster.result(action).status is Status.OK
    del again


def test_without_a_slab_of_its_own_a_worker_reads_inputs_all_the_same(start: Start) -> None:
    cluster = start(io_bytes=8 << 20, slab_bytes=0)
    cluster.resident(of_large_tensors())
    sharing = Sharing(cluster.data_address)
    assert sharing.outputs is None
    held, place = sharing.placed(bytes(SIZE))
    action = cluster.next_id()
    cluster.say(infer(action, (1,)))
    sharing.send(Input(action, 1, places=(place,)))
    output, frames = sharing.receive()
    assert isinstance(output, Output)
    assert output.places == ()
    assert [len(each) for each in frames] == [SIZE]
    sharing.close()
    del held


def test_a_second_segment_leaves_no_descriptor(large: tuple[Cluster, Sharing]) -> None:
    cluster, sharing = large
    gc.collect()  # What other tests left open counts neither before nor after.
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        offer = encode(Segment(sharing.own.size))
        assert sharing.link.send_descriptor((offer,), sharing.own.descriptor) is Delivery.SENT
    # It takes messages in turn: an answer to this one says that the others were worked off.
    held, place = sharing.placed(bytes(SIZE))
    action = cluster.next_id()
    cluster.say(infer(action, (1,)))
    sharing.send(Input(action, 1, places=(place,)))
    output, _ = sharing.receive()
    assert isinstance(output, Output)
    assert len(os.listdir("/proc/self/fd")) == before
    del held


def test_a_connection_that_ends_leaves_no_memory_and_no_descriptor(large: tuple[Cluster, Sharing]) -> None:
    cluster, sharing = large

    def mapped() -> int:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum("mainspring-outputs" in line for line in maps)

    before, maps_before = len(os.listdir("/proc/self/fd")), mapped()
    others = [Sharing(cluster.data_address) for _ in range(3)]
    assert mapped() == maps_before + 6, "three at each end"
    for each in others:
        each.outputs = None
        each.close()
        del each.slab, each.own
    del others, each
    until_s = time.monotonic() + PATIENCE_S
    while mapped() > maps_before or len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < until_s, "memory of connections that have ended"
        time.sleep(0.01)
    assert sharing.link.connected
