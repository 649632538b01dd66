"""One simulated worker: the unchanged worker core, and an engine that only takes time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from mainspring.messages.actions import Action, Infer, Load, Open, Prepare, Release, Result
from mainspring.messages.codes import Status
from mainspring.messages.curve import Curve
from mainspring.messages.events import WorkerJoined
from mainspring.messages.model import PAGE_BYTES, Artifact, ModelSpec
from mainspring.messages.targets import cannot_run, device_kind_of, kinds_build, targets_in
from mainspring.simulator.costs import ProcessCosts
from mainspring.simulator.environment import NEVER_NS, Agenda, Draws
from mainspring.simulator.slowness import Slowness
from mainspring.simulator.spec import Faults, Spread, matches
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore

PREPARE_NS = 1_000_000
"""Duration of a simulated PREPARE."""
EXPIRY_NS = 2_500_000
"""Delay after which an action is found unable to begin in its window during a job: live up to 5 ms."""
IO_BYTES = 1 << 40
"""More than any model needs: what is simulated is never short of memory for inputs and outputs."""

Results = Callable[["SimulatedWorker", int, Result], None]
Outputs = Callable[["SimulatedWorker", int, Infer, int], None]

_EXEC, _LOAD, _PREPARE = Executor.EXEC, Executor.LOAD, Executor.PREPARE
_ALL = (_EXEC, _LOAD, _PREPARE)
_PLACE = {executor: place for place, executor in enumerate(_ALL)}


class Held:
    """Models that workers have prepared, which all of them may share: thousands are on hundreds."""

    __slots__ = ("artifacts", "specs")

    def __init__(self, models: Iterable[ModelSpec]) -> None:
        self.specs = {model.name: model for model in models}
        self.artifacts = {model.name: model.artifact for model in self.specs.values()}


class Preloaded:
    """Models that a worker holds when it joins."""

    __slots__ = ("prepared", "resident")

    def __init__(self, prepared: Held | Iterable[ModelSpec] = (), resident: Iterable[ModelSpec] = ()) -> None:
        self.prepared = prepared if isinstance(prepared, Held) else Held(prepared)
        self.resident = list(resident)
        """Models that are resident from the start, each also prepared; as many as the pages hold."""


class SimulatedWorker:
    """Drives a `WorkerCore` in virtual time."""

    def __init__(
        self,
        name: str,
        kind: str,
        pages: int,
        *,
        faults: Faults,
        costs: ProcessCosts,
        rng: np.random.Generator,
        agenda: Agenda,
        results: Results,
        outputs: Outputs,
        preloaded: Preloaded | None = None,
        opened: Iterable[str] = (),
        slowness: Slowness | None = None,
    ) -> None:
        """``results`` and ``outputs`` are called with this worker and the instant of sending; outputs also
        with the batch and its duration. ``opened`` are the executables that are open from the start,
        ``slowness`` says when the device is slow."""
        self.name, self.kind, self.pages = name, kind, pages
        self._device_kind, self._targets = device_kind_of(kind), targets_in(kind)
        self.core = WorkerCore(name, pages, PAGE_BYTES, IO_BYTES)
        self.alive = True
        self.session = 0
        """The session with the controller that it takes actions of."""
        self.link_free_ns = 0
        """Instant at which its link has carried the inputs that were pushed so far."""
        self.busy_ns = 0
        """Time that EXEC has run for."""
        self._faults, self._opened = faults, set(opened)
        self._curves: dict[str, Curve] = {}
        self._spreads: dict[str, Spread | None] = {}
        """Spread of each model that ran."""
        self._slowness = slowness
        self._draws = Draws(rng)
        self._agenda, self._results, self._outputs = agenda, results, outputs
        self._action_ns = round(costs.worker_action_us * 1e3)
        self._result_ns = round(costs.worker_result_us * 1e3)
        self._turn_ns = round(costs.worker_turn_us * 1e3)
        self._early: set[tuple[int, int]] = set()
        """Inputs that came before their action."""
        self._released: set[str] = set()
        """Models of `_held` that it has given up."""
        self._last_infer_id = 0
        self._armed_ns = [NEVER_NS, NEVER_NS, NEVER_NS]
        """The nearest instant at which each executor will be looked at."""
        self._free_ns = [0, 0, 0]
        """Instant before which each executor begins nothing: it has just ended something."""
        self._ends_ns, self._expiry_ns = [0, 0, 0], [NEVER_NS, NEVER_NS, NEVER_NS]
        self._preload(preloaded or Preloaded())

    def joined(self) -> WorkerJoined:
        """Return the event with which this worker joins, with what it holds."""
        residency = self.core.residency
        return WorkerJoined(
            *(self.name, self._device_kind, self.pages, self._prepared(), residency.resident()),
            self._targets,
        )

    def receive(self, now_ns: int, action: Action, session: int) -> None:
        """Take an action of a session; one of an earlier session is dropped."""
        if not self.alive or session != self.session:
            return
        if self._held:
            self._bring(action)
        for result in self.core.submit(now_ns, action):
            self._results(self, now_ns, result)
        if isinstance(action, Infer):
            self._last_infer_id = action.action_id
            if self._early:
                self._take_early(now_ns, action)
            self._run(_EXEC, now_ns)
        else:
            self._run_all(now_ns)

    def receive_inputs(self, now_ns: int, action_id: int, request_ids: tuple[int, ...]) -> None:
        """Take requests' inputs, which may come before their action."""
        if not self.alive:
            return
        if action_id > self._last_infer_id:
            self._early.update([(action_id, request_id) for request_id in request_ids])
            return
        for request_id in request_ids:
            self.core.input_arrived(action_id, request_id, now_ns)
        self._run(_EXEC, now_ns)

    def crash(self) -> None:
        """Die, with everything in memory."""
        self.alive = False

    def abandon(self) -> None:
        """Notice that the controller has given it up: forget what was to be done."""
        self.session = -1
        self._early.clear()
        self.core.abandon()
        self.core.forget_closed()
        self.core.validate()

    def _preload(self, preloaded: Preloaded) -> None:
        """Hold models without having been told to."""
        residency = self.core.residency
        held = preloaded.prepared
        if self._targets:
            own = [kinds_build(self.kind, spec) for spec in held.specs.values()]
            held = Held([spec for spec in own if not cannot_run(spec, self._targets)])
        self._held = held.specs
        """Models that are prepared from the start; of these the core knows what an action has named."""
        self._artifacts = held.artifacts
        next_page = 0
        for each in preloaded.resident:
            spec = kinds_build(self.kind, each)
            if cannot_run(spec, self._targets):
                continue
            residency.add(spec)
            residency.pages.acquire(spec.name, tuple(range(next_page, next_page + spec.pages)))
            residency.pages.confirm(spec.name)
            next_page += spec.pages

    def _bring(self, action: Action) -> None:
        """Have the core know a model that is prepared from the start and that an action names."""
        name = action.model.name if isinstance(action, Prepare) else action.model
        if name in self._released or name not in self._held:
            return
        if self.core.residency.find(name) is None:
            self.core.residency.add(self._held[name])
        if isinstance(action, Release):
            self._released.add(name)

    def _prepared(self) -> dict[str, Artifact]:
        """Return the artifacts of all that is prepared, by name."""
        known, of_start = self.core.residency.prepared(), self._artifacts
        if not self._released and all(of_start.get(name) == each for name, each in known.items()):
            return of_start
        kept = {name: each for name, each in of_start.items() if name not in self._released}
        return {**kept, **known}

    def _take_early(self, now_ns: int, action: Infer) -> None:
        for request_id in action.request_ids:
            if (action.action_id, request_id) in self._early:
                self._early.discard((action.action_id, request_id))
                self.core.input_arrived(action.action_id, request_id, now_ns)

    def _run_all(self, now_ns: int) -> None:
        for executor in _ALL:
            self._run(executor, now_ns)

    def _run(self, executor: Executor, now_ns: int) -> None:
        """Begin what can begin, and come back when time alone changes something."""
        place = _PLACE[executor]
        if now_ns < self._free_ns[place]:
            self._arm(executor, place, self._free_ns[place])
            return
        wake_ns = self.core.wake_ns(executor, now_ns)
        if wake_ns is None:
            if now_ns < self._ends_ns[place]:
                self._await_expiry(executor, place, now_ns)
            return
        if wake_ns > now_ns:
            self._arm(executor, place, wake_ns)
            return
        begun = self.core.begin(executor, now_ns)
        for result in begun.results:
            self._results(self, now_ns, result)
        if begun.job is not None:
            self._start(now_ns, executor, begun.job)
        else:
            wake_ns = self.core.wake_ns(executor, now_ns)
            if wake_ns is not None:
                self._arm(executor, place, wake_ns if wake_ns > now_ns else now_ns + 1)

    def _arm(self, executor: Executor, place: int, when_ns: int) -> None:
        """Have an executor looked at by an instant."""
        if when_ns < self._armed_ns[place]:
            self._armed_ns[place] = when_ns
            self._agenda.at(when_ns, self._wake, executor, when_ns)

    def _wake(self, executor: Executor, when_ns: int) -> None:
        place = _PLACE[executor]
        if self._armed_ns[place] == when_ns:
            self._armed_ns[place] = NEVER_NS
            if self.alive:
                self._run(executor, when_ns)

    def _await_expiry(self, executor: Executor, place: int, now_ns: int) -> None:
        """Have the actions that wait behind a job looked at if one can't begin in its window any more.

        ``_ends_ns`` says when what each executor runs ends, ``_expiry_ns`` when what waits is looked at.
        """
        expiry_ns = self.core.expiry_ns(executor)
        if expiry_ns is None:
            return
        look_ns = max(expiry_ns + EXPIRY_NS, now_ns)
        if look_ns < self._ends_ns[place] and look_ns < self._expiry_ns[place]:
            self._expiry_ns[place] = look_ns
            self._agenda.at(look_ns, self._expire, executor, look_ns)

    def _expire(self, executor: Executor, look_ns: int) -> None:
        """Report the actions that wait behind a job and can't begin in their windows any more."""
        place = _PLACE[executor]
        if self._expiry_ns[place] != look_ns:
            return
        self._expiry_ns[place] = NEVER_NS
        if self.alive:
            for result in self.core.expire(look_ns):
                self._results(self, look_ns, result)
            self._await_expiry(executor, place, look_ns)

    def _start(self, now_ns: int, executor: Executor, job: Job) -> None:
        """Let a job's duration pass."""
        chance = self._faults.engine_error_probability
        failed = chance > 0 and self._draws.uniform() < chance
        duration_ns = self._duration_ns(job, now_ns)
        if self._stays_closed(job) and self._faults.surprising_opens:
            for place in (_PLACE[_EXEC], _PLACE[_LOAD]):
                self._free_ns[place] = max(self._free_ns[place], now_ns + duration_ns)
        self._ends_ns[_PLACE[executor]] = now_ns + duration_ns
        self._agenda.at(now_ns + duration_ns, self._end, executor, job, now_ns, now_ns + duration_ns, failed)
        self._await_expiry(executor, _PLACE[executor], now_ns)

    def _end(self, executor: Executor, job: Job, begin_ns: int, end_ns: int, failed: bool) -> None:
        """Let a job end."""
        if not self.alive:
            return
        duration_ns = end_ns - begin_ns
        action = job.action
        unfit = cannot_run(job.model, self._targets) if isinstance(action, Prepare) else ""
        failed = failed or bool(unfit)
        status = Status.ENGINE_ERROR if failed else Status.OK
        if not failed and self._stays_closed(job):
            if self._faults.surprising_opens or isinstance(action, Open):
                self._opened.add(job.model.executable)
            else:
                status = Status.NOT_OPEN
        result = self.core.finish(
            *(executor, action.action_id, begin_ns, end_ns),
            device_ns=duration_ns,
            status=status,
            detail=unfit,
        )
        if isinstance(action, Infer):
            self.busy_ns += duration_ns
            if job.io is not None and not failed:
                self.core.outputs_sent(job.io.slot)
            if result is not None and not failed:
                self._outputs(self, end_ns + self._result_ns, action, duration_ns)
        if result is not None:
            self._results(self, end_ns + self._result_ns, result)
        self._free_ns[_PLACE[executor]] = max(self._free_ns[_PLACE[executor]], end_ns + self._turn_ns)
        if executor is _EXEC:
            self._run(_EXEC, end_ns)
        else:
            self._run_all(end_ns)

    def _stays_closed(self, job: Job) -> bool:
        """Return whether a job is about a model whose executable has to be opened, alone."""
        if not self._faults.open_ns or not isinstance(job.action, Prepare | Open):
            return False
        return job.model.executable not in self._opened

    def _infer_ns(self, model: ModelSpec, action: Infer) -> int:
        """Return how long a batch takes at its sizes."""
        profile = model.profiles[self._device_kind]
        if not action.sizes:
            return profile.infer_ns[action.batch_size]
        curve = self._curves.get(model.name)
        if curve is None or curve.profile is not profile:
            curve = self._curves[model.name] = Curve(model, profile)
        return curve.share(action.batch_size, action.sizes)[0]

    def _multiple(self, action: Infer) -> float:
        """Draw how many times as long as its profile says a batch takes."""
        name = action.model
        if name not in self._spreads:
            fitting = [each for each in self._faults.spreads if matches(name, each.models)]
            self._spreads[name] = fitting[0] if fitting else None
        spread = self._spreads[name]
        if spread is None:
            return 1.0
        return max([_one_multiple(spread, self._draws) for _ in action.request_ids])

    def _duration_ns(self, job: Job, begin_ns: int) -> int:
        """Draw how long a job takes."""
        action, faults, draws = job.action, self._faults, self._draws
        if isinstance(action, Infer):
            nominal_ns = self._infer_ns(job.model, action)
        elif isinstance(action, Load):
            nominal_ns = job.model.profiles[self._device_kind].load_ns
        elif isinstance(action, Open) or (faults.surprising_opens and self._stays_closed(job)):
            nominal_ns = faults.open_ns
        else:
            return PREPARE_NS
        duration_ns = float(nominal_ns)
        if isinstance(action, Infer) and faults.spreads:
            duration_ns *= self._multiple(action)
        if faults.duration_jitter > 0:
            duration_ns *= math.exp(faults.duration_jitter * draws.normal())
        if faults.slow_probability > 0 and draws.uniform() < faults.slow_probability:
            duration_ns += draws.uniform() * faults.slow_ns
        if self._slowness is not None:
            slowness = self._slowness
            taken_ns = slowness.load_ns if isinstance(action, Load) else slowness.infer_ns
            duration_ns = taken_ns(begin_ns, duration_ns)
        return max(1, round(duration_ns)) + self._action_ns


def _one_multiple(spread: Spread, draws: Draws) -> float:
    """Draw the multiple of one request."""
    if spread.kind == "lognormal":
        return math.exp(spread.sigma * draws.normal())
    return spread.long_factor if draws.uniform() < spread.long_share else 1.0
