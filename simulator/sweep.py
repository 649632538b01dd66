"""One spec with many settings: simulated over every core of this machine, or over a Ray cluster."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import msgspec

from mainspring.messages.tables import ConfigError
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.ray_address import connect
from mainspring.simulator.run import NO_BOUND, bounded, closed_under_deadlines, simulate
from mainspring.simulator.spec_file import Table, apply_setting, parse_spec
from mainspring.telemetry.report import Summary


class SweepPoint(msgspec.Struct, frozen=True):
    """One setting's outcome."""

    settings: tuple[str, ...]
    """Settings, each as ``KEY=VALUE``."""
    summary: Summary
    fingerprint: str
    wall_s: float


def points(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the settings of every point: each value of ``KEY=V1,V2,...`` with each of the other sweeps'.

    Raises `ConfigError` for a sweep of another form.
    """
    axes = []
    for sweep in sweeps:
        key, equals, text = sweep.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not key.strip() or not all(values):
            raise ConfigError(f"a sweep is KEY=V1,V2, such as workload.rate=500,1000, not {sweep!r}")
        axes.append([f"{key.strip()}={value}" for value in values])
    return list(itertools.product(*axes))


def run_sweep(
    table: Table,
    source: str,
    sweeps: Sequence[str],
    *,
    processes: int | None = None,
    ray_address: str | None = None,
    bound: bool = False,
    on_done: Callable[[SweepPoint, int, int], None] | None = None,
) -> list[SweepPoint]:
    """Simulate every point and return them in order.

    ``table`` is a spec's (`spec_file.read_table`), ``source`` its name in errors. ``bound`` says whether each
    point is to say what was possible. ``on_done`` is told each point as it ends, how many have ended and how
    many there are. Raises `ConfigError` for a spec that is
    wrong at any point before the first is simulated.
    """
    settings = points(sweeps)
    specs = []
    for each in settings:
        specs.append(changed(table, each))
        _check(specs[-1], f"{source} with {', '.join(each)}", bound)
    jobs = [(spec, source, each, bound) for spec, each in zip(specs, settings, strict=True)]
    over = _over_processes(jobs, processes) if ray_address is None else _over_ray(jobs, ray_address)
    found: dict[int, SweepPoint] = {}
    with closing(over):
        for place, point in over:
            found[place] = point
            if on_done is not None:
                on_done(point, len(found), len(jobs))
    return [found[place] for place in range(len(jobs))]


def changed(table: Table, settings: Sequence[str]) -> Table:
    """Return a copy of a spec's table with settings put over it."""
    fresh = copy.deepcopy(table)
    for setting in settings:
        apply_setting(fresh, setting)
    return fresh


def _check(table: Table, where: str, bound: bool) -> None:
    """Raise `ConfigError` for a spec that can't be simulated, or bounded; for a policy that there is not."""
    spec = parse_spec(table, where)
    if bound and closed_under_deadlines(spec):
        raise ConfigError(f"{where}: {NO_BOUND}")
    try:
        Scheduler(spec.scheduler)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


Job = tuple[Table, str, tuple[str, ...], bool]
Points = Generator[tuple[int, SweepPoint], None, None]
"""(place, outcome) as they end; closing it ends those that run."""


def simulate_point(job: Job) -> SweepPoint:
    """Simulate one point; runs in a process of its own. Raises as `simulate` and `bounded` do."""
    table, source, settings, bound = job
    spec = parse_spec(table, source)
    cluster = build_cluster(spec)
    run = bounded(simulate(spec, cluster=cluster, analyse=False), cluster, asked=bound)
    return SweepPoint(settings, run.summary, run.fingerprint, run.wall_s)


def _over_processes(jobs: Sequence[Job], processes: int | None) -> Points:
    workers = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    if workers <= 1:
        for place, job in enumerate(jobs):
            yield place, simulate_point(job)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        # The processes begin here, and inherit this: Ctrl-C goes to all of the terminal's processes, and
        # what to do about it is for this one alone to say.
        with _interrupts_held():
            places = {pool.submit(simulate_point, job): place for place, job in enumerate(jobs)}
        with _killed_by_interrupts(set(multiprocessing.active_children()) - others):
            for future in as_completed(places):
                yield places[future], future.result()
    except BaseException:
        with _interrupts_held():
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _killed_by_interrupts(processes: set[multiprocessing.process.BaseProcess]) -> Iterator[None]:
    """Let Ctrl-C kill processes before it is raised: a second one may cut every clean-up short.

    Only the main thread hears of Ctrl-C; in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.kill()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of a block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _over_ray(jobs: Sequence[Job], address: str) -> Points:
    ray = connect(address)
    try:
        remote: Any = ray.remote(simulate_point)
        waiting = {remote.remote(job): place for place, job in enumerate(jobs)}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)
    finally:
        ray.shutdown()
