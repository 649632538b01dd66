"""Models: what is served, with what waits for it, and on which workers it is.

Clockwork, section 5.3: memory state and pending actions. Thousands of models on hundreds of workers are
millions of pairs, nearly all of which say nothing but that the model is prepared there, or not yet. So a
pair has an object (`Placement`) only while there is more to say, and otherwise a bit (`Model.prepared`);
`cluster.residency` answers for both.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mainspring.cluster.estimates import InferTimes, LoadTime
from mainspring.cluster.requests import DeadlineQueue, Request
from mainspring.cluster.seeds import indices_by_rows, profile_of
from mainspring.messages.curve import Curve
from mainspring.messages.metrics import Outlier
from mainspring.messages.model import MOST_BUCKETS, ModelSpec
from mainspring.messages.operating import AssignModel
from mainspring.messages.queries import piece_rows
from mainspring.messages.targets import each_build, kinds_build

if TYPE_CHECKING:
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.workers import Worker


class RequestCounts:
    """Counts of a model's requests since it was added; a model that replaces it counts on."""

    __slots__ = ("arrived", "finished", "late", "outlier", "rejected", "slo_ns")

    def __init__(self, arrived: int = 0, finished: int = 0, late: int = 0, rejected: int = 0) -> None:
        self.arrived = arrived
        self.finished = finished
        """Requests executed by their deadline; best-effort ones count too."""
        self.late = late
        self.rejected = rejected
        """Requests given up by the scheduler, on arrival or later."""
        self.slo_ns: int | None = None
        """The time to its deadline that the newest one had when it came; None if it had no deadline."""
        self.outlier: Outlier | None = None
        """The last INFER or LOAD that took so much longer than expected that no estimate follows it."""

    def came(self, now_ns: int, deadline_ns: int | None) -> None:
        """Count a request."""
        self.arrived += 1
        self.slo_ns = None if deadline_ns is None else deadline_ns - now_ns

    def stood_out(self, now_ns: int, worker: str, action_id: int, duration_ns: int, expected_ns: int) -> None:
        """Note an INFER or LOAD that took so much longer than expected that no estimate follows it alone."""
        count = 1 if self.outlier is None else self.outlier.count + 1
        self.outlier = Outlier(now_ns, worker, action_id, duration_ns, expected_ns, count)


class Losses:
    """Workers in a row that were lost at actions of a model, with none between that ended well."""

    __slots__ = ("action", "by_action", "last_ns", "worker")

    def __init__(self, by_action: dict[str, int], last_ns: int, worker: str = "", action: str = "") -> None:
        self.by_action = by_action
        """Their number by the kind of action."""
        self.last_ns = last_ns
        """Time of the last loss that was counted."""
        self.worker = worker
        """The worker that it was; empty once that has come back without having ended."""
        self.action = action
        """The kind of action that it was at."""


class KnownKinds:
    """The kinds of devices in a cluster, as a model knows of them (`cluster.device_kinds.DeviceKinds`)."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0
        """Number of changes so far."""

    def catch_up(self, model: Model) -> None:
        """Have a model, and what it is a bucket of or has as buckets, know of all changes."""
        raise NotImplementedError


class Model:
    """One model: its queues, and where it is.

    One with symbols has a model for each bucket of shapes, with queues and estimates of its own: policies
    read those, and know nothing of shapes. The queues of the model itself stay empty then.
    """

    __slots__ = (
        "_infer_times",
        "_load_times",
        "absent",
        "assignment",
        "backlog",
        "buckets",
        "counts",
        "curves",
        "device_kinds",
        "held",
        "holders",
        "index_of",
        "losses",
        "max_rows",
        "name",
        "note",
        "number",
        "of",
        "of_kinds",
        "overdue",
        "pages",
        "piece_rows",
        "pinned",
        "placements",
        "prepared",
        "queue",
        "seen",
        "spec",
        "usable",
        "where",
    )

    note: object
    """The policy's own."""
    assignment: AssignModel | None
    """Wish for workers of its own (`cluster.assigning`)."""

    def __init__(self, spec: ModelSpec, number: int, of: Model | None = None) -> None:
        """``of`` is the model that this one is a bucket of."""
        self.spec = spec
        self.name = spec.name
        self.of = of
        self.of_kinds: dict[str, ModelSpec] = {}
        """Model as each kind of workers runs it; only of a model with artifacts for unlike hosts."""
        self.pages = max([build.pages for build in each_build(spec)])
        """Pages of the largest artifact."""
        self.max_rows = spec.max_rows
        self.piece_rows = piece_rows(spec)
        self.index_of = indices_by_rows(spec.batch_sizes)
        """Index of the smallest batch size that holds a number of rows, for each number to ``max_rows``."""
        self.queue = DeadlineQueue()
        self.backlog: deque[Request] = deque()
        """Best-effort requests, the oldest first."""
        self.placements: dict[str, Placement] = {}
        """Placements that `prepared` does not describe completely, by worker, in no order."""
        self.prepared = self.absent = self.held = 0
        """Sets of workers (`Worker.bit`): where it is prepared and no more (a bucket's is its model's), where
        another model has its name, which it replaced and which has yet to go, and where it is ``usable``."""
        self.usable: dict[str, Placement] = {}
        """The placements that are resident or loading."""
        self.holders: list[Worker] = []
        """The workers of those that have not stalled, in the same order; a new list after each change."""
        self.note = self.assignment = None
        self.overdue: dict[str, int] | None = None
        """Number of INFERs in a row that took far too long, by worker."""
        self.losses: Losses | None = None
        """Workers that were lost at its actions."""
        self.pinned = False
        """True if it is kept resident somewhere because an operator wants it (`pins`)."""
        self.where: tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
        """The status's own note, until a placement changes: `Cluster.changes` as it was then, and where the
        model is prepared, resident, and failed."""
        self.device_kinds: KnownKinds | None = None
        """The cluster's kinds of devices while it is served."""
        self.seen = 0
        """Number of the changes in ``device_kinds`` that its estimates include, if it is served."""
        self._infer_times: dict[str, InferTimes] = {}
        self._load_times: dict[str, LoadTime] = {}
        self.curves: dict[str, Curve] = {}
        """Curve of durations over sizes on each kind of device that was asked about, for `share`."""
        self.counts: RequestCounts = RequestCounts() if of is None else of.counts
        self.buckets: dict[tuple[int, ...], Model] = {}
        """Buckets by their ceilings; empty for a model without symbols."""
        for ceilings in spec.buckets if spec.symbols else ():
            self.buckets[ceilings] = Model(spec.at(ceilings), 0, self)
        self.give_number(number)

    def give_number(self, number: int) -> None:
        """Have a number, and each bucket a negative one that is no other model's."""
        self.number = number
        for index, bucket in enumerate(self.buckets.values()):
            bucket.number = -(MOST_BUCKETS * number + index + 1)

    def on(self, kind: str) -> ModelSpec:
        """Return the model with the artifact that workers of a kind run, as its own."""
        if not self.spec.others:
            return self.spec
        found = self.of_kinds.get(kind)
        if found is None:
            found = self.of_kinds[kind] = kinds_build(kind, self.spec)
        return found

    def pages_on(self, worker: Worker) -> int:
        """Return how many pages the artifact has that a worker runs."""
        return self.on(worker.kind).pages if self.spec.others else self.pages

    @property
    def infer_times(self) -> dict[str, InferTimes]:
        """Estimates on each kind of device that a worker of the cluster has, by when the kinds came."""
        kinds = self.device_kinds
        if kinds is not None and kinds.version != self.seen:
            kinds.catch_up(self)
        return self._infer_times

    @property
    def load_times(self) -> dict[str, LoadTime]:
        """Return estimates of LOAD on each kind of device in the cluster, by when the kinds came."""
        kinds = self.device_kinds
        if kinds is not None and kinds.version != self.seen:
            kinds.catch_up(self)
        return self._load_times

    @property
    def base(self) -> Model:
        """The model that this one is a bucket of, or itself."""
        return self if self.of is None else self.of

    @property
    def by_bucket(self) -> list[Model]:
        """Return the models that have queues: the buckets, or the model if it has no symbols."""
        return list(self.buckets.values()) or [self]

    def may_run_on(self, worker: Worker) -> bool:
        """Return whether no wish for workers of their own keeps a model from a worker."""
        base = self.base
        return worker.owner == ("" if base.assignment is None else base.name)

    @property
    def most_rows(self) -> int:
        """Return how many rows may run together at most, as operators wish; 0 if they don't."""
        assignment = self.base.assignment
        return 0 if assignment is None else assignment.max_batch

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
    def waiting(self) -> int:
        """Queued requests, with a deadline or without; those of all buckets."""
        if self.buckets:
            return sum([bucket.waiting for bucket in self.buckets.values()])
        return len(self.queue.dues) + len(self.backlog)

    @property
    def waiting_idly(self) -> bool:
        """Return whether any of them has no deadline."""
        if self.buckets:
            return sum([len(bucket.backlog) for bucket in self.buckets.values()]) > 0
        return len(self.backlog) > 0

    def row_ns(self) -> int:
        """Return the least time that a row takes on any kind of device, in the batch that is best for it."""
        least_ns = 0
        for times in self.infer_times.values():
            for index, size in enumerate(times.sizes):
                each_ns = times.ns[index] // size
                if each_ns < least_ns or not least_ns:
                    least_ns = each_ns
        return least_ns

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
