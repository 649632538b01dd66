"""What a GPU runs for a model, whichever engine made it: bound to pages at LOAD, launched by EXEC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainspring.worker.core.jobs import SlotLayout


class Times(NamedTuple):
    """Timed events between which EXEC's kernels run."""

    begin: int
    end: int


class Bound(Protocol):
    """A program with one model's weights at their places."""

    def launch(self, batch_size: int, slot: int, layout: SlotLayout, stream: int) -> None:
        """Give a whole batch to the stream: from and to the slot at this address of the device's IO cache.

        The program's `Times` happen before and after its kernels.
        """


class Program(Protocol):
    """One executable on one device, for all models that share it."""

    def bind(self, pages: Sequence[int], stream: int) -> Bound:
        """Return the program with weights whose file's pages are, or will be, at these addresses.

        ``stream`` has nothing else to do meanwhile. The weights need not be there before the first launch.
        """

    def retire(self, bound: Bound) -> None:
        """Nothing launches this any more: what it is made of may serve the next `bind`."""

    def warm(self, pages: Sequence[int], stream: int) -> None:
        """Do once what serving is not to wait for.

        ``pages`` are addresses of weights in pinned host memory, which the device can read too, if slowly.
        """

    def close(self) -> None:
        """Give everything back; nothing is bound any more."""
