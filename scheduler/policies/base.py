"""The seam between the core and a policy.

A policy sees the state and is told what changes; it answers two questions: which batch should this EXEC
executor run next, and which model should be loaded next. The core does the rest: admission, expiry,
commands, results, best-effort batches in idle time, and the state. A policy that differs from Clockwork in
what it refuses and how long it keeps a request says so by its class's variables and `Policy.give_up_ns`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.cluster.execution import Batch
from mainspring.scheduler.config import LOOKAHEAD_MS, SchedulerConfig, completed
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.options import NoOptions

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.state import SchedulerState

__all__ = ["Batch", "Policy"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy(ABC):
    """Base of every policy. All but the two questions may be left as it is.

    A policy that wants to wait with a batch has `SchedulerState.arm_exec` ask for it again, and returns None.
    """

    name: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    """Options that `SchedulerConfig.policy_options` may hold: a frozen struct whose fields have defaults."""
    lookahead_ms: ClassVar[float] = LOOKAHEAD_MS
    """Work that executors are given in advance, unless the configuration says otherwise."""
    pads_batches: ClassVar[bool] = True
    """True if batches may have empty rows, unless the configuration says otherwise."""
    idle_loads: ClassVar[bool] = True
    """True if idle LOAD executors load models that were missed, unless the configuration says otherwise."""
    refuses: ClassVar[bool] = True
    """True if a request that no plan can serve in time is refused on arrival."""
    serves_late: ClassVar[bool] = False
    """True if batches may begin that end after their requests are due."""
    gives_up_because: ClassVar[str] = "the policy keeps it no longer"
    """The reason why `give_up_ns` may come before the last dispatch that could meet a deadline; for
    clients."""

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        self.state = state
        self.options = options

    @classmethod
    def complete(cls, config: SchedulerConfig) -> SchedulerConfig:
        """Return the configuration with what it leaves to the policy."""
        return completed(config, cls.lookahead_ms, cls.pads_batches, cls.idle_loads)

    @abstractmethod
    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return what the worker's EXEC executor should begin at ``available_ns``, or None.

        Only requests with a deadline are the policy's to give; unless it serves late, each must be due at or
        after the batch's predicted end.
        """

    @abstractmethod
    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return a model to load on a worker whose LOAD executor needs work, or None."""

    def plan_idle_load(self, now_ns: int, placement: Placement) -> LoadPlan | None:
        """Return how an idle LOAD executor could load a model that was missed, or None.

        No model goes for it that was used within `SchedulerConfig.idle_load_protect_ms`.
        """
        return plan_load(placement, now_ns - self.state.ns.idle_load_protect)

    def slack_share(self, now_ns: int) -> float:
        """Return how long a batch without a deadline may block an executor, as a part of the least slack that
        requests with one had lately."""
        return 1.0

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        """Return the last instant at which a queued request is kept, or None to keep it for ever.

        ``last_start_ns`` is the last at which its dispatch could still meet its deadline. The answer may
        become later while the request waits, not earlier.
        """
        return last_start_ns

    def least_ns(self, placement: Placement, index: int, duration_ns: int) -> int:
        """Return how much time a request must have left for a batch of the size of an index to be worth
        beginning: less than its estimate, ``duration_ns``, where only a chance is asked for."""
        return duration_ns

    def held_ns(self, placement: Placement, index: int, duration_ns: int) -> int:
        """Return how long EXEC is expected to be busy with a batch of the size of an index, by estimate
        ``duration_ns``: what comes next is planned behind it."""
        return duration_ns

    def standing_ns(self, model: Model) -> int:
        """Return by which instant a usable model that requests wait for is ordered: the lower, the sooner it
        runs. It says how much work stands before the model's requests (`scheduler.overload`)."""
        return model.queue.dues[0]

    def queued(self, now_ns: int, request: Request) -> None:
        """A request with a deadline was put into its model's queue."""

    def unqueued(self, now_ns: int, request: Request) -> None:
        """A request with a deadline left its queue without being dispatched."""

    def refused(self, now_ns: int, model: Model, rows: int) -> None:
        """A request for the model was refused on arrival: no plan could serve it in time."""

    def gave_up(self, now_ns: int, request: Request) -> None:
        """A request is rejected since `give_up_ns` has passed, or too much stands before it; `unqueued` was
        called before."""

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """The batch's INFER was sent; its requests are out of the queue."""

    def executed(
        self, now_ns: int, placement: Placement, size_index: int, duration_ns: int, requests: list[Request]
    ) -> None:
        """An INFER of these requests ended well, and its EXEC took ``duration_ns``."""

    def failed(self, now_ns: int, request: Request) -> None:
        """A request with a deadline is rejected since its INFER failed and there is no time for another."""

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """A model became usable on a worker or stopped being so, or its LOAD ended."""

    def weighed(self, now_ns: int, name: str) -> None:
        """An operator said how many others' an answer of a model counts as, by what clients call it."""

    def weights_changed(self, now_ns: int, placement: Placement) -> None:
        """Tell `residency_changed` of a model, bucket by bucket if it has symbols."""
        for each in placement.by_bucket:
            self.residency_changed(now_ns, each)

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        """A worker is there, with placements for all models."""

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """A worker is gone; the state has none of its placements any more."""

    def validate(self) -> None:
        """Check what the policy keeps beside the state; raise AssertionError at the first fault."""

    def on_alarm(self, now_ns: int) -> None:
        """An alarm that the policy set, as ``state.alarms.set(when_ns, Alarm.POLICY)``, has come."""
