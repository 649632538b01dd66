"""Mainspring's own policy: the most answers in time, with a floor for every model.

*INFER.* The batch that brings most for its device time, weighed against how soon it must start (`Ranking`);
which of a model's requests it holds and how large it is maximises requests for each millisecond, padding
allowed, or follows the same weighing where they are unlike. Few models on many busy devices wait for larger
batches (`held_until_ns`). A model that is dropped too often rises (`Fairness`): the option ``fairness`` moves
between most answers and equal shares.

*LOAD* by requests for each millisecond that it takes, less what their executions cost while EXEC is short
(`ExecPrice`); the model goes whose loss is least (`WorthLoads`). Idle LOAD executors load what was missed
over models with much fewer requests (`Losses`), and further copies of what is on busy devices alone
(`Replication`).

*Lookahead.* Executors get their next action as late as its way there allows: what is decided later is
decided knowing more. Appendix B of the Clockwork paper has 5 ms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import msgspec

from mainspring.scheduler.config import SchedulerConfig, completed
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.mainspring.chances import held_ns, least_ns, long_ns
from mainspring.scheduler.policies.mainspring.constants import (
    CAPACITY_DOUBT,
    EXEC_SCARCE_FROM,
    LEAST_BEST_EFFORT_SHARE,
    LEAST_LOOKAHEAD_MS,
    LONGEST_DELAY_NS,
    LOOKAHEAD_MARGIN_MS,
    REFUSE_WRONGLY,
    SHORT_QUEUE,
    SHORTEST_DELAY_NS,
    TOLERATED_MISSES,
)
from mainspring.scheduler.policies.mainspring.heterogeneous import HeterogeneousKinds
from mainspring.scheduler.policies.mainspring.loading import Replication, WorthLoads
from mainspring.scheduler.policies.mainspring.ranking import Fairness, Ranking, set_boost
from mainspring.scheduler.policies.mainspring.usage import ExecPrice, Popularity, Utilisation
from mainspring.scheduler.policies.notes import Copies, model_note, worker_note
from mainspring.scheduler.policies.options import MainspringOptions
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy, enter, enter_copies, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.cluster.workers import Worker
    from mainspring.scheduler.state import SchedulerState


class Mainspring(ReadyQueuePolicy):
    """Density against urgency, with a floor."""

    name: ClassVar[str] = "mainspring"
    Options: ClassVar[type[msgspec.Struct]] = MainspringOptions
    gives_up_because: ClassVar[str] = "twice as many as could be served by its deadline wait before it"

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options, shares=True)
        assert isinstance(options, MainspringOptions)
        self._ranking = Ranking(bool(state.config.pad_batches))
        self._fairness = Fairness(options.fairness)
        self._utilisation = Utilisation(state)
        self._popularity = Popularity(state)
        self._price = ExecPrice(self._utilisation)
        self._loads = WorthLoads(state, self._popularity, self._price)
        self._replication = Replication(state, self._loads.losses, self._utilisation)
        self._heterogeneous = HeterogeneousKinds(state)
        self._distributions = options.distributions
        self._waiting = 0
        """Models with requests that wait."""

    @classmethod
    def complete(cls, config: SchedulerConfig) -> SchedulerConfig:
        """Return the configuration with what it leaves to the policy: the lookahead follows the delay, and
        requests are refused early."""
        round_trip_ms = 2 * config.dispatch_delay_ms
        lookahead_ms = max(LEAST_LOOKAHEAD_MS, round_trip_ms + LOOKAHEAD_MARGIN_MS)
        return completed(config, lookahead_ms, cls.pads_batches, cls.idle_loads, REFUSE_WRONGLY)

    def give_up_ns(self, request: Request, last_start_ns: int) -> int | None:
        """Return the last instant at which its dispatch could help, earlier for the end of a long queue."""
        if self._distributions and request.model.of is None:
            last_start_ns = self._last_chance_ns(request, last_start_ns)
        return expires_early_ns(self.state, request, last_start_ns)

    def least_ns(self, placement: Placement, index: int, duration_ns: int) -> int:
        """Return the shortest duration of a batch that has a chance, or its estimate."""
        return least_ns(placement.times, index) if self._plans_chances(placement) else duration_ns

    def held_ns(self, placement: Placement, index: int, duration_ns: int) -> int:
        """Return a long duration of a batch, or its estimate."""
        return held_ns(placement.times, index) if self._plans_chances(placement) else duration_ns

    def _plans_chances(self, placement: Placement) -> bool:
        """Return whether a model's batches on a worker are planned by how their durations are distributed.

        A bucket's durations are estimated by their shapes (`Placement.at_sizes_ns`).
        """
        return self._distributions and placement.of is None and placement.times.spreads.erratic

    def _endangered(self, now_ns: int, worker: Worker, available_ns: int, batch: Batch) -> Batch | None:
        """Return the batch of even durations to run before one of an erratic model, if it could not wait for
        that model's long batches; None otherwise."""
        times = batch.placement.times
        other = self.lowest(now_ns, worker, available_ns, even=True)
        if other is None:
            return None
        first_due_ns = min([request.due_ns for request in other.requests if request.due_ns is not None])
        behind_ns = available_ns + long_ns(times, batch.size_index)
        return other if first_due_ns < behind_ns + other.placement.times.ns[other.size_index] else None

    def _last_chance_ns(self, request: Request, last_start_ns: int) -> int:
        """Return the last instant at which dispatching a request could still give it a chance."""
        model, due_ns = request.model, request.due_ns
        assert due_ns is not None
        for times in model.infer_times.values():
            if times.spreads.erratic:
                index = model.index_of[request.rows]
                needed_ns = least_ns(times, index) + times.transfer_ns[index]
                last_start_ns = max(last_start_ns, due_ns - needed_ns - self.state.ns.dispatch_delay)
        return last_start_ns

    def queued(self, now_ns: int, request: Request) -> None:
        """Offer the model to the workers that hold it, and enter its demand."""
        model = request.model
        note = model_note(model)
        self._popularity.asked(now_ns, model)
        self._ranking.asked(request, note)
        self._fairness.asked(now_ns, note)
        if not note.weighed:
            self._weigh(model)
        if not note.counted:
            note.counted = True
            self._waiting += 1
        self.offer_all(model)
        self._loads.update(now_ns, model)
        self._replication.asked(now_ns, model)

    def weighed(self, now_ns: int, name: str) -> None:
        """Rank and load a model by its new weight."""
        for model in self.state.cluster.models.values():
            if model.spec.public_name == name:
                for each in model.by_bucket:
                    self._weigh(each)
                    self.offer_all(each)
                    self._loads.update(now_ns, each)

    def _weigh(self, model: Model) -> None:
        """Note how many others' an answer of a model counts as, by itself and for its victims' sake."""
        weight = self.state.goodput_weight(model)
        for each in (model, model.base):
            note = model_note(each)
            if note.weight != weight:
                self._loads.losses.forget()
            note.weighed, note.weight, note.weight_nats = True, weight, math.log(weight)
            set_boost(note)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request's demand back; the model's entries are put right as they come up."""
        self._left(now_ns, request.model)

    def gave_up(self, now_ns: int, request: Request) -> None:
        """Count a request that was dropped."""
        self._missed(now_ns, request.model)

    def refused(self, now_ns: int, model: Model, rows: int) -> None:
        """Count a request that nobody had the time for, or the weights."""
        self._popularity.asked(now_ns, model)
        if model.usable:
            self._missed(now_ns, model)
        else:
            self._fairness.starved(now_ns, model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Count the batch's time."""
        placement = batch.placement
        duration_ns = placement.times.ns[batch.size_index]
        self._ranking.ran(placement, duration_ns, self._fairness.dropped)
        self._utilisation.gave(now_ns, placement.worker, duration_ns)
        rows = 0
        for request in batch.requests:
            rows += request.rows
        self._price.ran(rows * model_note(placement.model).weight, duration_ns)
        self._left(now_ns, placement.model)

    def executed(
        self, now_ns: int, placement: Placement, size_index: int, duration_ns: int, requests: list[Request]
    ) -> None:
        """Learn from a measured duration, and count the requests: an answer that comes late is a miss."""
        self._ranking.learnt(placement.times, size_index)
        late_from_ns = now_ns - self.state.ns.response_margin
        late = 0
        for request in requests:
            due_ns = request.due_ns
            if due_ns is not None and due_ns < late_from_ns:
                late += 1
        if requests[0].due_ns is not None and late < len(requests):
            self._fairness.answered(placement.model, len(requests) - late)
        for _ in range(late):
            self._missed(now_ns, placement.model)

    def failed(self, now_ns: int, request: Request) -> None:
        """Count a request whose INFER failed as missed."""
        self._missed(now_ns, request.model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter the model on the worker or void its entry, and allocate its demand again."""
        super().residency_changed(now_ns, placement)
        self._loads.update(now_ns, placement.model)

    def weights_changed(self, now_ns: int, placement: Placement) -> None:
        """Tell of a model's buckets, and enter what may be evicted now."""
        super().weights_changed(now_ns, placement)
        self._loads.losses.changed(placement)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let the demand for its models go to the others."""
        super().worker_left(now_ns, worker)
        self._utilisation.worker_left(worker)
        self._loads.worker_left(now_ns, worker)

    def key(self, placement: Placement) -> int:
        """Return a lower bound of the rank of a model's batches on a worker."""
        return self._ranking.bound_ns(placement)

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return the rank of a model's densest batch on a worker, with its size and first request."""
        needed_ns = inputs_ns + placement.times.transfer_ns[0]
        begin_ns = ready_by_ns(now_ns, placement, available_ns, needed_ns)
        if begin_ns is None:
            return None
        if self._plans_chances(placement):
            return self._ranking.likeliest(placement, begin_ns, inputs_ns)
        return self._ranking.candidate(placement, begin_ns, inputs_ns)

    def offer(self, placement: Placement) -> None:
        """Enter a placement if requests wait for its model, among entries of the same scale."""
        if placement.model.queue.dues:
            self._ranking.rank_again(worker_note(placement.worker).ready)
            enter(placement, self._ranking.bound_ns(placement))

    def offer_copies(self, copies: Copies) -> None:
        """Enter a wide model if requests wait for it, among entries of the same scale."""
        if copies.model.queue.dues:
            self._ranking.rank_again(copies.heap)
            enter_copies(copies, self._ranking.bound_ns(copies.like))

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the batch of the lowest rank, unless it is better to wait with it."""
        self._ranking.rank_again(worker_note(worker).ready)
        self._ranking.rank_again(self.shared_heap(worker))
        batch = self.lowest(now_ns, worker, available_ns)
        if batch is None:
            return None
        if self._plans_chances(batch.placement):
            return self._endangered(now_ns, worker, available_ns, batch) or batch
        if self._ranking.calm and len(batch.placement.model.infer_times) > 1:
            in_order = self._heterogeneous.in_order(now_ns, available_ns, batch)
            if self._heterogeneous.left_to(now_ns, in_order or batch) is not None:
                return None
            if in_order is not None:
                return in_order
        if model_note(batch.placement.model).unlike:
            # What comes next may not fit: waiting mostly leaves the device idle.
            return batch
        utilisation = self._utilisation.share(now_ns)
        until_ns = held_until_ns(batch, available_ns, self._waiting, utilisation)
        if until_ns is None:
            return batch
        self._hold(now_ns, until_ns - self.state.ns.dispatch_delay, worker, batch.placement.model)
        return None

    def _hold(self, now_ns: int, until_ns: int, worker: Worker, model: Model) -> None:
        """Keep a worker free until an instant; of those that hold a wide model one stands for all."""
        copies = model_note(model).copies
        if copies is None:
            self.state.hold(until_ns, worker)
            return
        of_kind = copies[worker.kind]
        other, own = of_kind.held_by, self.state.timers(worker)
        waits = other is not None and other is not own and other.held_for is model
        if other is not None and waits and now_ns < other.held_until_ns <= until_ns:
            self.state.wait(other.held_until_ns, worker, model)
        else:
            of_kind.held_by = own
            self.state.hold(until_ns, worker, model)

    def validate(self) -> None:
        """Check the ready queue and the allocations."""
        super().validate()
        self._loads.validate()

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model whose LOAD serves most requests for its time, or one that others keep waiting."""
        self._price.look(now_ns, self._fairness.dropped)
        plan = self._loads.next_load(now_ns)
        return self._replication.next_load(now_ns) if plan is None else plan

    def plan_idle_load(self, now_ns: int, placement: Placement) -> LoadPlan | None:
        """Return how to load a model that was missed over others that were asked for much less.

        One that requests without a deadline wait for, or that is pinned, may also go over any that was not
        used for a while: they wait for as long as it takes, and nothing else would ever end that.
        """
        plan = plan_load(placement, victims=self._loads.losses.unpopular(placement))
        if plan is None and (placement.model.waiting_idly or placement.model.pinned):
            return super().plan_idle_load(now_ns, placement)
        return plan

    def slack_share(self, now_ns: int) -> float:
        """Return all of it while every deadline is met, and the less the more were missed lately.

        All that comes while a batch without a deadline runs waits for it, and then for one another: whether
        the slack holds both shows in what is missed. From `TOLERATED_MISSES` on only
        `LEAST_BEST_EFFORT_SHARE` is left.
        """
        return max(LEAST_BEST_EFFORT_SHARE, 1.0 - self._fairness.dropped / TOLERATED_MISSES)

    def _left(self, now_ns: int, model: Model) -> None:
        """Enter that requests left a model's queue."""
        note = model_note(model)
        if note.counted and not model.queue.dues:
            note.counted = False
            self._waiting -= 1
        self._loads.losses.lowered(model.base)
        self._loads.refresh(now_ns, model)

    def _missed(self, now_ns: int, model: Model) -> None:
        """Count a request that a model missed, for which it may rise."""
        if self._fairness.missed(now_ns, model):
            self.offer_all(model)


def held_until_ns(batch: Batch, available_ns: int, waiting_models: int, utilisation: float) -> int | None:
    """Return when a batch that could begin at an instant should begin instead, or None to begin it.

    Its requests can be served until then in a batch of the next larger size, so waiting loses none of them.
    Waiting pays where devices are nearly busy and hardly any model else could use them meanwhile: few models
    on many devices, each of which would otherwise run a small batch as soon as it is free. Elsewhere batches
    that were put off to their last moment collide there.
    """
    placement, requests = batch.placement, batch.requests
    times = placement.times
    if utilisation <= EXEC_SCARCE_FROM or waiting_models > len(placement.model.usable):
        return None
    rows = 0
    for request in requests:
        rows += request.rows
    if rows >= times.sizes[-1]:
        return None
    larger = batch.size_index + (rows == times.sizes[batch.size_index])
    first_due_ns = requests[0].due_ns
    assert first_due_ns is not None, "what the policy is given has a deadline, and is ordered by it"
    last_start_ns = first_due_ns - times.ns[larger]
    share = min(1.0, (utilisation - EXEC_SCARCE_FROM) / (1.0 - EXEC_SCARCE_FROM))
    wait_ns = min(LONGEST_DELAY_NS, int(share * (last_start_ns - available_ns)))
    return available_ns + wait_ns if wait_ns > SHORTEST_DELAY_NS else None


def expires_early_ns(state: SchedulerState, request: Request, last_start_ns: int) -> int:
    """Return the last instant at which a queued request is worth keeping, as the queue is now.

    It is ``last_start_ns``, the last at which a dispatch could meet its deadline, if few are before it. A
    thousand requests that come at once with one deadline would otherwise all be given up in one moment just
    before it, too many for all the refusals to be with their callers in time. At their best size and on every
    worker at once, batches of the model serve a limited number of rows until a deadline; a request behind
    twice as many is given up at once, so that the end of a long queue leaves early and bit by bit.
    """
    model = request.model
    if len(model.queue) <= SHORT_QUEUE or request.due_ns is None:
        return last_start_ns
    rows = model.queue.rows_before(request)
    needed_ns = rows * model.row_ns() // (CAPACITY_DOUBT * max(1, state.cluster.open_workers))
    return min(last_start_ns, request.due_ns - needed_ns)
