"""Models, workers and actions: how they stand, and which actions ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from mainspring.console.view.actions import Action
from mainspring.console.view.durations import Durations
from mainspring.console.view.limits import Limits
from mainspring.console.view.models import (
    FAILED,
    LOADING,
    PREPARED,
    PREPARING,
    RELEASING,
    RESIDENT,
    ModelState,
    Placement,
)
from mainspring.console.view.requests import Request
from mainspring.console.view.workers import History, WorkerState
from mainspring.messages.actions import Infer, Load, Prepare, Release, Unload
from mainspring.messages.commands import Unanswered
from mainspring.messages.events import WorkerJoined
from mainspring.messages.model import Artifact, ModelSpec
from mainspring.messages.observing import Estimated, Holding

_NO_ARTIFACT = Artifact("", "", ())


class Fleet:
    """The part of the view that mirrors the cluster."""

    def __init__(self, evictions: int) -> None:
        """Remember at most so many evictions of each worker."""
        self._evictions = evictions
        self.models: dict[str, ModelState] = {}
        """Those that are served, by the scheduler's names, in the order in which they came."""
        self.workers: dict[str, WorkerState] = {}
        self.sessions: deque[WorkerState] = deque()
        """Sessions of workers that ended, the newest last."""
        self.histories: dict[str, History] = {}
        self.durations = Durations()
        self.complete = False
        """Whether the stream told of every model that is served, so that one it did not tell of is none."""
        self._strangers: dict[str, ModelState] = {}
        """Models that workers hold and that are not served, as far as is known."""

    def forget(self, keep_history: bool) -> None:
        """Forget how things stand; also which actions ended unless history is kept."""
        for worker in self.workers.values():
            for lane in worker.history.lanes():
                lane.outstanding.clear()
        self.models.clear()
        self.workers.clear()
        self._strangers.clear()
        self.complete = True
        self.durations = Durations()
        if not keep_history:
            self.sessions.clear()
            self.histories.clear()

    def model(self, name: str) -> ModelState:
        """Return a model; one that was never told of is learnt, unless it must be one that is not served."""
        known = self.models.get(name)
        if known is not None:
            return known
        models = self._strangers if self.complete else self.models
        return models.setdefault(name, ModelState(name, None))

    def known(self, name: str) -> ModelState | None:
        """Return a model that is served, or that somebody holds or waits for."""
        return self.models.get(name) or self._strangers.get(name)

    def worker(self, name: str, now_ns: int, seq: int) -> WorkerState:
        """Return a worker that is there; one that was never told of is learnt."""
        known = self.workers.get(name)
        if known is None:
            known = self._new_worker(name, "", 0, now_ns, seq)
        return known

    def kinds(self) -> dict[str, None]:
        """Return the kinds of devices that are there."""
        return dict.fromkeys(worker.device_kind for worker in self.workers.values())

    def gone(self) -> dict[str, WorkerState]:
        """Return the last session of each worker that is not there any more."""
        return {each.name: each for each in self.sessions if each.name not in self.workers}

    # --- models and workers come and go ---

    def model_added(self, seq: int, spec: ModelSpec) -> None:
        """A model is served from now on, or another one by its name."""
        self.durations.seq = seq
        model = self.models.get(spec.name)
        if model is None:
            stranger = self._strangers.pop(spec.name, None)
            model = self.models[spec.name] = stranger or ModelState(spec.name, None)
        elif model.spec == spec:
            return
        if model.spec is not None:
            self._take_off(model)
            self.durations.release(model.spec)
            self.models[spec.name] = self.models.pop(spec.name)
        model.spec = spec
        self.durations.hold(spec, self.kinds())

    def model_removed(self, name: str) -> None:
        """A model is served no more."""
        model = self.models.pop(name, None)
        if model is not None:
            self._take_off(model)
            if model.spec is not None:
                self.durations.release(model.spec)

    def joined(self, now_ns: int, seq: int, event: WorkerJoined) -> None:
        """A worker is there, with what it says that it holds."""
        self.durations.seq = seq
        worker = self._new_worker(event.worker, event.device_kind, event.pages, now_ns, seq)
        for name, artifact in event.prepared.items():
            self._held(worker, name, artifact, PREPARED)
        for resident in event.resident:
            placement = self._held(worker, resident.model, resident.artifact, RESIDENT)
            placement.last_used_ns = now_ns
            worker.take(placement, resident.pages)
        for model in self.models.values():
            if model.spec is not None:
                self.durations.infers(event.device_kind, model.spec)
                self.durations.loads(event.device_kind, model.spec)

    def left(self, now_ns: int, seq: int, name: str, reason: str) -> list[Action]:
        """A worker is gone; return the actions that went with it."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return []
        for placement in worker.placements.values():
            if not placement.leaving:
                placement.model.placements.pop(name, None)
        worker.left_ns, worker.left_seq, worker.detail = now_ns, seq, reason
        self.sessions.append(worker)
        lost = [action for lane in worker.history.lanes() for action in lane.outstanding.values()]
        for lane in worker.history.lanes():
            lane.outstanding.clear()
        return lost

    def unanswered(self, now_ns: int, seq: int, name: str, infer: Unanswered) -> None:
        """A worker is given up for an INFER: what that is expected to take grows, as in the scheduler."""
        worker, model = self.workers.get(name), self.models.get(infer.model)
        spec = None if model is None else model.spec
        if worker is None or spec is None or infer.batch_size not in spec.batch_sizes:
            return
        if self.durations.holds(spec):
            index = spec.batch_sizes.index(infer.batch_size)
            self.durations.give_up(now_ns, seq, worker.device_kind, spec, index, infer.waited_ns)

    # --- what pictures say ---

    def holds(self, now_ns: int, seq: int, holding: Holding) -> None:
        """A picture says what a worker has of some models."""
        worker = self.worker(holding.worker, now_ns, seq)
        for name in holding.prepared:
            self._placed(worker, name).enter(PREPARED)
        for name, pages in holding.resident.items():
            placement = self._placed(worker, name)
            placement.enter(RESIDENT)
            worker.give_back(placement)
            worker.take(placement, pages)
        for name, why in holding.failed.items():
            placement = self._placed(worker, name)
            placement.enter(FAILED)
            placement.detail = why
        if holding.stopping and not worker.stopping_seq:
            worker.stopping_seq = seq

    def estimated(self, estimated: Estimated) -> None:
        """A picture says how long actions are expected to take."""
        model = self.models.get(estimated.model)
        if model is not None and model.spec is not None:
            self.durations.tell(estimated, model.spec)

    # --- actions begin; what they do to a placement when they end is in `view.ending` ---

    def prepare(self, worker: WorkerState, action: Prepare) -> str:
        """A model is being prepared; return its name."""
        name = action.model.name
        self._placed(worker, name).enter(PREPARING)
        return name

    def release(self, worker: WorkerState, action: Release) -> str:
        """A prepared model is being forgotten; return its name."""
        self._placed(worker, action.model).enter(RELEASING)
        return action.model

    def unload(self, now_ns: int, worker: WorkerState, action: Unload) -> str:
        """A model gives its pages up; return its name."""
        placement = self._placed(worker, action.model)
        worker.vacate(now_ns, placement)
        placement.enter(PREPARED)
        return action.model

    def load(self, now_ns: int, worker: WorkerState, action: Load, seq: int) -> Placement:
        """A model is being loaded."""
        placement = self._placed(worker, action.model)
        worker.give_back(placement)
        placement.enter(LOADING)
        placement.last_used_ns = placement.model.last_load_ns = now_ns
        worker.fill(placement, action.pages)
        spec = placement.model.spec
        if spec is not None and self.durations.holds(spec):
            self.durations.loads(worker.device_kind, spec).learn(seq, action.predicted_duration_ns)
        return placement

    def infer(
        self,
        now_ns: int,
        worker: WorkerState,
        action: Infer,
        seq: int,
        soonest_ns: int,
        requests: Mapping[int, Request],
    ) -> int:
        """A batch is sent; return how long its inputs are expected to keep the way to the worker busy.

        It could not have begun before ``soonest_ns``, whatever its inputs took; ``requests`` are those that
        have not ended, by id.
        """
        placement = worker.placements.get(action.model)
        if placement is None:
            placement = self._placed(worker, action.model)
            placement.enter(RESIDENT)
        placement.infers += 1
        placement.last_used_ns = now_ns
        spec = placement.model.spec
        if spec is None or action.batch_size not in spec.batch_sizes or not self.durations.holds(spec):
            return 0
        infers = self.durations.infers(worker.device_kind, spec)
        index = spec.batch_sizes.index(action.batch_size)
        times, most_ns = infers.times, max(0, action.predicted_begin_ns - soonest_ns)
        if times.ns[index] > action.predicted_duration_ns or times.transfer_ns[index] > most_ns:
            # A request was to be turned away for an estimate, and served because it was doubted.
            arrived_ns = [requests[each].arrived_ns for each in action.request_ids if each in requests]
            if arrived_ns:
                self.durations.doubt(max(arrived_ns), seq, spec, self.kinds())
        infers.learn(seq, index, action.predicted_duration_ns)
        return min(infers.times.transfer_ns[index], most_ns)

    def no_such_model(self, name: str) -> None:
        """Requests for a model that there is not were rejected: it need not be remembered."""
        model = self._strangers.get(name)
        if model is not None and not model.placements:
            del self._strangers[name]

    def forget_before(self, before_ns: int, limits: Limits) -> None:
        """Forget which actions ended and workers left before an instant, and what is over the bounds."""
        lanes = [lane for each in self.histories.values() for lane in each.lanes()]
        most = limits.actions
        if sum(map(len, lanes)) > most:
            most = level([len(lane) for lane in lanes], most)
        for lane in lanes:
            lane.forget(before_ns, most)
        sessions = self.sessions
        while sessions and (len(sessions) > limits.sessions or (sessions[0].left_ns or 0) < before_ns):
            sessions.popleft()
        gone = self.gone()
        for name in [name for name in self.histories if name not in self.workers and name not in gone]:
            del self.histories[name]

    # --- within ---

    def _new_worker(self, name: str, kind: str, pages: int, now_ns: int, seq: int) -> WorkerState:
        history = self.histories.get(name)
        if history is None:
            history = self.histories[name] = History(name, self._evictions)
        worker = self.workers[name] = WorkerState(name, kind, pages, now_ns, seq, history)
        return worker

    def _placed(self, worker: WorkerState, name: str) -> Placement:
        """Return a model's placement on a worker; make one if it has none."""
        placement = worker.placements.get(name)
        if placement is None:
            model = self.model(name)
            placement = worker.placements[name] = Placement(model, PREPARED, worker.states)
            model.placements[worker.name] = placement
        return placement

    def _held(self, worker: WorkerState, name: str, artifact: Artifact, state: str) -> Placement:
        """Enter what a joining worker has; what is not what is served is only there until it is taken off."""
        placement = self._placed(worker, name)
        placement.enter(state)
        spec = placement.model.spec
        known = _NO_ARTIFACT if spec is None else spec.artifact
        placement.leaving = self.complete and artifact != known
        return placement

    def _take_off(self, model: ModelState) -> None:
        """Note that a model is to be taken off its workers."""
        former = ModelState(model.name, model.spec)
        for name, placement in model.placements.items():
            placement.leaving, placement.model = True, former
            worker = self.workers.get(name)
            if worker is not None and placement.state == FAILED:
                worker.strike(placement)
        model.placements = {}


def level(lengths: list[int], total: int) -> int:
    """Return the greatest length to which all may be cut so that they sum up to at most ``total``."""
    left, count = total, len(lengths)
    for length in sorted(lengths):
        if length * count > left:
            return left // count
        left -= length
        count -= 1
    return max(lengths, default=0)
