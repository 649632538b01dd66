"""Places of weights: pages of 16 MiB, extents, offsets; the same for the same sizes.

Clockwork, section 5.2, with one addition: a tensor smaller than a page never crosses a page boundary, so its
page may be anywhere in the arena; a larger one takes a run of adjacent pages, an *extent*. The rest of an
extent's last page takes small tensors like any other page.

`Arena` holds a model's weights as a worker's memory does, for verifying and profiling.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.manifest import ALIGNMENT_BYTES, ExecutableInfo, WeightTensor
from mainspring.compiler.reading.contents import forget, room
from mainspring.messages.model import PAGE_BYTES

_MAPPED_BYTES = 4096
"""A page of the system's."""


class Place(NamedTuple):
    """A tensor's place: its extent, and its first byte from the beginning of the weights file."""

    extent: int
    offset: int


class Layout(NamedTuple):
    """The places of all tensors, in the order of their sizes as given."""

    extents: tuple[int, ...]
    """Pages of each extent, in the order of the weights file."""
    places: tuple[Place, ...]
    total_bytes: int
    """Length of the weights file: to the end of the last tensor of the last page."""


class _Extent:
    """A run of adjacent pages that is being filled."""

    def __init__(self, index: int, pages: int) -> None:
        self.index = index
        self.pages = pages
        self.used_bytes = 0
        self.tensors: list[tuple[int, int]] = []
        """Tensors, each with its offset in the extent."""

    @property
    def free_bytes(self) -> int:
        """Bytes behind the last tensor."""
        return self.pages * PAGE_BYTES - self.used_bytes

    def put(self, tensor: int, size: int) -> None:
        """Place a tensor of an aligned size behind the others; it must fit into `free_bytes`."""
        self.tensors.append((tensor, self.used_bytes))
        self.used_bytes += size


def lay_out(sizes: Sequence[int]) -> Layout:
    """Place tensors of these sizes in bytes: best fit, largest first; the emptiest extent is last.

    A model without weights takes one page too, so that no other code has to handle such models.
    """
    extents = _fill([_aligned(size) for size in sizes])
    extents.sort(key=lambda extent: (extent.free_bytes, extent.index))
    places = [Place(0, 0)] * len(sizes)
    begin = end = 0
    for position, extent in enumerate(extents):
        for tensor, offset in extent.tensors:
            places[tensor] = Place(position, begin + offset)
        end = begin + extent.used_bytes
        begin += extent.pages * PAGE_BYTES
    return Layout(tuple(extent.pages for extent in extents), tuple(places), end)


def _fill(sizes: list[int]) -> list[_Extent]:
    """Return extents that hold tensors of these aligned sizes, in no particular order."""
    extents: list[_Extent] = []
    room: list[tuple[int, int]] = []
    """Free bytes and number of each extent with room, ascending."""
    for tensor, size in sorted(enumerate(sizes), key=lambda item: (-item[1], item[0])):
        slot = bisect.bisect_left(room, (size, -1)) if size < PAGE_BYTES else len(room)
        if slot < len(room):
            extent = extents[room.pop(slot)[1]]
        else:
            extent = _Extent(len(extents), -(-size // PAGE_BYTES))
            extents.append(extent)
        extent.put(tensor, size)
        if extent.free_bytes:
            bisect.insort(room, (extent.free_bytes, extent.index))
    if not extents:
        extents.append(_Extent(0, 1))
        extents[0].used_bytes = ALIGNMENT_BYTES
    return extents


def _aligned(size: int) -> int:
    """Round up to the alignment; an empty tensor gets an address of its own."""
    return max(1, -(-size // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def place_tensors(info: ExecutableInfo, layout: Layout) -> tuple[WeightTensor, ...]:
    """Return the manifest's tensors: the executable's weights at the layout's places."""
    return tuple(
        WeightTensor(tensor.name, tensor.dtype, tensor.shape, place.extent, place.offset)
        for tensor, place in zip(info.weights, layout.places, strict=True)
    )


def weights_image(
    tensors: Sequence[WeightTensor], arrays: Sequence[npt.NDArray[np.generic]], total_bytes: int
) -> npt.NDArray[np.uint8]:
    """Return the bytes of the weights file; between tensors they are zero."""
    image = room(total_bytes)
    for tensor, array in zip(tensors, arrays, strict=True):
        image[tensor.offset : tensor.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        forget(array)
        forget(image)
    return image


class Arena:
    """Pages of memory that hold one model, loaded as a LOAD does it.

    Its extents are in the reverse order of the file, so that a tensor that relied on the adjacent pages of
    another extent would be found out.
    """

    def __init__(self, image: npt.NDArray[np.uint8], extents: Sequence[int]) -> None:
        self._image = image
        self._memory = aligned_array((sum(extents) * PAGE_BYTES,), np.dtype(np.uint8))
        self.pages: list[int] = []
        end = sum(extents)
        for extent in extents:
            end -= extent
            self.pages.extend(range(end, end + extent))

    def load(self) -> int:
        """Copy the weights into their pages; return how many nanoseconds of CPU that took."""
        took_ns = 0
        for index, page in enumerate(self.pages):
            part = self._image[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]
            part[::_MAPPED_BYTES].any()  # A worker's file is in memory.
            begin_ns = time.thread_time_ns()
            self._memory[page * PAGE_BYTES : page * PAGE_BYTES + len(part)] = part
            took_ns += time.thread_time_ns() - begin_ns
            forget(self._image)
        return took_ns

    def address_of(self, offset: int) -> int:
        """Return the address of a byte of the weights file."""
        page, rest = divmod(offset, PAGE_BYTES)
        return int(self._memory.ctypes.data) + self.pages[page] * PAGE_BYTES + rest
