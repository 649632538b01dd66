"""A model's program on a GPU, of either engine: given its pages at LOAD, launched by EXEC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from mainspring.compiler.artifact.plan import Shape
from mainspring.worker.core.jobs import SlotLayout


class Times(NamedTuple):
    """Timed events between which EXEC's kernels run."""

    begin: int
    end: int


class Bound(Protocol):
    """A program with one model's weights at their places."""

    at_once: bool
    """True if `launch` consists of some calls that never wait for the device, and nothing else."""

    def steps(self) -> Iterator[None]:
        """Bind the weights, as far as that takes time; each step takes less than a chunk's copy."""

    def launch(self, shape: Shape, slot: int, layout: SlotLayout, stream: int) -> None:
        """Give a whole batch to the stream; ``slot`` is the slot's address in the device's IO cache.

        The program's `Times` happen before and after its kernels.
        """


class Program(Protocol):
    """One executable on one device, for all models that share it."""

    refused: str
    """Reason why its kernels are launched one by one, without a graph; empty where they are not."""

    def bind(self, pages: Sequence[int]) -> Bound:
        """Return the program with weights whose file's pages are, or will be, at these addresses.

        It may be launched after its `Bound.steps`. Nothing is allocated on the device, and nothing is left to
        release.
        """

    def warm(self, pages: Sequence[int], stream: int) -> None:
        """Set up what would otherwise be set up while serving.

        ``pages`` are addresses of weights in pinned host memory, which the device can read too, but slowly.
        ``stream`` has nothing else to do meanwhile.
        """

    def close(self) -> None:
        """Release everything; nothing is launched any more."""
