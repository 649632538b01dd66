"""What goes over a connection, as bytes.

First the *preamble*, from both ends: four letters, a version, and whom the sender calls itself (nothing, if
it is the one who listens). Then messages: a *head* with the size of the message proper and the number of
tensors behind it, each tensor's size, the message, the tensors. All numbers are little-endian.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

VERSION = 1
MAGIC = b"MSPG"
PREAMBLE = struct.Struct("<4sBBH")
"""Magic, version, bytes of the name that follows, zero."""
MAX_NAME_BYTES = 255
HEAD = struct.Struct("<II")
"""Bytes of the message proper, number of tensors."""
MAX_TENSORS = 255
"""Of one message."""


class Violation(ValueError):
    """The other end sent what no connection of ours sends; the text says what."""


def preamble(name: bytes = b"") -> bytes:
    """Return the first bytes of a connection; raise ValueError if the name is too long."""
    if len(name) > MAX_NAME_BYTES:
        raise ValueError(f"a peer's name has at most {MAX_NAME_BYTES} bytes, not {len(name)}")
    return PREAMBLE.pack(MAGIC, VERSION, len(name), 0) + name


def read_preamble(data: memoryview) -> bytes | None:
    """Return the other end's name, None while it has not come; raise `Violation`."""
    known = bytes(data[:4])
    if not MAGIC.startswith(known):
        raise Violation(f"it begins with {known!r}: that is no Mainspring process, or one of another release")
    if len(data) > 4 and data[4] != VERSION:
        raise Violation(
            f"it speaks framing {data[4]}, this process {VERSION}; install the same release on both"
        )
    if len(data) < PREAMBLE.size:
        return None
    _, _, length, zero = PREAMBLE.unpack_from(data)
    if zero:
        raise Violation("its preamble is damaged")
    if len(data) < PREAMBLE.size + length:
        return None
    return bytes(data[PREAMBLE.size : PREAMBLE.size + length])


@functools.cache
def sizes_of(tensors: int) -> struct.Struct:
    """Return the layout of the sizes of so many tensors."""
    return struct.Struct(f"<{tensors}Q")


def size_of(part: Any) -> int:
    """Return a part's bytes, whatever its shape."""
    return part.nbytes if type(part) is memoryview else len(part)


def head(sizes: Sequence[int]) -> bytes:
    """Return what goes before a message whose parts have these sizes: the message proper, then its tensors.

    Raises ValueError if there are more than `MAX_TENSORS`.
    """
    tensors = len(sizes) - 1
    if not tensors:
        return HEAD.pack(sizes[0], 0)
    if tensors > MAX_TENSORS:
        raise ValueError(f"a message carries at most {MAX_TENSORS} tensors, not {tensors}")
    return HEAD.pack(sizes[0], tensors) + sizes_of(tensors).pack(*sizes[1:])
