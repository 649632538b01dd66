"""What policies keep about models and workers, in the one slot that the cluster's state has on each.

`Model.note`, `Worker.note`, `Placement.note` and `InferTimes.note` belong to the policy: nothing else reads
them. A placement's note is the key of its valid entry among `WorkerNote.ready`, None without one. A
policy from outside may keep its own kind of note there instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from mainspring.cluster.placements import Model, Placement, Worker
    from mainspring.scheduler.policies.demand import Demand


@final
class ModelNote:
    """What policies keep about a model."""

    __slots__ = ("boost", "counted", "demand", "offered", "popularity", "price")

    def __init__(self) -> None:
        self.offered: tuple[int, int] | None = None
        """The due instant and the size's index for which the queue was last offered to workers."""
        self.demand: Demand | None = None
        """The work that waits for the model, as the load priorities count it."""
        self.popularity = 0.0
        """The decaying count of the model's requests (`Popularity`)."""
        self.boost = 0.0
        """How much more the model's requests are worth than others', in nats."""
        self.price = 0.0
        """What the boost follows from, in nats (`Fairness`)."""
        self.counted = False
        """Whether the model counts among those with waiting requests."""


@final
class WorkerNote:
    """What policies keep about a worker."""

    __slots__ = ("allocated_ns", "ranks_scale_ns", "ready", "swept_from")

    def __init__(self) -> None:
        self.allocated_ns = 0
        """The work that the load priorities allocate to the worker."""
        self.ready: list[tuple[int, int, Placement]] = []
        """The ready queue, a heap of (key, model's number, placement): what the EXEC executor could run."""
        self.swept_from = 0
        """The number of entries from which on the void ones are dropped."""
        self.ranks_scale_ns = 0.0
        """The scale by which the entries are ranked."""


def model_note(model: Model) -> ModelNote:
    """Return the policy's note of a model, a new one at first."""
    note = model.note
    if isinstance(note, ModelNote):
        return note
    model.note = made = ModelNote()
    return made


def worker_note(worker: Worker) -> WorkerNote:
    """Return the policy's note of a worker, a new one at first."""
    note = worker.note
    if isinstance(note, WorkerNote):
        return note
    worker.note = made = WorkerNote()
    return made
