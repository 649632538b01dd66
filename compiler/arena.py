"""A model's weights as in the weights file and as in a worker's arena, for verifying and profiling."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.manifest import ExecutableInfo, WeightTensor
from mainspring.compiler.layout import Layout
from mainspring.messages.model import PAGE_BYTES


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
    image = np.zeros(total_bytes, np.uint8)
    for tensor, array in zip(tensors, arrays, strict=True):
        image[tensor.offset : tensor.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
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
        begin_ns = time.thread_time_ns()
        for index, page in enumerate(self.pages):
            part = self._image[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]
            self._memory[page * PAGE_BYTES : page * PAGE_BYTES + len(part)] = part
        return time.thread_time_ns() - begin_ns

    def address_of(self, offset: int) -> int:
        """Return the address of a byte of the weights file."""
        page, rest = divmod(offset, PAGE_BYTES)
        return int(self._memory.ctypes.data) + self.pages[page] * PAGE_BYTES + rest
