"""A model on a worker, where there is more to say than that it is prepared there (Clockwork, section 5.3)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mainspring.cluster.estimates import InferTimes, LoadTime
from mainspring.messages.actions import Executed, Load

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.workers import Worker


Windowed = TypeVar("Windowed", Executed, Load)


class Slot(Generic[Windowed]):
    """One outstanding action with its current prediction."""

    __slots__ = (
        "action",
        "begin_ns",
        "duration_ns",
        "end_ns",
        "placement",
        "ready_ns",
        "size_index",
        "soonest_ns",
        "transfer_ns",
    )

    def __init__(self, action: Windowed, begin_ns: int, duration_ns: int) -> None:
        self.action: Windowed = action
        self.placement: Placement | None = None
        """Placement that an INFER runs, as it was when it was sent; None of one that a snapshot contained."""
        self.size_index = 0
        """Index of the INFER's batch size."""
        self.begin_ns = begin_ns
        self.duration_ns = duration_ns
        self.end_ns = begin_ns + duration_ns
        self.ready_ns = self.soonest_ns = action.earliest_ns
        """It is not predicted to begin before it is ready, whatever ends; nor could any action have begun
        before ``soonest_ns``."""
        self.transfer_ns = 0
        """Time for which an INFER's inputs occupy the connection to the worker, beyond ``soonest_ns``."""


class State(enum.Enum):
    """The state of a model on a worker."""

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
    """Prepared but given up: LOADs or INFERs failed again and again."""


TRANSITIONS: Final = {
    State.KNOWN: (State.PREPARING, State.PREPARED, State.RESIDENT, State.FAILED),
    State.PREPARING: (State.PREPARED, State.CLOSED, State.FAILED),
    State.CLOSED: (State.OPENING, State.PREPARING, State.RELEASING),
    State.OPENING: (State.PREPARED, State.CLOSED, State.FAILED),
    State.PREPARED: (State.LOADING, State.RESIDENT, State.BROKEN, State.RELEASING),
    State.LOADING: (State.RESIDENT, State.PREPARED, State.BROKEN),
    State.RESIDENT: (State.PREPARED, State.BROKEN),
    State.BROKEN: (State.RELEASING,),
    State.RELEASING: (),
    State.FAILED: (),
}
"""The states that may follow each state; a placement whose last state has none is dropped, not changed.

A worker that joins says what is prepared and resident there, so KNOWN may become RESIDENT at once.
"""
PREPARED_STATES: Final = (State.PREPARED, State.LOADING, State.RESIDENT)
"""States of a model that a worker could run, or load."""
_PREPARED: Final = State.PREPARED
_LOADING: Final = State.LOADING
_RESIDENT: Final = State.RESIDENT


NO_BUCKETS: Final[list[Placement]] = []
"""Buckets of models without symbols: a list for each placement would take an eighth of its memory."""


class Placement:
    """One model on one worker: an object while a bit can't say it all (`cluster.residency`).

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
        self.buckets = NO_BUCKETS
        """Placements of the model's buckets, in their order."""
        self.times = times
        self.load_time = load_time
        self.state = State.KNOWN
        self.detail = ""
        self.failures = 0
        """LOADs in a row that the engine could not do."""
        self.given_up = False
        """True if it becomes BROKEN once its UNLOAD is sent."""
        self.pages: tuple[int, ...] = ()
        self.load_slot: Slot[Load] | None = None
        """The LOAD under way."""
        self.load_stalled = False
        """True if the LOAD takes far longer than predicted (`scheduler.overdue_actions`)."""
        self.infers = 0
        """INFERs outstanding, of all buckets; theirs stay 0."""
        self.last_used_ns = 0
        self.leaving = False
        self.note: object = None
        """The policy's own, None at first and once the worker is gone."""
        self.backlog_key: int | None = None
        self.usable = False
        """True if INFERs may be sent, now or once the LOAD under way ends (`Model.usable` has those)."""

    def enter(self, state: State, load_slot: Slot[Load] | None = None) -> None:
        """Have the model in another state on the worker; ``load_slot`` while it is LOADING.

        Raises AssertionError if the state may not follow the present one (`TRANSITIONS`).
        """
        assert state in TRANSITIONS[self.state], f"{self}: it can't be {state.value} next"
        self.make_up(state, load_slot)

    def make_up(self, state: State, load_slot: Slot[Load] | None = None) -> None:
        """Note where the model is on the worker from now on; ``load_slot`` while it is LOADING."""
        worker, model = self.worker, self.model
        worker.prepared += (state in PREPARED_STATES) - (self.state in PREPARED_STATES)
        if state is _PREPARED:
            model.prepared |= worker.bit
            worker.fleeting.append(self)
        elif self.state is _PREPARED:
            model.prepared &= ~worker.bit
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
        self.model.prepared &= ~self.worker.bit
        self.model.placements.pop(self.worker.name, None)
        self.usable = False
        self.model.register(self)
        for bucket in self.buckets:
            bucket.lose()

    def consider(self) -> None:
        """Find whether INFERs may be sent now."""
        held = self.state is _RESIDENT or self.state is _LOADING
        self.usable = held and not self.leaving and not self.worker.draining
        self.usable = self.usable and self.model.may_run_on(self.worker)
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
        """Return the placements whose models have queues: the buckets', or this one without symbols."""
        return self.buckets or [self]

    @property
    def stalled(self) -> bool:
        """Return whether its LOAD, or the action on EXEC, has stalled, so that it can't be counted on."""
        return self.load_stalled or self.worker.stalled

    @property
    def hopeless(self) -> bool:
        """Return whether the model will never run on the worker as it is."""
        return self.failed or self.model.pages_on(self.worker) > self.worker.pages.size

    @property
    def failed(self) -> bool:
        """Return whether the model was given up on the worker; ``detail`` says why."""
        return self.state is State.FAILED or self.state is State.BROKEN

    @property
    def plain(self) -> bool:
        """Return whether one bit describes it completely: whether the model is prepared on the worker."""
        return (
            (self.state is _PREPARED or self.state is State.KNOWN)
            and not (self.pages or self.detail or self.failures or self.given_up)
            and not (self.last_used_ns or self.infers)
            and self.leaving == self.worker.stopping
            and self.note is None
        )

    @property
    def loadable(self) -> bool:
        """Return whether a LOAD may be sent."""
        worker = self.worker
        idle = self.state is _PREPARED and self.base.infers == 0
        stays = not (self.leaving or worker.draining or worker.retiring)
        return idle and stays and self.model.may_run_on(worker)

    @property
    def stays(self) -> bool:
        """Return whether it may not be evicted: it is the last resident copy of a pinned model."""
        if not self.model.pinned:
            return False
        return not [p for p in self.model.usable.values() if p is not self and p.state is _RESIDENT]

    def at_sizes_ns(self, duration_ns: int, batch_size: int, sizes: tuple[int, ...]) -> int:
        """Return how long a batch of a bucket's sizes takes if it takes a duration at the ceilings."""
        part, whole = self.model.base.share(self.worker.kind, batch_size, sizes)
        return duration_ns * part // whole

    def at_ceilings_ns(self, duration_ns: int, batch_size: int, sizes: tuple[int, ...]) -> int:
        """Return how long a batch takes at the bucket's ceilings if it takes a duration at these sizes.

        It is rounded up: `at_sizes_ns` has the duration back.
        """
        part, whole = self.model.base.share(self.worker.kind, batch_size, sizes)
        return -(-duration_ns * whole // part)

    def ready_ns(self, now_ns: int) -> int:
        """Return when the weights will be there: now, or at the predicted end of the LOAD under way."""
        slot = self.load_slot
        if slot is None:
            return now_ns
        end_ns = slot.end_ns + self.worker.load.pushed_ns(now_ns)
        return now_ns if end_ns < now_ns else end_ns

    def __lt__(self, other: object) -> bool:
        """Be before no other: of two entries of a heap that only differ in the object, one is void."""
        return False

    def __repr__(self) -> str:
        return (
            f"{self.model.name} on {self.worker.name}: {self.state.value}, pages {list(self.pages)}, "
            f"{self.infers} INFERs outstanding{', leaving' if self.leaving else ''}"
        )
