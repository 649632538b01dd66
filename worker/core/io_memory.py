"""Places of an INFER's inputs and outputs in IO memory (Clockwork, section 5.2: the IOCache).

Pure bookkeeping: offsets, never bytes. A *slot* holds all inputs, then all outputs, of one padded batch.
"""

from __future__ import annotations

from mainspring.messages.model import DTYPES, ModelSpec, TensorSpec, is_dtype
from mainspring.transport.holes import Holes
from mainspring.worker.core.window_queue import Slot, SlotLayout

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
        self._holes = Holes(self.size)
        self._slots: dict[int, Slot] = {}

    def allocate(self, size: int) -> Slot | None:
        """Return a slot of at least ``size`` bytes (one or more), or None if no hole is large enough."""
        wanted = align(size)
        offset = self._holes.take(wanted)
        if offset < 0:
            return None
        slot = Slot(offset, wanted)
        self._slots[offset] = slot
        return slot

    def free(self, slot: Slot) -> None:
        """Give an allocated slot back; raise `KeyError` if it isn't allocated."""
        del self._slots[slot.offset]
        self._holes.give(slot.offset, slot.size)

    @property
    def slots(self) -> int:
        """Slots allocated."""
        return len(self._slots)

    def validate(self) -> None:
        """Raise `AssertionError` unless holes and slots tile the memory and no two holes touch."""
        self._holes.validate([(slot.offset, slot.size) for slot in self._slots.values()], "IO memory")
