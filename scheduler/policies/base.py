"""The seam between the core and a policy.

A policy sees the mirror and is told what changes; it answers two questions: which batch should this EXEC
executor run next, and which model should be loaded next. The core does the rest: admission, expiry,
commands, results, best-effort batches in idle time, and the books.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from mainspring.scheduler.books import Books
    from mainspring.scheduler.mirror import Placement, Worker
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.requests import Request


class Batch(msgspec.Struct, frozen=True):
    """A batch to run: requests of one model on a worker where it is usable."""

    placement: Placement
    size_index: int
    """Index of the batch size in the executable's sizes."""
    requests: list[Request]


class Policy(ABC):
    """Base of every policy. All hooks but the two questions may be left as they are."""

    name: ClassVar[str]

    def __init__(self, books: Books) -> None:
        self.books = books

    @abstractmethod
    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return what the worker's EXEC executor should begin at ``available_ns``, or None.

        Only requests with a deadline are the policy's to give; each must be due at or after the batch's
        predicted end.
        """

    @abstractmethod
    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return a model to load on a worker whose LOAD executor needs work, or None."""

    def queued(self, now_ns: int, request: Request) -> None:
        """A request with a deadline was put into its model's queue."""

    def unqueued(self, now_ns: int, request: Request) -> None:
        """A request with a deadline left its queue without being dispatched."""

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """The batch's INFER was sent; its requests are out of the queue."""

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """A model became usable on a worker or stopped being so, or its LOAD ended."""

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """A worker is gone; none of its placements are in the mirror any more."""
