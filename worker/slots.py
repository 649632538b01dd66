"""A piece of IO memory, and where the tensors of a padded batch lie in it."""

from __future__ import annotations

import msgspec


class Slot(msgspec.Struct, frozen=True):
    """A piece of IO memory that one INFER owns."""

    offset: int
    size: int


class SlotLayout(msgspec.Struct, frozen=True):
    """Where each tensor of a padded batch starts, in bytes from the start of its slot."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    size: int
