"""Counts and samples of an event log, taken as it passes: the part of `telemetry.summary` that sees every
record."""

from __future__ import annotations

from collections import Counter

from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, Infer, Load, Reject, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerLeft
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, ended_by
from mainspring.telemetry.samples import ActionSamples, SecondSeries, Spread


class Aggregates:
    """Counts and samples; `take` every record in order."""

    def __init__(self, start_ns: int | None, end_ns: int | None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._lifecycles = Lifecycles(on_action=self._ended)
        self._shared: Cluster | None = None
        self._last_ns = 0
        """The last request's instant."""
        self.infer, self.load = ActionSamples(), ActionSamples()
        self.spread = Spread()
        self.series = SecondSeries(start_ns)
        self.failed: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self.rows = 0
        self.cold = 0
        self.requests = 0
        self.unloads = 0
        self.lost = 0

    def new_run(self) -> None:
        """Forget how the cluster stood: the records that follow are of another run."""
        self._lifecycles.reset()

    def share(self, cluster: Cluster) -> None:
        """Read a state that is kept elsewhere, in which no event is entered before it is taken here."""
        self._shared = cluster

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Take one record in."""
        if type(entry) is not Wakeup:
            self._count(now_ns, entry)
        if self._shared is None:
            self._lifecycles.take(now_ns, entry)
        elif type(entry) is Result:
            life = ended_by(self._shared, entry)
            if life is not None:
                life.result = entry
                life.ended_ns = now_ns
                self._ended(life)

    def _count(self, now_ns: int, entry: Event | Command) -> None:
        if not self._counted(now_ns):
            return
        if type(entry) is RequestArrived:
            # Most entries are these, and of the series only its end depends on them.
            self.requests += 1
            self._last_ns = now_ns
            return
        self._reach(now_ns)
        if type(entry) is Reject:
            self.rejected[entry.reason.value] += 1
        elif type(entry) is WorkerLeft:
            self.lost += 1

    def finish(self) -> None:
        """Let the series come to its end, or to the last request where that is not known."""
        self._reach(self._last_ns if self._end_ns is None or not self._last_ns else self._end_ns)

    def _reach(self, now_ns: int) -> None:
        """Let the series come to an instant; 0 is before all."""
        if now_ns and self.series.behind(now_ns):
            cluster = self._shared or self._lifecycles.cluster
            workers = cluster.workers.values()
            pages = sum([worker.pages.size for worker in workers])
            used = sum([len(held.pages) for worker in workers for held in worker.lru.values()])
            self.series.reach(now_ns, used, pages, len(workers))

    def _counted(self, now_ns: int) -> bool:
        after_start = self._start_ns is None or now_ns >= self._start_ns
        return after_start and (self._end_ns is None or now_ns < self._end_ns)

    def _ended(self, life: ActionLife) -> None:
        """Count an action whose result has come; one that was lost has none."""
        action, result, now_ns = life.action, life.result, life.ended_ns
        if result is None or now_ns is None or not self._counted(now_ns):
            return
        if result.status is not Status.OK:
            self.failed[f"{life.kind} {result.status.value}"] += 1
        elif isinstance(action, Infer):
            self._inferred(action, result)
        elif isinstance(action, Load):
            self.load.add(action, result)
            self.series.loaded(now_ns, result.begin_ns, result.end_ns)
        elif isinstance(action, Unload):
            self.unloads += 1

    def _inferred(self, action: Infer, result: Result) -> None:
        self.infer.add(action, result)
        self.spread.add(action, result)
        self.series.executed(result.begin_ns, result.end_ns)
        self.batches[action.batch_size] += 1
        self.rows += sum(action.rows)
        self.cold += sum(action.cold)
