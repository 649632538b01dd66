"""Places in a slab: taken while anything refers to them, found from any part of them, never used twice."""

from __future__ import annotations

import os
import random
import threading

import numpy as np
import pytest

from mainspring.transport.holes import Holes
from mainspring.transport.shared_memory import Bytes, OwnMemory, map_to_read
from mainspring.transport.slab import ALIGNMENT_BYTES, SLOTS, TABLE_BYTES, Reader, Slab
from tests.fuzz import seeded

KB = 1024


def memory(room: int) -> Bytes:
    """Return memory of a slab with this much room for places."""
    return np.zeros(TABLE_BYTES + room, np.uint8)


def taken(slab: Slab, size: int) -> memoryview:
    view = slab.take(size)
    assert view is not None
    return view


def test_a_place_is_taken_while_a_part_of_it_is_referred_to() -> None:
    slab = Slab(memory(1 * KB))
    whole = taken(slab, 1 * KB)
    part, array = whole[100:200], np.frombuffer(whole[300:400], np.uint8)
    assert slab.take(1) is None
    del whole
    assert slab.take(1) is None
    del part
    assert slab.take(1) is None
    del array
    assert slab.places == 0
    assert taken(slab, 1 * KB).nbytes == 1 * KB
    slab.validate()


def test_bytes_are_found_from_any_part_of_a_place_and_no_others_are() -> None:
    backing = memory(8 * KB)
    slab, reader = Slab(backing), Reader(backing)
    first, second = taken(slab, 1000), taken(slab, 500)
    second[:] = bytes(i % 251 for i in range(500))
    found = slab.find(second[123:456])
    assert found is not None
    offset, slot, stamp = found
    assert reader.read(offset, 333, slot).tobytes() == bytes(second[123:456])
    assert reader.holds(slot, stamp)
    assert slab.find(first) != slab.find(second)
    assert slab.find(memoryview(bytearray(10))) is None
    assert slab.find(memoryview(b"ten bytes.")) is None


def test_an_array_that_has_the_id_of_one_that_ended_is_not_found() -> None:
    """Python gives addresses, which are ids, to new objects again at once."""
    slab = Slab(memory(8 * KB))
    for _ in range(100):
        place = taken(slab, 500)
        ended = id(place.obj)
        del place
        others = [np.zeros(1, np.uint8) for _ in range(20)]
        same = [each for each in others if id(each) == ended]
        assert all(slab.find(each.data) is None for each in others)
        if same:
            return
    pytest.skip("no id came again")


def test_a_reader_sees_at_once_that_a_place_is_no_more() -> None:
    own = OwnMemory("test", 1 << 20)
    slab, reader = Slab(own.bytes), Reader(map_to_read(os.dup(own.descriptor), own.size))
    place = taken(slab, 100)
    found = slab.find(place)
    assert found is not None
    offset, slot, stamp = found
    place[:3] = b"abc"
    assert reader.read(offset, 3, slot).tobytes() == b"abc"
    assert reader.holds(slot, stamp)
    del place
    again = taken(slab, 50)
    assert not reader.holds(slot, stamp)
    assert slab.find(again) != found, "the same memory is another place"
    own.close()


@pytest.mark.parametrize(
    ("offset", "size", "slot"),
    [
        (TABLE_BYTES - 1, 1, 0),
        (0, 8, 0),
        (-64, 64, 0),
        (TABLE_BYTES, 0, 0),
        (TABLE_BYTES, -1, 0),
        (TABLE_BYTES, 1025, 0),
        (TABLE_BYTES + 1024, 1, 0),
        (1 << 63, 1, 0),
        (TABLE_BYTES, 1 << 63, 0),
        (TABLE_BYTES, 1, SLOTS),
        (TABLE_BYTES, 1, -1),
    ],
)
def test_nothing_outside_of_the_slab_is_read(offset: int, size: int, slot: int) -> None:
    reader = Reader(memory(1024))
    with pytest.raises(ValueError, match="slab"):
        reader.read(offset, size, slot)
    assert not reader.holds(SLOTS, 0)
    assert not reader.holds(-1, 0)


def test_a_slab_has_more_than_its_table() -> None:
    with pytest.raises(ValueError, match="more than"):
        Reader(np.zeros(TABLE_BYTES, np.uint8))


def test_places_end_with_the_slots() -> None:
    slab = Slab(memory(2 * SLOTS * ALIGNMENT_BYTES))
    views = [taken(slab, 1) for _ in range(SLOTS)]
    assert slab.take(1) is None
    views.pop()
    assert slab.take(1) is not None
    slab.validate()


def test_any_thread_may_drop_the_last_reference() -> None:
    slab = Slab(memory(64 * KB))
    views = [taken(slab, 1 * KB) for _ in range(64)]
    stop = threading.Event()

    def drop() -> None:
        while views and not stop.is_set():
            views.pop()

    thread = threading.Thread(target=drop)
    thread.start()
    for _ in range(2000):
        if (view := slab.take(1 * KB)) is not None:
            del view
    stop.set()
    thread.join()
    slab.validate()


@seeded(20)
def test_places_never_overlap_whatever_is_taken_and_dropped(seed: int) -> None:
    rng = random.Random(seed)
    slab = Slab(memory(256 * KB))
    held: dict[int, tuple[memoryview, bytes]] = {}
    refused = 0
    for step in range(600):
        if rng.random() < 0.55:
            size = rng.choice((1, 63, 64, 65, 1000, 5000, 40_000))
            if (view := slab.take(size)) is None:
                refused += 1
                continue
            content = rng.randbytes(size)
            view[:] = content
            first = rng.randrange(size)
            # Sometimes only a part of it is kept, as of an HTTP body its tensors are.
            held[step] = (view[first:], content[first:]) if rng.random() < 0.5 else (view, content)
        elif held:
            del held[rng.choice(list(held))]
        for view, content in held.values():
            assert view == content, "a place was written to while it was in use"
        if step % 50 == 0:
            slab.validate()
    assert refused, "the slab was never full"
    held.clear()
    slab.validate()
    view = None
    assert slab.places == 0
    assert taken(slab, slab.size).nbytes == slab.size, "the holes did not become one"


@seeded(10)
def test_holes_are_given_out_from_the_lowest_and_become_one(seed: int) -> None:
    rng = random.Random(seed)
    holes, parts = Holes(1000), dict[int, int]()
    for _ in range(500):
        size = rng.randint(1, 120)
        if rng.random() < 0.5:
            offset = holes.take(size)
            ends = sorted([0, *(start + length for start, length in parts.items())])
            free = [at for at in ends if all(at + size <= s or at >= s + n for s, n in parts.items())]
            lowest = min((at for at in free if at + size <= 1000), default=-1)
            assert offset == lowest
            if offset >= 0:
                parts[offset] = size
        elif parts:
            offset = rng.choice(list(parts))
            holes.give(offset, parts.pop(offset))
        holes.validate(list(parts.items()), "test")
