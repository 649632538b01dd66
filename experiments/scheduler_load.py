"""Drives a scheduler with perfect devices in virtual time, and records what went in.

The devices take exactly as long as their profiles say, and their results are there at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from mainspring.messages.actions import Command, Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Resident,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.traces.arrival import Arrival
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.workload import Workload

SECOND_NS = 1_000_000_000
WARM_UP_NS = SECOND_NS
VARIETIES = 61
KIND = "emulated"
OTHER_KIND = "other"
"""The device of a worker that comes and goes, the only one of its kind."""
PREPARE_NS = 5_000_000

Turn = tuple[int, Event, tuple[str, ...]]
"""(instant, event, kinds of commands)"""


class Setting(msgspec.Struct, frozen=True):
    """The load to play."""

    policy: str = SchedulerConfig().policy
    models: int = 4_026
    devices: int = 12
    rate: float = 4_860.0
    """Requests per second: the average of section 6.5."""
    seconds: float = 4.0
    pages: int = 1_376
    slo_ms: float = 100.0
    everywhere: bool = False
    backlog: int = 0
    """Requests that wait all the time, with deadlines far away, for the model that is asked for most. Each
    that is dispatched after all is replaced."""
    changes: int = 0


def varieties(models: int) -> list[ModelSpec]:
    """Return models in as many varieties as the paper has, of about its sizes and durations."""
    rng = np.random.default_rng(61)
    tensor = (TensorSpec("x", "float32", (4,)),)
    shapes = []
    for _ in range(VARIETIES):
        single_ns = int(rng.uniform(1e6, 8e6))
        infer_ns = {size: int(single_ns * (0.75 + 0.25 * size)) for size in (1, 2, 4, 8, 16)}
        pages = int(rng.integers(2, 20))
        shapes.append((pages, Profile(infer_ns, pages * 1_300_000)))
    specs = []
    for index in range(models):
        pages, profile = shapes[index % VARIETIES]
        name = f"model-{index:05d}"
        specs.append(
            ModelSpec(
                name,
                name,
                f"variety {index % VARIETIES}",
                (1, 2, 4, 8, 16),
                pages * PAGE_BYTES,
                (1,) * pages,
                tensor,
                tensor,
                {KIND: profile},
            )
        )
    return specs


class PerfectDevices:
    """Devices that do what they are told in exactly the predicted time."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int, Result]] = []
        self.in_time = 0
        self._free_ns: dict[tuple[str, bool], int] = {}

    def take(self, now_ns: int, command: Command) -> None:
        """Carry a command out."""
        match command:
            case Infer() | Load():
                executor = (command.worker, isinstance(command, Infer))
                begin_ns = max(self._free_ns.get(executor, 0), command.predicted_begin_ns)
                end_ns = begin_ns + command.predicted_duration_ns
                self._free_ns[executor] = end_ns
                self._end(command.action_id, command.worker, begin_ns, end_ns)
                if isinstance(command, Infer):
                    self.in_time += sum(1 for request_id in command.request_ids if request_id > 0)
            case Prepare():
                self._end(command.action_id, command.worker, now_ns, now_ns + PREPARE_NS)
            case Release() | Unload():
                self._end(command.action_id, command.worker, now_ns, now_ns)
            case _:
                pass

    def _end(self, action_id: int, worker: str, begin_ns: int, end_ns: int) -> None:
        result = Result(action_id, worker, Status.OK, begin_ns, end_ns, end_ns - begin_ns)
        heapq.heappush(self.ends, (end_ns, action_id, result))


class Recording(msgspec.Struct, frozen=True):
    """Events that went into a scheduler and, by kind, the commands that came out."""

    setting: Setting
    demand: dict[str, int]
    """Requests for each model."""
    turns: list[Turn]
    warm_up_turns: int
    requests: int
    in_time: float
    """Share of all requests that were dispatched, and so end in time on devices as exact as these."""


class Player:
    """Drives a scheduler and perfect devices, and writes down each turn."""

    def __init__(self, setting: Setting, demand: Counter[str]) -> None:
        self.turns: list[Turn] = []
        self.devices = PerfectDevices()
        self.scheduler = loaded_scheduler(setting, demand)
        self._backlog = backlog(demand)
        for event in itertools.islice(self._backlog, setting.backlog):
            self.scheduler.handle(0, event)

    def play(self, arrivals: list[Arrival], changes: list[tuple[int, Event]] | None = None) -> None:
        """Let requests arrive, and events happen that are not about requests."""
        left = list(reversed(changes or []))
        for number, arrival in enumerate(arrivals, start=1):
            while left and left[-1][0] <= arrival.time_ns:
                now_ns, event = left.pop()
                self._until(now_ns)
                self._turn(now_ns, event)
            self._until(arrival.time_ns)
            deadline_ns = None if arrival.slo_ns is None else arrival.time_ns + arrival.slo_ns
            self._turn(arrival.time_ns, RequestArrived(number, arrival.model, arrival.rows, deadline_ns))

    def _turn(self, now_ns: int, event: Event) -> None:
        self.scheduler.handle(now_ns, event)
        commands = self.scheduler.schedule(now_ns)
        self.turns.append((now_ns, event, tuple([type(command).__name__ for command in commands])))
        again = 0
        for command in commands:
            self.devices.take(now_ns, command)
            if isinstance(command, Infer):
                again += sum(1 for request_id in command.request_ids if request_id < 0)
        for request in itertools.islice(self._backlog, again):
            self._turn(now_ns, request)

    def _until(self, until_ns: int) -> None:
        ends = self.devices.ends
        while True:
            wakeup_ns = self.scheduler.next_wakeup_ns()
            end_ns = ends[0][0] if ends else None
            if end_ns is not None and end_ns <= until_ns and (wakeup_ns is None or end_ns <= wakeup_ns):
                self._turn(end_ns, heapq.heappop(ends)[2])
            elif wakeup_ns is not None and wakeup_ns <= until_ns:
                self._turn(max(wakeup_ns, self.turns[-1][0] if self.turns else 0), Wakeup())
            else:
                return


def record(setting: Setting) -> Recording:
    """Play a setting once."""
    names = [spec.name for spec in varieties(setting.models)]
    recipe = Recipe(
        duration_ns=int(setting.seconds * SECOND_NS) + WARM_UP_NS,
        slo_ns=int(setting.slo_ms * 1e6),
        rate=setting.rate,
        seed=65,
    )
    workload = build(recipe, names)
    assert isinstance(workload, Workload)
    arrivals = list(workload.arrivals(np.random.default_rng(recipe.seed)))
    demand = Counter(arrival.model for arrival in arrivals)
    player = Player(setting, demand)
    player.play(arrivals, changes_of(setting, varieties(setting.models), demand))
    turns = player.turns
    warm_up_turns = sum(1 for now_ns, _, _ in turns if now_ns < WARM_UP_NS)
    requests = sum(1 for _, event, _ in turns[warm_up_turns:] if isinstance(event, RequestArrived))
    in_time = player.devices.in_time / len(arrivals)
    return Recording(setting, demand, turns, warm_up_turns, requests, in_time)


def changes_of(setting: Setting, specs: list[ModelSpec], demand: Counter[str]) -> list[tuple[int, Event]]:
    """Return what happens to workers and models, evenly over the time after the warm-up."""
    if not setting.changes:
        return []
    prepared = {spec.name: spec.artifact for spec in specs}
    residents = _residents(setting, specs, demand)
    found: list[Event] = []
    for number in range(setting.changes):
        index = number % setting.devices
        name, new = f"worker-{index}", msgspec.structs.replace(specs[number], name=f"new-{number}")
        found += [
            WorkerLeft(name, "lost"),
            ModelAdded(new),
            WorkerJoined(name, KIND, setting.pages, prepared, tuple(residents[index])),
            WorkerJoined(f"empty-{number}", KIND, setting.pages),
            ModelRemoved(new.name),
            ModelRemoved(specs[-1 - number].name),
            WorkerLeft(f"empty-{number}", "lost"),
            WorkerJoined(f"other-{number}", OTHER_KIND, setting.pages, {} if number % 2 else prepared),
            WorkerLeft(f"other-{number}", "lost"),
        ]
    apart_ns = int(setting.seconds * SECOND_NS) // (len(found) + 1)
    return [(WARM_UP_NS + (place + 1) * apart_ns, event) for place, event in enumerate(found)]


def backlog(demand: Counter[str]) -> Iterator[RequestArrived]:
    """Yield requests for the model that is asked for most, with deadlines far away."""
    favourite = demand.most_common(1)[0][0]
    for number in itertools.count():
        yield RequestArrived(-1 - number, favourite, 1, (1_000 + number) * SECOND_NS)


def _residents(setting: Setting, specs: list[ModelSpec], demand: Counter[str]) -> list[list[Resident]]:
    residents: list[list[Resident]] = [[] for _ in range(setting.devices)]
    free = [setting.pages] * setting.devices
    for index, spec in enumerate(sorted(specs, key=lambda spec: (-demand[spec.name], spec.name))):
        for device in range(setting.devices) if setting.everywhere else (index % setting.devices,):
            if spec.pages <= free[device]:
                first = setting.pages - free[device]
                pages = tuple(range(first, first + spec.pages))
                residents[device].append(Resident(spec.name, spec.artifact, pages))
                free[device] -= spec.pages
    return residents


def loaded_scheduler(
    setting: Setting, demand: Counter[str], specs: list[ModelSpec] | None = None
) -> Scheduler:
    """Return a scheduler whose workers have prepared every model and loaded the most wanted ones.

    ``specs`` are `varieties` of the setting's number of models, made already.
    """
    config = SchedulerConfig(
        policy=setting.policy, response_margin_ms=1.0, max_queued_requests_per_model=1_000_000
    )
    scheduler = Scheduler(config)
    specs = varieties(setting.models) if specs is None else specs
    residents = _residents(setting, specs, demand)
    for spec in specs:
        scheduler.handle(0, ModelAdded(spec))
    prepared = {spec.name: spec.artifact for spec in specs}
    for index, held in enumerate(residents):
        joined = WorkerJoined(f"worker-{index}", KIND, setting.pages, prepared, tuple(held))
        scheduler.handle(0, joined)
        while scheduler.next_wakeup_ns() == 0:
            scheduler.schedule(0)
    scheduler.schedule(0)
    return scheduler
