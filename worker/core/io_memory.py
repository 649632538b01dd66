"""Places of an INFER's inputs and outputs in IO memory (Clockwork, section 5.2: the IOCache).

Pure bookkeeping: offsets, never bytes. A *slot* holds all inputs, then all outputs, of one padded batch.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from mainspring.messages.model import DTYPES, ModelSpec, TensorSpec, is_dtype
from mainspring.worker.core.jobs import Slot, SlotLayout

ALIGNMENT_BYTES = 64
"""Every tensor starts at a multiple of this: a cache line, which also suits vector instructions."""


def align(size: int) -> int:
    """Round up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def slot_layout(model: ModelSpec, batch_size: int, sizes: tuple[int, ...] = ()) -> SlotLayout:
    """Lay a batch out; raise `ValueError` for a dtype or a shape that no slot could hold.

    ``sizes`` has one size of each symbol; without, shapes are those at the limits.
    """
    cursor = 0
    starts: list[int] = []
    for tensor in (*model.inputs, *model.outputs):
        starts.append(cursor)
        cursor += align(batch_size * _row_bytes(tensor.at(sizes) if sizes else tensor))
    split = len(model.inputs)
    return SlotLayout(tuple(starts[:split]), tuple(starts[split:]), max(cursor, ALIGNMENT_BYTES))


def _row_bytes(tensor: TensorSpec) -> int:
    if not is_dtype(tensor.dtype):
        raise ValueError(
            f"tensor {tensor.name}: dtype {tensor.dtype!r} is none of {', '.join(DTYPES)}, "
            "nor slots of bytes such as S64"
        )
    if any(axis < 0 for axis in tensor.shape):
        raise ValueError(f"tensor {tensor.name}: shape {tensor.shape} has a negative axis")
    return tensor.row_bytes


class IoMemory:
    """First-fit allocator of slots; sizes are rounded up to `ALIGNMENT_BYTES`."""

    def __init__(self, size: int) -> None:
        self.size = size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._holes: list[tuple[int, int]] = [(0, self.size)] if self.size else []
        self._slots: dict[int, Slot] = {}

    def allocate(self, size: int) -> Slot | None:
        """Return a slot of at least ``size`` bytes (one or more), or None if no hole is large enough."""
        wanted = align(size)
        for index, (offset, hole) in enumerate(self._holes):
            if hole < wanted:
                continue
            if hole == wanted:
                del self._holes[index]
            else:
                self._holes[index] = (offset + wanted, hole - wanted)
            slot = Slot(offset, wanted)
            self._slots[offset] = slot
            return slot
        return None

    def free(self, slot: Slot) -> None:
        """Give an allocated slot back; raise `KeyError` if it isn't allocated."""
        del self._slots[slot.offset]
        start, end = slot.offset, slot.offset + slot.size
        index = bisect_left(self._holes, (start, 0))
        if index < len(self._holes) and self._holes[index][0] == end:
            end += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            start = self._holes.pop(index - 1)[0]
        insort(self._holes, (start, end - start))

    @property
    def slots(self) -> int:
        """Slots allocated."""
        return len(self._slots)

    def validate(self) -> None:
        """Raise `AssertionError` unless holes and slots tile the memory and no two holes touch."""
        pieces = sorted(
            [(offset, size, "hole") for offset, size in self._holes]
            + [(slot.offset, slot.size, "slot") for slot in self._slots.values()]
        )
        cursor, before = 0, "slot"
        for offset, size, kind in pieces:
            assert offset == cursor, f"IO memory: {kind} at {offset}, expected one at {cursor}: {pieces}"
            assert size > 0, f"IO memory: empty {kind} at {offset}"
            assert not kind == before == "hole", f"IO memory: two holes touch at {offset}"
            cursor, before = offset + size, kind
        assert cursor == self.size, f"IO memory: pieces end at {cursor}, not at {self.size}"
