"""The choice of the models that workers prepare next: PREPARE runs beside serving, and there may be very many
models.

All workers share one line of models, in the order in which these came, and each has a place in it: what
stands before that is prepared there, or on its way. So a worker that joins, or a model that comes, costs no
entry for each pair of the two. Before the line go models that requests ask for, the last one first; behind it
those that are to be prepared again (`Worker.prepare_queue`). A worker that joins begins with the models that
were asked for most.

A call looks at some models and sends some PREPAREs; other workers have their turn at the next.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import nlargest
from itertools import islice
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import State
from mainspring.cluster.residency import hosts, is_known
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Prepare
from mainspring.scheduler.opening.scheduling import Openings
from mainspring.scheduler.state import SchedulerState

LOOKED_AT: Final = 256
"""Models that are looked at in a call."""
SENT_AT_ONCE: Final = 32
"""PREPAREs that are sent in a call, about."""
MOST_ASKED_FOR: Final = 64
"""Models that requests ask for and that go before all others; the rest waits in the line."""
SPARE: Final = 1_024
"""Places of models that are gone are dropped once they are as many more than half of the line."""


class Preparing:
    """Chooses PREPAREs, and sends them up to the bound on how many may be outstanding."""

    def __init__(self, state: SchedulerState, openings: Openings) -> None:
        self._state = state
        self._openings = openings
        self._line: list[Model | None] = []
        """Models in the order in which they came; None for one that is gone."""
        self._numbers: list[int] = []
        """Their numbers."""
        self._gone = 0
        """Number of those that are gone."""
        self._places: dict[str, int] = {}
        """Up to where each worker has looked at them, by its name."""
        self._asked_for: dict[str, Model] = {}
        """Models that requests ask for, the last one last."""
        self._begins_with: dict[str, list[Model]] = {}
        """Models that a worker which has just joined prepares first, by its name, the most asked for last."""
        self._turns: dict[str, Worker] = {}
        """Workers that may have PREPAREs to be sent."""
        self._looked = self._sent = 0
        """Numbers of models looked at, and of PREPAREs sent, in this call."""

    def __bool__(self) -> bool:
        """Return whether there is more to do at once."""
        return bool(self._turns)

    def come(self, now_ns: int, model: Model) -> None:
        """Have a model prepared on all workers where it is not absent."""
        self._line.append(model)
        self._numbers.append(model.number)
        self._looked = self._sent = 0
        for worker in hosts(self._state.cluster, model):
            self._go_on(now_ns, worker)

    def go(self, model: Model) -> None:
        """Have a model prepared nowhere any more."""
        index = bisect_left(self._numbers, model.number)
        self._line[index] = None
        self._asked_for.pop(model.name, None)
        self._gone += 1
        if self._gone > len(self._line) // 2 + SPARE:
            self._close_up()

    def join(self, now_ns: int, worker: Worker) -> None:
        """Have a worker prepare what it has not."""
        self._places[worker.name] = 0
        asked_for = [model for model in self._line if model is not None and model.counts.arrived]
        most = nlargest(MOST_ASKED_FOR, asked_for, key=_demand)
        if most:
            self._begins_with[worker.name] = most[::-1]
        self.next(now_ns, worker)

    def leave(self, worker: Worker) -> None:
        """Forget a worker that is gone."""
        self._places.pop(worker.name, None)
        self._begins_with.pop(worker.name, None)
        self._turns.pop(worker.name, None)

    def again(self, now_ns: int, model: Model, worker: Worker) -> None:
        """Have a model prepared on a worker from which the one that it replaces has gone."""
        if is_known(model, worker):
            worker.prepare_queue[model.name] = None
        self.next(now_ns, worker)

    def hasten(self, model: Model) -> None:
        """Prepare a model before all others: a request asks for it."""
        asked_for = self._asked_for
        asked_for.pop(model.name, None)
        asked_for[model.name] = model
        if len(asked_for) > MOST_ASKED_FOR:
            del asked_for[next(iter(asked_for))]
        for placement in model.placements.values():
            if placement.state is State.CLOSED:
                self._openings.hasten(placement)

    def next(self, now_ns: int, worker: Worker) -> None:
        """Send a worker's next PREPAREs."""
        self._looked = self._sent = 0
        self._go_on(now_ns, worker)

    def go_on(self, now_ns: int) -> None:
        """Send PREPAREs to workers that a call has not come to."""
        self._looked = self._sent = 0
        for name in list(islice(self._turns, SENT_AT_ONCE)):
            if self._looked >= LOOKED_AT or self._sent >= SENT_AT_ONCE:
                break
            self._go_on(now_ns, self._turns.pop(name))

    def validate(self) -> None:
        """Check that workers that could prepare something are about to; raise AssertionError if not."""
        cluster, most = self._state.cluster, self._state.config.prepares_in_flight
        served = [model for model in self._line if model is not None]
        assert served == list(cluster.models.values()), f"{len(served)} models are in line"
        assert self._places.keys() == cluster.workers.keys(), f"places of {list(self._places)}"
        for worker in cluster.workers.values():
            if worker.prepares >= most or not worker.open or worker.name in self._turns:
                continue
            left = [m.name for m in served if not m.absent & worker.bit and is_known(m, worker)]
            assert not left, f"{worker.name} prepares nothing, and has yet to prepare {left}"

    def _go_on(self, now_ns: int, worker: Worker) -> None:
        state = self._state
        while worker.prepares < state.config.prepares_in_flight and worker.open:
            if self._looked >= LOOKED_AT or self._sent >= SENT_AT_ONCE:
                self._turns[worker.name] = worker
                return
            model = self._first(worker)
            if model is not None:
                self._sent += 1
                state.emit(now_ns, Prepare(state.next_action_id(), worker.name, model.on(worker.kind)))
                state.watch(now_ns + state.ns.action_timeout, worker)
            elif self._places[worker.name] >= len(self._line):
                return

    def _first(self, worker: Worker) -> Model | None:
        """Return the model that a worker prepares next; None if there is none, or it was not found yet."""
        if self._begins_with and (found := self._asked_for_most(worker)) is not None:
            return found
        for name in reversed(self._asked_for):
            model = self._asked_for[name]
            if not model.absent & worker.bit and is_known(model, worker):
                return model
        line, place = self._line, self._places[worker.name]
        end = min(len(line), place + LOOKED_AT - self._looked)
        begin = place
        found = None
        while place < end and found is None:
            each = line[place]
            place += 1
            if each is not None and not each.absent & worker.bit and is_known(each, worker):
                found = each
        self._looked += place - begin
        self._places[worker.name] = place
        while found is None and place == len(line) and worker.prepare_queue:
            name, _ = worker.prepare_queue.popitem(last=False)
            found = self._preparable(worker, name)
        return found

    def _asked_for_most(self, worker: Worker) -> Model | None:
        """Return what a worker that has just joined prepares next; None once it has begun all of that."""
        left, models = self._begins_with.get(worker.name, []), self._state.cluster.models
        while left:
            model = left.pop()
            if models.get(model.name) is model and not model.absent & worker.bit and is_known(model, worker):
                return model
        self._begins_with.pop(worker.name, None)
        return None

    def _preparable(self, worker: Worker, name: str) -> Model | None:
        """Return the model of a name if it may be prepared on a worker."""
        placement = worker.placements.get(name)
        if placement is None:
            model = self._state.cluster.models.get(name)
            return model if model is not None and is_known(model, worker) else None
        # A model is closed here if its executable was opened for another one.
        able = placement.state is State.KNOWN or placement.state is State.CLOSED
        return placement.model if able and not placement.leaving else None

    def _close_up(self) -> None:
        """Drop the places of models that are gone."""
        before = [0]
        for model in self._line:
            before.append(before[-1] + (model is not None))
        self._places = {name: before[place] for name, place in self._places.items()}
        kept = [model for model in self._line if model is not None]
        self._line = [*kept]
        self._numbers = [model.number for model in kept]
        self._gone = 0


def _demand(model: Model) -> tuple[int, int]:
    """Return how often a model was asked for; of several, the one that came first counts more."""
    return model.counts.arrived, -model.number
