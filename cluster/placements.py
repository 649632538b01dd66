"""Models, workers, and where each model is on each worker.

Clockwork, section 5.3: memory state and pending actions.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from typing import Final

from mainspring.cluster.counts import RequestCounts
from mainspring.cluster.estimates import InferTimes, LoadTime
from mainspring.cluster.pages import PageTable
from mainspring.cluster.requests import DeadlineQueue, Request
from mainspring.cluster.seeds import indices_by_rows, profile_of
from mainspring.cluster.timeline import ExecTimeline, Slot, Timeline
from mainspring.messages.actions import Action, Load, Prepare, Release, Unload
from mainspring.messages.curve import Curve
from mainspring.messages.model import MOST_BUCKETS, ModelSpec


class State(enum.Enum):
    """Where a model is on a worker."""

    KNOWN = "known"
    PREPARING = "preparing"
    CLOSED = "closed"
    """The weights are in place, and EXEC has yet to open the executable."""
    OPENING = "opening"
    FAILED = "failed"
    """PREPARE failed, or was never tried; it is tried when the worker joins or the model is added again."""
    PREPARED = "prepared"
    LOADING = "loading"
    RESIDENT = "resident"
    RELEASING = "releasing"
    BROKEN = "broken"
    """Like FAILED, but prepared: LOADs or INFERs failed again and again."""


PREPARED_STATES: Final = (State.PREPARED, State.LOADING, State.RESIDENT)
"""Those of a model that a worker could run, or load."""
_PREPARED: Final = State.PREPARED
_LOADING: Final = State.LOADING
_RESIDENT: Final = State.RESIDENT


_NO_BUCKETS: Final[list[Placement]] = []
"""Of models without symbols: a list for each placement would be an eighth of what it takes."""


class Placement:
    """One model on one worker.

    A model with symbols has beside it one for each bucket, with the bucket's estimates; where the weights are
    is said by the model's own, and theirs are kept equal.
    """

    __slots__ = (
        "backlog_key",
        "buckets",
        "detail",
        "failures",
        "given_up",
        "infers",
        "last_used_ns",
        "leaving",
        "load_slot",
        "load_stalled",
        "load_time",
        "model",
        "note",
        "of",
        "pages",
        "state",
        "times",
        "usable",
        "worker",
    )

    def __init__(self, model: Model, worker: Worker, times: InferTimes, load_time: LoadTime) -> None:
        self.model = model
        self.worker = worker
        self.of: Placement | None = None
        """The model's own, of a bucket's."""
        self.buckets = _NO_BUCKETS
        """Those of the model's buckets, in their order."""
        self.times = times
        self.load_time = load_time
        self.state = State.KNOWN
        self.detail = ""
        self.failures = 0
        """LOADs in a row that the engine could not do."""
        self.given_up = False
        """Whether it is BROKEN once its UNLOAD is sent."""
        self.pages: tuple[int, ...] = ()
        self.load_slot: Slot[Load] | None = None
        """The LOAD under way."""
        self.load_stalled = False
        """Whether it takes far longer than predicted (`stalls`)."""
        self.infers = 0
        """INFERs outstanding, of all buckets; theirs stay 0."""
        self.last_used_ns = 0
        self.leaving = False
        self.note: object = None
        """The policy's own, None at first and once the worker is gone."""
        self.backlog_key: int | None = None
        self.usable = False
        """Whether INFERs may be sent, now or once the LOAD under way ends; `Model.usable` has those."""

    def enter(self, state: State, load_slot: Slot[Load] | None = None) -> None:
        """Note where the model is on the worker from now on; ``load_slot`` while it is LOADING."""
        self.worker.prepared += (state in PREPARED_STATES) - (self.state in PREPARED_STATES)
        self.state = state
        self.load_slot = load_slot
        self.consider()
        if self.load_stalled:
            self.count_on_load(stalled=False)

    def count_on_load(self, *, stalled: bool) -> None:
        """Note whether the LOAD under way has stalled, or no longer has."""
        for each in (self, *self.buckets):
            each.load_stalled = stalled
            each.model.recount()

    def leave(self) -> None:
        """Note that the model is to be taken off the worker."""
        self.leaving = True
        self.consider()

    def lose(self) -> None:
        """Note that the worker is gone."""
        self.note = self.backlog_key = None
        self.model.placements.pop(self.worker.name, None)
        self.usable = False
        self.model.register(self)
        for bucket in self.buckets:
            bucket.lose()

    def consider(self) -> None:
        """Find whether INFERs may be sent now."""
        held = self.state is _RESIDENT or self.state is _LOADING
        self.usable = held and not self.leaving and not self.worker.draining
        self.model.register(self)
        for bucket in self.buckets:
            bucket.state, bucket.load_slot, bucket.leaving = self.state, self.load_slot, self.leaving
            bucket.consider()

    @property
    def base(self) -> Placement:
        """The model's own: that of a bucket, or this one."""
        return self if self.of is None else self.of

    @property
    def by_bucket(self) -> list[Placement]:
        """Those whose models have queues: the buckets', or this one if the model has no symbols."""
        return self.buckets or [self]

    @property
    def stalled(self) -> bool:
        """Whether what is usable can't be counted on: its LOAD, or what EXEC runs, has stalled."""
        return self.load_stalled or self.worker.stalled

    @property
    def hopeless(self) -> bool:
        """Whether the model will never run on the worker as it is."""
        return self.failed or self.model.pages > self.worker.pages.size

    @property
    def barred(self) -> bool:
        """Whether the model will not run on the worker: it never can, or an operator had that drained."""
        return self.worker.draining or self.hopeless

    @property
    def failed(self) -> bool:
        """Whether the model was given up on the worker; ``detail`` says why."""
        return self.state is State.FAILED or self.state is State.BROKEN

    @property
    def loadable(self) -> bool:
        """Whether a LOAD may be sent."""
        idle = self.state is _PREPARED and self.base.infers == 0
        return idle and not self.leaving and not self.worker.draining

    @property
    def stays(self) -> bool:
        """Whether it may not be evicted: it is the last copy of a model that is kept, but for those that are
        on their way."""
        if not self.model.pinned:
            return False
        return not [p for p in self.model.usable.values() if p is not self and p.state is _RESIDENT]

    def at_sizes_ns(self, duration_ns: int, batch_size: int, sizes: tuple[int, ...]) -> int:
        """Return how long a batch of a bucket's sizes takes if it takes a duration at the ceilings."""
        part, whole = self.model.base.share(self.worker.device_kind, batch_size, sizes)
        return duration_ns * part // whole

    def at_ceilings_ns(self, duration_ns: int, batch_size: int, sizes: tuple[int, ...]) -> int:
        """Return how long a batch takes at the bucket's ceilings if it takes a duration at these sizes.

        It is rounded up: `at_sizes_ns` has the duration back.
        """
        part, whole = self.model.base.share(self.worker.device_kind, batch_size, sizes)
        return -(-duration_ns * whole // part)

    def ready_ns(self, now_ns: int) -> int:
        """Return when the weights will be there: now, or at the predicted end of the LOAD under way."""
        slot = self.load_slot
        if slot is None:
            return now_ns
        end_ns = slot.end_ns + self.worker.load.pushed_ns(now_ns)
        return now_ns if end_ns < now_ns else end_ns

    def __repr__(self) -> str:
        return (
            f"{self.model.name} on {self.worker.name}: {self.state.value}, pages {list(self.pages)}, "
            f"{self.infers} INFERs outstanding{', leaving' if self.leaving else ''}"
        )


class Model:
    """One model: its queues, and its placements in the order that workers joined.

    One with symbols has a model for each bucket of shapes, with queues and estimates of its own: policies
    look at those, and know nothing of shapes. The queues of the model itself stay empty then.
    """

    __slots__ = (
        "backlog",
        "buckets",
        "counts",
        "curves",
        "held",
        "holders",
        "index_of",
        "infer_times",
        "load_times",
        "max_rows",
        "name",
        "note",
        "number",
        "of",
        "overdue",
        "pages",
        "pinned",
        "placements",
        "queue",
        "spec",
        "usable",
        "where",
    )

    def __init__(self, spec: ModelSpec, number: int, of: Model | None = None) -> None:
        """``of`` is the model that this one is a bucket of."""
        self.spec = spec
        self.name = spec.name
        self.number = number
        self.of = of
        self.pages = spec.pages
        self.max_rows = spec.max_rows
        self.index_of = indices_by_rows(spec.batch_sizes)
        """For each number of rows up to ``max_rows``, the index of the smallest batch size that holds it."""
        self.queue = DeadlineQueue()
        self.backlog: deque[Request] = deque()
        """Best-effort requests, the oldest first."""
        self.placements: dict[str, Placement] = {}
        self.usable: dict[str, Placement] = {}
        """The placements that are resident or loading."""
        self.held = 0
        """The same as a set: the `Worker.bit` of each of their workers."""
        self.holders: list[Worker] = []
        """The workers of those that have not stalled, in the same order; a new list after each change."""
        self.note: object = None
        """The policy's own."""
        self.overdue: dict[str, int] | None = None
        """For each worker, by name, how often in a row an INFER took so long that the worker was dropped."""
        self.pinned = False
        """Whether it is kept resident somewhere because an operator wants it (`pins`)."""
        self.where: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
        """The status's own note, until a placement changes: where it is prepared, resident, and failed."""
        self.infer_times: dict[str, InferTimes] = {}
        """Estimates on each kind of device that a worker of the cluster has."""
        self.load_times: dict[str, LoadTime] = {}
        """Likewise."""
        self.curves: dict[str, Curve] = {}
        """How durations follow sizes on each kind of device that was asked about; `share` has its use."""
        self.counts: RequestCounts = RequestCounts() if of is None else of.counts
        self.buckets: dict[tuple[int, ...], Model] = {}
        """By their ceilings; empty for a model without symbols."""
        for ceilings in spec.buckets if spec.symbols else ():
            self.buckets[ceilings] = Model(spec.at(ceilings), 0, self)
        self.give_number(number)

    def give_number(self, number: int) -> None:
        """Have a number, and each bucket a negative one that is no other model's."""
        self.number = number
        for index, bucket in enumerate(self.buckets.values()):
            bucket.number = -(MOST_BUCKETS * number + index + 1)

    @property
    def base(self) -> Model:
        """The model that this one is a bucket of, or itself."""
        return self if self.of is None else self.of

    @property
    def by_bucket(self) -> list[Model]:
        """What has queues: the buckets, or the model if it has no symbols."""
        return list(self.buckets.values()) or [self]

    def find(self, sizes: tuple[int, ...]) -> Model | None:
        """Return the bucket that a request of these sizes belongs to, or the model if it has no symbols.

        None if the model does not take such sizes.
        """
        if not self.buckets:
            return None if sizes and self.number else self
        try:
            return self.buckets[self.spec.bucket_of(sizes)]
        except ValueError:
            return None

    def share(self, kind: str, batch_size: int, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return how long a batch of these sizes takes to how long one takes at its bucket's ceilings.

        ``sizes`` are within the limits of this model's symbols. Where nothing was profiled both are 1.
        """
        curve = self.curves.get(kind)
        if curve is None:
            profile = profile_of(kind, self.spec)
            if profile is None:
                return 1, 1
            curve = self.curves[kind] = Curve(self.spec, profile)
        return curve.share(batch_size, sizes)

    def count_on(self, counts: RequestCounts) -> None:
        """Count requests on from what another model has counted."""
        for model in (self, *self.buckets.values()):
            model.counts = counts

    def register(self, placement: Placement) -> None:
        """Enter a placement that became usable, or remove one that no longer is."""
        name, usable = placement.worker.name, self.usable
        self.where = None
        if placement.usable:
            if usable.get(name) is placement:
                return
            usable[name] = placement
            self.held |= placement.worker.bit
        elif usable.pop(name, None) is None:
            return
        else:
            self.held &= ~placement.worker.bit
        self.recount()

    def recount(self) -> None:
        """Find which workers hold the model and make progress with it."""
        self.holders = [placement.worker for placement in self.usable.values() if not placement.stalled]

    @property
    def hopeless(self) -> bool:
        """Whether no worker will ever run it; a model that just replaced another has no placement yet."""
        return bool(self.placements) and all(each.hopeless for each in self.placements.values())

    @property
    def waiting(self) -> int:
        """Queued requests, with a deadline or without; those of all buckets."""
        if self.buckets:
            return sum([bucket.waiting for bucket in self.buckets.values()])
        return len(self.queue.dues) + len(self.backlog)

    @property
    def waiting_idly(self) -> bool:
        """Whether any of them has no deadline."""
        if self.buckets:
            return sum([len(bucket.backlog) for bucket in self.buckets.values()]) > 0
        return len(self.backlog) > 0

    def fastest_ns(self, rows: int) -> int:
        """Return the shortest estimate of a batch of ``rows`` rows on any kind of device in the cluster.

        From when an action without inputs could begin: it includes the time that the inputs take.
        """
        fastest_ns, index = 0, self.index_of[rows]
        for times in self.infer_times.values():
            duration_ns = times.ns[index] + times.transfer_ns[index]
            if duration_ns < fastest_ns or not fastest_ns:
                fastest_ns = duration_ns
        return fastest_ns


class Worker:
    """One worker: its pages, its executors' timelines, its placements."""

    __slots__ = (
        "bit",
        "device_kind",
        "draining",
        "exec",
        "exec_alarm_ns",
        "held_for",
        "held_until_ns",
        "lead_ns",
        "load",
        "load_alarm_ns",
        "lru",
        "name",
        "note",
        "number",
        "others",
        "pages",
        "placements",
        "prepare_queue",
        "prepared",
        "prepares",
        "stall_alarm_ns",
        "stalled",
        "stopping",
        "watched",
    )

    def __init__(self, name: str, number: int, device_kind: str, pages: int, grace_ns: int = 0) -> None:
        """``grace_ns`` is how long results are on their way."""
        self.name = name
        self.number = number
        self.bit = 1 << number
        """Stands for the worker in sets of workers, which are ints; `Cluster.seat` gives it a low one."""
        self.device_kind = device_kind
        self.pages = PageTable(pages)
        self.exec = ExecTimeline(grace_ns)
        self.load: Timeline[Load] = Timeline(grace_ns)
        self.others: dict[int, tuple[Unload | Prepare | Release, int]] = {}
        """Outstanding actions without a window, with the instant they were sent."""
        self.placements: dict[str, Placement] = {}
        self.lru: OrderedDict[str, Placement] = OrderedDict()
        """Resident placements, the least recently used first."""
        self.prepare_queue: OrderedDict[str, None] = OrderedDict()
        self.prepares = 0
        """PREPAREs outstanding."""
        self.prepared = 0
        """Models in one of `PREPARED_STATES`."""
        self.lead_ns = 0
        """How much earlier than by the lookahead EXEC is asked for work, so that inputs travel meanwhile."""
        self.exec_alarm_ns: int | None = None
        """The nearest alarm that will look at the EXEC executor."""
        self.load_alarm_ns: int | None = None
        """The nearest alarm that will look at the LOAD executor."""
        self.held_until_ns = 0
        """Until when the policy keeps the EXEC executor free for a batch that is to grow."""
        self.held_for: Model | None = None
        """The model of that batch, if other workers that hold the model would wait for it too."""
        self.stopping = False
        """Whether it said that it begins nothing more."""
        self.stalled = False
        """Whether what EXEC is at takes far longer than predicted (`stalls`)."""
        self.stall_alarm_ns: int | None = None
        """The nearest alarm that will look for that."""
        self.draining = False
        """Whether an operator wants nothing more sent to it."""
        self.watched = False
        """Whether an alarm will look for owed results."""
        self.note: object = None
        """The policy's own."""

    def find(self, name: str, sizes: tuple[int, ...]) -> Placement:
        """Return the placement of a model, by its name, or of its bucket of these sizes; raise KeyError."""
        placement = self.placements[name]
        if not placement.buckets:
            return placement
        bucket = placement.model.find(sizes)
        return placement if bucket is None else bucket.placements[self.name]

    def has(self, placement: Placement) -> bool:
        """Return whether a placement is still the worker's."""
        return self.placements.get(placement.base.model.name) is placement.base

    def outstanding(self, action_id: int) -> tuple[Action, int] | None:
        """Return an outstanding action with the instant at which it was sent, or None."""
        executed = self.exec.get(action_id)
        if executed is not None:
            return executed.action, executed.action.earliest_ns
        load = self.load.get(action_id)
        if load is not None:
            return load.action, load.action.earliest_ns
        return self.others.get(action_id)

    def forget(self) -> None:
        """Drop the placements of a worker that is gone, and the policy's note.

        They point back to it: without this only a garbage collection would free them.
        """
        for placement in self.placements.values():
            placement.buckets = _NO_BUCKETS
        self.placements.clear()
        self.lru.clear()
        self.note = None

    @property
    def open(self) -> bool:
        """Whether it takes new work."""
        return not self.stopping and not self.draining
