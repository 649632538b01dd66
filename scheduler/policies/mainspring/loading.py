"""The default policy's LOADs: what a LOAD is worth, whom it displaces, and further copies of busy models.

The load priority of Clockwork's appendix B is unfulfilled work in device time. Divided by a request's time
it is unfulfilled requests; less what their executions cost (`ExecPrice`) and divided by the LOAD's own time
it is what a LOAD brings for what it costs: a model of long executions and large weights does not go before
many small ones, and one that would displace more requests than it serves is not loaded.

Models are evicted in the order of their losses, the least first. Each worker has a heap of what is resident
on it, by a lower bound of what its eviction would lose. A LOAD looks at entries until the least loss that it
found is lower than all bounds left; mostly these are a few of a hundred or more. A loss changes with each
request for the model, each that waits for it, and each copy that comes or goes. What raises it leaves the
bound a bound, and an entry is put right once it comes up; only what lowers losses is entered at once: a copy
that makes them more than a power of two, and a request that leaves the queue, where what waits was counted.
While EXEC's time has a price, losses fall as the price or an estimate rises. So bounds are computed with
estimates that are higher and with the price as it is, and the order is made again once one of these is
exceeded. With room for a higher price there would be fewer new orders, but most bounds would be so low that
several times as many entries would be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from mainspring.cluster.estimates import Raised
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import able, at, is_everywhere
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import LoadReason
from mainspring.scheduler.alarms import Alarm, Entry, Weighted, order, pop, push
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.loads import PASSED_OVER_NS
from mainspring.scheduler.policies.mainspring.constants import (
    EVICTED_FOR_NS,
    IDLE_VICTIMS_SHARE,
    MOST_REPLICATED,
    REPLICA_SHARE,
    REPLICATED_FROM,
    REPLICATION_PAUSE_NS,
    WORTH_SCALE,
)
from mainspring.scheduler.policies.mainspring.usage import (
    ExecPrice,
    Popularity,
    Utilisation,
    least_worth_each,
    least_worth_waiting,
)
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState

_ROUNDED: Final = 1.0 - 1e-9
"""A bound is this part of what was computed, which was rounded otherwise than the loss."""
_RESIDENT: Final = State.RESIDENT
_SWEPT_FROM: Final = 64
"""An order of fewer entries is not swept."""


class Bound(Weighted):
    """A model that is resident on a worker, by a lower bound of what its eviction loses."""

    __slots__ = ("placement", "void", "waits")

    def __init__(self, bound: float, placement: Placement) -> None:
        super().__init__(bound, placement.model.number)
        self.placement = placement
        self.void = False
        """True if another entry stands in its place."""
        self.waits = False
        """True if what waits for the model is counted, so that it is known to `Losses.lowered`."""


class Found(Weighted):
    """A placement by what its eviction loses."""

    __slots__ = ("placement",)

    def __init__(self, loss: float, placement: Placement) -> None:
        super().__init__(loss, placement.model.number)
        self.placement = placement


class Order:
    """The models that are resident on a worker, by a lower bound of what the eviction of each loses."""

    __slots__ = ("bounds", "entries", "price", "raised", "renewals")

    def __init__(self, price: float, raised: int, renewals: int) -> None:
        """Begin without entries."""
        self.entries: list[Entry] = []
        self.bounds: dict[str, Bound] = {}
        """Each model's valid entry; the heap's other entries are void."""
        self.price = price
        """EXEC's price up to which they hold."""
        self.raised = raised
        """Number of times that estimates had exceeded what they were computed with; 0 where the price is
        0."""
        self.renewals = renewals
        """Number of times that counts of requests had been scaled down then."""

    def enter(self, bound: float, placement: Placement) -> None:
        """Enter a placement by its bound, instead of any other that it has."""
        entries, bounds, name = self.entries, self.bounds, placement.model.name
        known = bounds.get(name)
        if known is not None:
            if known.key == bound and known.placement is placement:
                return
            known.void = True
        bounds[name] = entry = Bound(bound, placement)
        push(entries, entry)
        if len(entries) > 2 * len(bounds) + _SWEPT_FROM:
            entries[:] = [each for each in entries if not cast(Bound, each).void]
            order(entries)


class Losses:
    """The losses by evictions, and each worker's order by them."""

    def __init__(self, popularity: Popularity, price: ExecPrice, raised: Raised) -> None:
        """``raised`` counts for the cluster's estimates."""
        self._popularity = popularity
        self._price = price
        self._raised = raised
        self._orders: dict[str, Order] = {}
        self._waiting: dict[int, list[Bound]] = {}
        """Entries that count what waits for a model, by the model."""

    def least_first(self, worker: Worker, within_ns: int) -> LeastFirst:
        """Return what may be evicted from a worker, the least loss first, of equal ones the model that came
        first; a model that is evicted is away for a time. To be closed after use."""
        known, price = self._orders.get(worker.name), self._price.per_ns
        if known is None or not self._holds(known):
            known = self._orders[worker.name] = self._made(worker, price)
        else:
            # What was computed for a higher price holds, and is put right as it comes up.
            known.price = price
        return LeastFirst(self, known, self._popularity.expected(within_ns))

    def unpopular(self, placement: Placement) -> list[Placement]:
        """Return what may be evicted for a model that no request needs at once: models with much fewer
        requests together, and none that wait.

        Those with the fewest go first; a model that another worker holds too counts half.
        """
        left = IDLE_VICTIMS_SHARE * model_note(placement.model).popularity
        wanted: list[Entry] = []
        for each in placement.worker.lru.values():
            if each.state is _RESIDENT and not each.infers:
                asked = worth(each)
                if asked <= left and not each.model.waiting:
                    wanted.append(Found(asked, each))
        order(wanted)
        chosen: list[Placement] = []
        while wanted:
            least = cast(Found, pop(wanted))
            left -= least.key
            if left < 0:
                break
            chosen.append(least.placement)
        return chosen

    def changed(self, placement: Placement) -> None:
        """Enter a model that has come to be resident on a worker, or whose copies have become so many that
        what an eviction loses has fallen below its bound."""
        model = placement.model
        copies = len(model.usable)
        if copies > 1 and not (copies - 1) & (copies - 2):
            # Also where nothing may begin for now: what is resident there loses less, too.
            for each in model.placements.values():
                self._enter(each)
        elif placement.model.name in placement.worker.lru:
            self._enter(placement)

    def lowered(self, model: Model) -> None:
        """Enter a model without what waits for it where that was counted: requests have left its queue."""
        counted = self._waiting.pop(model.number, None) if self._waiting else None
        if counted is None:
            return
        for entry in counted:
            entry.waits = False
            known = self._orders.get(entry.placement.worker.name)
            if known is not None and known.bounds.get(model.name) is entry:
                known.enter(bound_of(entry.placement, known.price), entry.placement)

    def raised(self, entry: Bound, bound: float, price: float, away: float) -> float:
        """Return a bound that counts what waits for a model as well, for as long as all of that waits."""
        model = entry.placement.model
        waiting = least_worth_waiting(model, price) if away else 0.0
        if not waiting:
            return bound
        if not entry.waits:
            entry.waits = True
            self._waiting.setdefault(model.number, []).append(entry)
        copies = len(model.usable)
        if copies > 1:
            waiting /= 1 << (copies - 1).bit_length()
        return bound + _ROUNDED * waiting / away

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker, and all orders: without the estimates of its kind what remains may lose less."""
        self.forget()

    def forget(self) -> None:
        """Have all orders made again: what evictions lose may have fallen below its bounds."""
        self._orders.clear()
        self._waiting.clear()

    def validate(self, worker: Worker, within_ns: int) -> None:
        """Check that all that is resident stands in its worker's order, by no more than it would lose."""
        known = self._orders.get(worker.name)
        if known is None or not self._holds(known):
            return
        away = self._popularity.expected(within_ns)
        entered = set(known.entries)
        for name, placement in worker.lru.items():
            bound = known.bounds.get(name)
            assert bound is not None, f"{placement} is resident, and in no order of victims"
            assert bound in entered, f"{placement} counts as entered by {bound.key}"
            assert not bound.void, f"{placement} is resident, and its entry void"
            assert bound.placement is placement, f"{placement} stands as {bound.placement}"
            loss = self.loss(placement, away)
            assert away * bound.key <= loss, (
                f"{placement} stands by {away * bound.key}, and would lose {loss}"
            )

    def loss(self, placement: Placement, away: float) -> float:
        """Return what an eviction loses: what the waiting requests are worth, and those that will come before
        the model could be back, which are ``away`` times `ModelNote.popularity`.

        A copy that is one of several is that part of it.
        """
        model, price = placement.model, self._price
        note = model_note(model)
        loss = away * note.popularity
        if price.per_ns or note.weight_nats:
            loss *= price.worth_each(model, note.weight)
        if not model.buckets:
            if model.queue.rows or model.backlog:
                loss += price.worth_waiting(model)
        else:
            for bucket in model.buckets.values():
                loss += price.worth_waiting(bucket)
        copies = len(model.usable)
        return loss / copies if copies > 1 else loss

    def _made(self, worker: Worker, price: float) -> Order:
        """Return the order of what is resident on a worker, by bounds that hold up to a price."""
        made = Order(price, self._raised.count, self._popularity.renewals)
        for name, placement in worker.lru.items():
            bound = made.bounds[name] = Bound(bound_of(placement, price), placement)
            made.entries.append(bound)
        order(made.entries)
        return made

    def _holds(self, known: Order) -> bool:
        """Return whether each bound of an order is at most what is lost."""
        if known.renewals != self._popularity.renewals or self._price.per_ns > known.price:
            return False
        return not self._price.per_ns or known.raised == self._raised.count

    def _enter(self, placement: Placement) -> None:
        worker = placement.worker
        known = self._orders.get(worker.name)
        if known is not None and placement.model.name in worker.lru:
            known.enter(bound_of(placement, known.price), placement)


class LeastFirst:
    """Yields a worker's placements by what their evictions lose: none with work in flight."""

    def __init__(self, losses: Losses, order: Order, away: float) -> None:
        self._losses = losses
        self.order = order
        self._away = away
        self._known: list[Entry] = []
        """`Found` by their losses, a heap."""
        self._looked_at: list[Bound] = []
        """Entries that were taken out of the order."""

    def __iter__(self) -> Iterator[Placement]:
        """Return this."""
        return self

    def __next__(self) -> Placement:
        """Return the placement of the least loss of those left."""
        known, away = self._known, self._away
        entries, price = self.order.entries, self.order.price
        while entries:
            entry = cast(Bound, entries[0])
            if known:
                # An entry of the same bound, as that of a model which nobody asks for, goes by its number.
                least, bound = cast(Found, known[0]), away * entry.key
                if bound > least.key or (bound == least.key and entry.number > least.number):
                    break
            pop(entries)
            if entry.void:
                continue
            placement = entry.placement
            if placement.state is not _RESIDENT:
                del self.order.bounds[placement.model.name]
                continue
            bound = self._losses.raised(entry, bound_of(placement, price), price, away)
            if bound > entry.key:
                entry.key = bound
                push(entries, entry)
                continue
            self._looked_at.append(entry)
            if not placement.infers:
                push(known, Found(self._losses.loss(placement, away), placement))
        if not known:
            raise StopIteration
        return cast(Found, pop(known)).placement

    def close(self) -> None:
        """Return what was looked at to the order."""
        for entry in self._looked_at:
            push(self.order.entries, entry)
        self._looked_at.clear()


def bound_of(placement: Placement, price: float) -> float:
    """Return a lower bound of what an eviction loses, for each request that is to be expected of one, at no
    higher price of EXEC's time than one."""
    model = placement.model
    note = model_note(model)
    asked = note.popularity * _ROUNDED
    if price or note.weight_nats:
        asked *= least_worth_each(model, note.weight, price)
    copies = len(model.usable)
    return asked / (1 << (copies - 1).bit_length()) if copies > 1 else asked


def worth(placement: Placement) -> float:
    """Return the requests that a model had; a model that another worker holds too counts half."""
    asked = model_note(placement.model).popularity
    return asked / 2 if len(placement.model.usable) > 1 else asked


class WorthLoads(DemandLoads):
    """Answers `Policy.next_load` by worth, and evicts the models whose loss is least (`Losses`).

    That requests wait says little by itself: where some have to be dropped, those of the models that are
    worth least wait longest.
    """

    def __init__(self, state: SchedulerState, popularity: Popularity, price: ExecPrice) -> None:
        super().__init__(state)
        self._price = price
        self.losses = Losses(popularity, price, state.cluster.estimates.raised)
        """The losses by evictions."""
        self._worth_again_ns = 0

    def worth(self, model: Model, priority_ns: int) -> int:
        """Return the worth of unfulfilled rows for each nanosecond of LOAD, scaled; at least 1.

        1 stands for a LOAD that is not worth its executions: it keeps its place behind all others.
        """
        cost = single_ns = load_ns = 0
        for kind, times in model.infer_times.items():
            here = times.ns[0] * model.load_times[kind].ns
            if not cost or here < cost:
                cost, single_ns, load_ns = here, times.ns[0], model.load_times[kind].ns
        rows = priority_ns / max(1, single_ns) * model.spec.batch_sizes[0]
        return max(1, int(WORTH_SCALE * self._price.worth(model, rows) / max(1, load_ns)))

    def take(self, now_ns: int) -> Model | None:
        """Take out the model whose LOAD brings most; None too if no LOAD is worth its executions for now."""
        model = super().take(now_ns)
        demand = None if model is None else model_note(model).demand
        if model is None or demand is None:
            return None
        if self.worth(model, demand.priority_ns) > 1:
            return model
        self.put_back(model)
        if now_ns >= self._worth_again_ns:
            # The price falls as time passes, with nothing else to say so.
            self._worth_again_ns = now_ns + PASSED_OVER_NS
            self._state.alarms.set(self._worth_again_ns, Alarm.RETRY)
        return None

    def find_pages(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model that requests wait for."""
        victims = self.losses.least_first(placement.worker, EVICTED_FOR_NS)
        plan = plan_load(placement, victims=victims)
        victims.close()
        return plan

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Forget what could be evicted from a worker, and let the demand for its models go to the others."""
        super().worker_left(now_ns, worker)
        self.losses.worker_left(worker)

    def validate(self) -> None:
        """Check the orders of victims, too."""
        super().validate()
        for worker in self._state.cluster.workers.values():
            self.losses.validate(worker, EVICTED_FOR_NS)


class Replication:
    """Loads further copies of models that are only where others keep EXEC busy.

    The load priority of appendix B asks whether a device can do all that is allocated to it before the
    deadlines. A model with few requests, on a device that a busy model fills, asks for next to nothing: by
    that measure it never needs another device, and yet each of its requests waits for the other's batches,
    and some in vain. While a LOAD executor is idle, such a model is loaded on a device that has less than
    half as much to do, into free pages or over models with much fewer requests (`Losses.unpopular`).

    It is no `ModelQueue`: a model whose copy finds no room leaves and pauses the search instead of going to
    the end, and copies come before missed models, since the policy is asked first.
    """

    def __init__(self, state: SchedulerState, losses: Losses, utilisation: Utilisation) -> None:
        self._state = state
        self._losses = losses
        self._utilisation = utilisation
        self._wanted: dict[int, Model] = {}
        self._paused_until_ns = 0

    def asked(self, now_ns: int, model: Model) -> None:
        """Note that requests wait for a model: if it is on busy devices alone it should have another."""
        usable = model.usable
        if not usable or now_ns < self._paused_until_ns or is_everywhere(self._state.cluster, model):
            return
        if len(self._wanted) >= MOST_REPLICATED:
            return
        for placement in usable.values():
            if self._utilisation.of(now_ns, placement.worker) < REPLICATED_FROM:
                return
        self._wanted[model.number] = model
        self._state.wants_loads()

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load the model that was noted first on the least busy device with an idle LOAD."""
        state, wanted = self._state, self._wanted
        while wanted and state.may_load_idly and now_ns >= self._paused_until_ns:
            model = wanted.pop(next(iter(wanted)))
            if not state.cluster.serves(model) or not model.usable:
                continue
            plan = self._plan(now_ns, model)
            if plan is not None:
                plan.idle = True
                plan.reason = LoadReason.REPLICATION
                return plan
            self._paused_until_ns = now_ns + REPLICATION_PAUSE_NS
        return None

    def _least(self, now_ns: int, model: Model) -> float:
        """Return the utilisation of the least busy device that holds a model."""
        least = 2.0
        for placement in model.usable.values():
            least = min(least, self._utilisation.of(now_ns, placement.worker))
        return least

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        most = REPLICA_SHARE * self._least(now_ns, model)
        best: Worker | None = None
        best_share, best_number = most, 0
        for worker in able(model, self._state.with_room()):
            if len(worker.load) or model.pages_on(worker) > worker.pages.size:
                continue
            share = self._utilisation.of(now_ns, worker)
            if share < best_share or (share == best_share and worker.number < best_number):
                best, best_share, best_number = worker, share, worker.number
        if best is None:
            return None
        placement = at(self._state.cluster, model.base, best)
        return plan_load(placement, victims=self._losses.unpopular(placement))
