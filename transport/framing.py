"""A message as bytes, after the `handshake`.

A message is a *head* with the size of the message proper and the number of tensors behind it, each tensor's
size, the message, the tensors. All numbers are little-endian.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

HEAD = struct.Struct("<II")
"""The bytes of the message proper, and the number of tensors."""
MAX_TENSORS = 255
"""Tensors that one message may have."""


@functools.cache
def sizes_of(tensors: int) -> struct.Struct:
    """Return the layout of the sizes of this number of tensors."""
    return struct.Struct(f"<{tensors}Q")


def size_of(part: Any) -> int:
    """Return the number of bytes of a part, also of an array of several dimensions."""
    return part.nbytes if type(part) is memoryview else len(part)


def head(sizes: Sequence[int]) -> bytes:
    """Return the head of a message whose parts, the message proper and its tensors, have these sizes.

    Raises ValueError if there are more than `MAX_TENSORS`.
    """
    tensors = len(sizes) - 1
    if not tensors:
        return HEAD.pack(sizes[0], 0)
    if tensors > MAX_TENSORS:
        raise ValueError(f"a message carries at most {MAX_TENSORS} tensors, not {tensors}")
    return HEAD.pack(sizes[0], tensors) + sizes_of(tensors).pack(*sizes[1:])
