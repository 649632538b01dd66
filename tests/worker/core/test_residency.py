"""The allocator of IO memory and the layout of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.worker.core.jobs import Slot
from mainspring.worker.core.residency import ALIGNMENT_BYTES, IoMemory, slot_layout
from tests.worker.peers import spec, spec_of_lengths


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700))))
def test_slots_never_overlap_and_all_comes_back(steps: list[tuple[bool, int]]) -> None:
    memory = IoMemory(2048)
    slots: list[Slot] = []
    for free, size in steps:
        if free and slots:
            memory.free(slots.pop(size % len(slots)))
        elif (slot := memory.allocate(size)) is not None:
            assert slot.size >= size
            assert slot.offset % ALIGNMENT_BYTES == 0
            slots.append(slot)
        memory.validate()
    for slot in slots:
        memory.free(slot)
    memory.validate()
    assert memory.allocate(2048) == Slot(0, 2048)


def test_slot_is_freed_once() -> None:
    memory = IoMemory(128)
    slot = memory.allocate(1)
    assert slot is not None
    memory.free(slot)
    with pytest.raises(KeyError):
        memory.free(slot)


def test_tensors_are_laid_out_one_after_another_and_aligned() -> None:
    layout = slot_layout(spec(floats=17), 4)
    assert (layout.inputs, layout.outputs, layout.size) == ((0,), (320,), 384)


def test_open_tensors_are_laid_out_at_the_sizes() -> None:
    layout = slot_layout(spec_of_lengths(), 2, (9,))
    # 2 rows of 9 x 3 floats are 216 bytes, 2 of 10 x 2 are 160.
    assert (layout.inputs, layout.outputs, layout.size) == ((0,), (256,), 256 + 192)
    assert slot_layout(spec_of_lengths(), 2).size == slot_layout(spec_of_lengths(), 2, (64,)).size
