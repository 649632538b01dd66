"""Drives a scheduler with perfect devices in virtual time and measures the CPU of its calls.

The devices take exactly as long as their profiles say, and their results are there at once: what is left
is the scheduler.
"""

from __future__ import annotations

import cProfile
import gc
import heapq
import time
import tracemalloc
from collections import Counter

import msgspec
import numpy as np

from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command
from mainspring.messages.events import Event, ModelAdded, RequestArrived, Resident, Wakeup, WorkerJoined
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.workload import Workload

SECOND_NS = 1_000_000_000
SLICE_NS = 50_000_000
WARM_UP_NS = SECOND_NS
VARIETIES = 61
KIND = "emulated"


class Setting(msgspec.Struct, frozen=True):
    """What is played."""

    models: int = 4_026
    devices: int = 12
    rate: float = 4_860.0
    """Requests per second: the average of section 6.5."""
    seconds: float = 4.0
    pages: int = 1_376
    """Of each device: what the released Clockwork had on a 32 GB V100."""
    slo_ms: float = 100.0
    backlog: int = 0
    """Requests that wait all the time, with deadlines far away, for models that no device can load."""


class Cost(msgspec.Struct, frozen=True):
    """What it took."""

    setting: Setting
    requests: int
    request_us_p50: float
    """Median over slices of 50 ms of virtual time: CPU in all calls by requests that arrived."""
    request_us_mean: float
    call_us_p50: float
    call_us_p9999: float
    call_us_max: float
    in_time: float
    """Share of requests that were dispatched so as to end in time."""


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
                    self.in_time += len(command.request_ids)
            case Prepare() | Release() | Unload():
                self._end(command.action_id, command.worker, now_ns, now_ns)
            case _:
                pass

    def _end(self, action_id: int, worker: str, begin_ns: int, end_ns: int) -> None:
        result = Result(action_id, worker, Status.OK, begin_ns, end_ns, end_ns - begin_ns)
        heapq.heappush(self.ends, (end_ns, action_id, result))


class Meter:
    """Calls a scheduler and keeps the CPU time of each call."""

    def __init__(self, scheduler: Scheduler, devices: PerfectDevices) -> None:
        self.scheduler = scheduler
        self.calls_ns: list[int] = []
        self.slice_ns: dict[int, int] = {}
        self.slice_requests: dict[int, int] = {}
        self._devices = devices
        self._clock_ns = _clock_cost_ns()

    def turn(self, now_ns: int, event: Event) -> None:
        """Feed one event, and carry out what comes of it."""
        scheduler = self.scheduler
        begin_ns = time.thread_time_ns()
        scheduler.handle(now_ns, event)
        between_ns = time.thread_time_ns()
        commands = scheduler.schedule(now_ns)
        end_ns = time.thread_time_ns()
        if now_ns >= WARM_UP_NS:
            first_ns = max(0, between_ns - begin_ns - self._clock_ns)
            second_ns = max(0, end_ns - between_ns - self._clock_ns)
            self.calls_ns += (first_ns, second_ns)
            number = now_ns // SLICE_NS
            self.slice_ns[number] = self.slice_ns.get(number, 0) + first_ns + second_ns
            if isinstance(event, RequestArrived):
                self.slice_requests[number] = self.slice_requests.get(number, 0) + 1
        for command in commands:
            self._devices.take(now_ns, command)


def _residents(setting: Setting, specs: list[ModelSpec], demand: Counter[str]) -> list[list[Resident]]:
    """Put the models that are asked for most into the devices' pages, as long as they fit."""
    residents: list[list[Resident]] = [[] for _ in range(setting.devices)]
    free = [setting.pages] * setting.devices
    for index, spec in enumerate(sorted(specs, key=lambda spec: (-demand[spec.name], spec.name))):
        device = index % setting.devices
        if spec.pages <= free[device]:
            first = setting.pages - free[device]
            pages = tuple(range(first, first + spec.pages))
            residents[device].append(Resident(spec.name, spec.weights_hash, pages))
            free[device] -= spec.pages
    return residents


def _clock_cost_ns() -> int:
    """Return what an empty interval measures: the clock is a system call."""
    intervals = []
    for _ in range(2_000):
        begin_ns = time.thread_time_ns()
        intervals.append(time.thread_time_ns() - begin_ns)
    return sorted(intervals)[len(intervals) // 2]


def loaded_scheduler(setting: Setting, demand: Counter[str]) -> Scheduler:
    """Return a scheduler whose workers have prepared every model and loaded the most wanted ones."""
    scheduler = Scheduler(SchedulerConfig(response_margin_ms=1.0, max_queued_requests_per_model=1_000_000))
    specs = varieties(setting.models)
    residents = _residents(setting, specs, demand)
    if setting.backlog:
        specs.append(msgspec.structs.replace(specs[0], name="stuck", weights_hash="stuck"))
    for spec in specs:
        scheduler.handle(0, ModelAdded(spec))
    prepared = {spec.name: spec.weights_hash for spec in specs}
    for index, held in enumerate(residents):
        joined = WorkerJoined(f"worker-{index}", KIND, setting.pages, prepared, tuple(held))
        scheduler.handle(0, joined)
    scheduler.schedule(0)
    return scheduler


def measure(setting: Setting, around: cProfile.Profile | None = None) -> Cost:
    """Play a setting; the profiler, if one is given, sees only the playing."""
    names = [spec.name for spec in varieties(setting.models)]
    recipe = Recipe(
        duration_ns=int(setting.seconds * SECOND_NS) + WARM_UP_NS,
        slo_ns=int(setting.slo_ms * 1e6),
        rate=setting.rate,
        seed=65,
    )
    workload = build(recipe, names)
    assert isinstance(workload, Workload)
    demand = Counter(arrival.model for arrival in workload.arrivals(np.random.default_rng(recipe.seed)))
    devices = PerfectDevices()
    meter = Meter(loaded_scheduler(setting, demand), devices)
    for number in range(setting.backlog):
        far_ns = (1_000 + number) * SECOND_NS
        meter.scheduler.handle(0, RequestArrived(-1 - number, "stuck", 1, far_ns))
    gc.collect()
    gc.freeze()
    if around is not None:
        around.enable()
    requests = 0
    for arrival in workload.arrivals(np.random.default_rng(recipe.seed)):
        _until(meter, devices, arrival.time_ns)
        requests += 1
        deadline_ns = None if arrival.slo_ns is None else arrival.time_ns + arrival.slo_ns
        meter.turn(arrival.time_ns, RequestArrived(requests, arrival.model, arrival.rows, deadline_ns))
    if around is not None:
        around.disable()
    gc.unfreeze()
    return _cost(setting, meter, requests, devices.in_time)


def memory_per_model(setting: Setting) -> float:
    """Return the bytes that the scheduler holds for each model when every device has prepared it."""
    tracemalloc.start()
    few = msgspec.structs.replace(setting, models=VARIETIES)
    many = msgspec.structs.replace(setting, models=VARIETIES + 500)
    sizes = []
    for each in (few, many):
        before = tracemalloc.get_traced_memory()[0]
        scheduler = loaded_scheduler(each, Counter())
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
        del scheduler
        gc.collect()
    tracemalloc.stop()
    return (sizes[1] - sizes[0]) / 500


def _until(meter: Meter, devices: PerfectDevices, until_ns: int) -> None:
    """Let results come and wake-ups ring that are due by an instant."""
    while True:
        wakeup_ns = meter.scheduler.next_wakeup_ns()
        end_ns = devices.ends[0][0] if devices.ends else None
        if end_ns is not None and end_ns <= until_ns and (wakeup_ns is None or end_ns <= wakeup_ns):
            meter.turn(end_ns, heapq.heappop(devices.ends)[2])
        elif wakeup_ns is not None and wakeup_ns <= until_ns:
            meter.turn(wakeup_ns, Wakeup())
        else:
            return


def _cost(setting: Setting, meter: Meter, requests: int, in_time: int) -> Cost:
    calls_us = np.array(meter.calls_ns) / 1e3
    slices = sorted(meter.slice_requests)
    per_request_us = [meter.slice_ns[n] / meter.slice_requests[n] / 1e3 for n in slices]
    total_us = sum(meter.slice_ns.values()) / 1e3
    return Cost(
        setting=setting,
        requests=requests,
        request_us_p50=float(np.median(per_request_us)),
        request_us_mean=total_us / max(1, sum(meter.slice_requests.values())),
        call_us_p50=float(np.percentile(calls_us, 50)),
        call_us_p9999=float(np.percentile(calls_us, 99.99)),
        call_us_max=float(calls_us.max()),
        in_time=in_time / requests,
    )
