"""Notes of policies about models and workers, in the one slot that the cluster's state has on each.

`Model.note`, `Worker.note`, `Placement.note` and `InferTimes.note` belong to the policy: nothing else reads
them. A placement's note is the key of its valid entry among `WorkerNote.ready`, None without one. A
policy from outside may keep its own kind of note there instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mainspring.scheduler.alarms import Entry, Keyed

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.alarms import WorkerTimers


@final
class Copies:
    """A model on the workers of one kind of device, of which one entry in a heap that they share may say what
    they could run."""

    __slots__ = ("heap", "held_by", "like", "model", "note")

    def __init__(self, like: Placement, heap: ReadyHeap) -> None:
        self.model = like.model
        self.like = like
        """One of them: the others have the same estimates."""
        self.heap = heap
        self.held_by: WorkerTimers | None = None
        """The worker that was last kept free for a batch of the model."""
        self.note: int | None = None
        """The key of the valid entry in the heap, as `Placement.note`; None without one."""


class Ready(Keyed):
    """A model that could run, in a ready queue, by its key and its model's number."""

    __slots__ = ("what",)

    def __init__(self, key: int, number: int, what: Placement | Copies) -> None:
        super().__init__(key, number)
        self.what = what


@final
class ReadyHeap:
    """A ready queue, a heap of `Ready`."""

    __slots__ = ("entries", "scale_ns", "swept_from")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.swept_from = 0
        """The number of entries from which on the void ones are dropped."""
        self.scale_ns = 0.0
        """The scale by which the entries are ranked."""


class Demand:
    """One model's demand, allocations and priority, and what the heap says of it."""

    __slots__ = (
        "allocations_ns",
        "aside",
        "bound_ns",
        "demand_ns",
        "holders",
        "notes",
        "priority_ns",
        "spread_ns",
        "wanted_ns",
        "wide",
    )

    def __init__(self) -> None:
        self.demand_ns = 0
        self.priority_ns = 0
        self.wanted_ns = 0
        """The priority if it is positive and the model can be loaded, else 0."""
        self.bound_ns = 0
        """The priority in the model's heap entry, at least ``wanted_ns``; 0 without one."""
        self.aside = False
        self.holders: list[Worker] = []
        """The workers that held the model when its demand was last allocated."""
        self.notes: list[WorkerNote] = []
        """The policy's note of each holder."""
        self.allocations_ns: list[int] = []
        """Time allocated to each holder; nothing of a wide model."""
        self.wide = False
        self.spread_ns = 0
        """Time allocated to all devices together, of a wide model."""


@final
class ModelNote:
    """Notes of a policy about a model."""

    __slots__ = (
        "boost",
        "copies",
        "counted",
        "demand",
        "known_copies",
        "offered",
        "popularity",
        "price",
        "rows",
        "slack_ns",
        "starved_ns",
        "turn",
        "unlike",
        "unlike_rows",
        "weighed",
        "weight",
        "weight_nats",
    )

    def __init__(self) -> None:
        self.offered: tuple[int, int] | None = None
        """The due instant and the size's index for which the queue was last offered to workers."""
        self.copies: dict[str, Copies] | None = None
        """The model's entries by kind of device while it is wide; None while each placement has its own."""
        self.known_copies: dict[str, Copies] | None = None
        """The same, once it was wide: void entries of each may still be in the heap."""
        self.demand: Demand | None = None
        """The work that waits for the model, as the load priorities count it."""
        self.popularity = 0.0
        """The decaying count of the model's requests (`Popularity`)."""
        self.boost = 0.0
        """Additional worth of the model's requests over others', in nats."""
        self.price = 0.0
        """The price that the boost follows from, in nats (`Fairness`)."""
        self.starved_ns = 0
        """Instant at which the model missed its first request since its last answer; 0 if it missed none."""
        self.turn = 0.0
        """The part of the boost for the time since then, in nats."""
        self.weighed = False
        """True if the model's weight is known here."""
        self.weight = 1.0
        """Weight of an answer of the model, in answers of others."""
        self.weight_nats = 0.0
        """Its logarithm, which the boost has, too."""
        self.counted = False
        """True if the model counts among those with waiting requests."""
        self.rows = self.slack_ns = 0
        """The rows and the time of the latest request that was unlike the one before it."""
        self.unlike = 0
        """Number of further requests for which the model's requests count as unlike (`Ranking.asked`)."""
        self.unlike_rows = 0
        """The same where they are unlike in rows."""


@final
class WorkerNote:
    """Notes of a policy about a worker."""

    __slots__ = ("allocated_ns", "ready", "shared")

    def __init__(self) -> None:
        self.allocated_ns = 0
        """The work that the load priorities allocate to the worker."""
        self.ready = ReadyHeap()
        """The ready queue: what the EXEC executor could run of models that few workers hold."""
        self.shared: ReadyHeap | None = None
        """The same of models that many workers hold, for all workers of the kind; None until it is asked."""


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
