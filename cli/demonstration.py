"""The demonstration, a zoo of real models under deadlines on this CPU: compile, serve, replay, report."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed, clear
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.report import flat, write_json
from mainspring.telemetry.summary import LogSummary, OverUnder, analyse_log
from mainspring.traces.arrival import SECOND_NS, WorkloadError
from mainspring.traces.recipe import Recipe, build, chosen_kind
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import Progress, ProgressLine, Summary, progress_text, summary_table
from mainspring.traces.shapes import best_request_ns
from mainspring.traces.workload import Workload

WORKER = "worker-0"
REPLAY_NICE = -10
"""Niceness of the replayer, as of controller and gateway, whose core it shares: late sends make late
answers."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices."""

    duration_s: float = 120.0
    load: float = 0.5
    """Share of the device's capacity that is asked for on average."""
    slo_ms: float = 100.0
    trace: Path | None = None
    """An Azure Functions file instead of the synthetic mix."""
    output: Path = Path("out/demo")
    store: Path = Path("out/demo/store")
    seed: int = 0
    kill_worker_at_s: float | None = None
    """Time from the beginning at which the worker is killed (SIGKILL)."""


class DemoFacts(msgspec.Struct, frozen=True):
    """The facts that a report needs to be repeated and judged."""

    machine_cores: int
    model_instances: int
    model_pages: int
    """Pages of all models together."""
    cache_pages: int
    demo_options: dict[str, str | float | None]
    worker_starts: int


class DemoReport(msgspec.Struct, frozen=True):
    """The outcome of the demonstration."""

    fields: dict[str, Any]
    """Content of ``summary.json``."""
    table: Table
    all_answered: bool
    """True if every request was sent and has its reply."""


def run_demo(options: DemoOptions, console: Console) -> DemoReport:
    """Run the demonstration and write its report; ``console`` shows how it goes.

    Raises `ConfigError` if another one is using the output folder.
    """
    with claimed(options.output, "another demonstration", OUTPUT_REMEDY):
        return _run_alone(options, console)


def _run_alone(options: DemoOptions, console: Console) -> DemoReport:
    """Run the demonstration in a folder of its own."""
    recipe = recipe_for(
        options.trace, round(options.duration_s * 1e9), round(options.slo_ms * 1e6), options.seed
    )
    console.print("[bold]Compiling[/] models that the store does not hold yet")
    specs = fill_store(options.store, lambda text: console.print(f"  {text}", highlight=False))
    recipe, capacity = at_load(recipe, specs, DEVICE_KIND, load=options.load, devices=1)
    pages = sum(spec.pages for spec in specs)
    cache = max(pages // 2, *(spec.pages for spec in specs))
    console.print(
        f"[bold]Starting[/] a worker with {cache} pages of 16 MiB for {len(specs)} models of {pages} pages"
    )
    clear(options.output / "run", OUTPUT_REMEDY)
    with _serving(options, cache, console) as cluster:
        console.print(
            f"[bold]Replaying[/] {recipe.kind.value} for {options.duration_s:g} s at {options.load:.0%} of "
            f"{capacity.capacity_rate:,.0f} requests/s, deadline {options.slo_ms:g} ms ({cluster.address})"
        )
        summary = _replay(recipe, specs, cluster, options, console)
        starts = cluster.supervisor.starts(WORKER)
    chosen = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in msgspec.structs.asdict(options).items()
    }
    facts = DemoFacts(os.cpu_count() or 1, len(specs), pages, cache, chosen, starts)
    analysis = analyse_log(options.output / "run" / "events", start_ns=summary.start_ns)
    title = f"{recipe.kind.value}, {len(specs)} models on one CPU core, SLO {options.slo_ms:g} ms"
    fields = {"title": title, **flat(summary, analysis.summary, capacity, facts)}
    write_json(options.output / "summary.json", fields)
    # Imported here, since `at_load` is also used where there is no Matplotlib.
    from mainspring.telemetry.plots import draw_report

    draw_report(options.output / "report.png", title, summary, analysis)
    table = result_table(title, summary, analysis.summary, capacity)
    return DemoReport(fields, table, summary.missing == 0)


@contextlib.contextmanager
def _serving(options: DemoOptions, pages: int, console: Console) -> Iterator[LocalCluster]:
    """Run a cluster on free ports; from then on this thread keeps off the core of EXEC."""
    gateway, controller = free_ports(2)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(options.store), "run_dir": str(options.output / "run")},
        "worker": {"pages": pages},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    plan = make_plan(read_config(tables, "the demonstration"))
    began = time.monotonic()
    with LocalCluster(plan, lambda text: console.print(f"[yellow]{text}[/]", highlight=False)) as cluster:
        os.sched_setaffinity(0, plan.jobs[0].cores)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, REPLAY_NICE)
        console.print(f"  ready after {time.monotonic() - began:.1f} s", highlight=False)
        yield cluster


def _replay(
    recipe: Recipe, specs: Sequence[ModelSpec], cluster: LocalCluster, options: DemoOptions, console: Console
) -> Summary:
    workload = build(recipe, [spec.name for spec in specs])
    replayer = Replayer(ReplayConfig(address=cluster.address, seed=options.seed))
    with contextlib.ExitStack() as stack:
        stack.callback(replayer.close)
        progress = stack.enter_context(DemoProgress(console, options.duration_s))
        if options.kill_worker_at_s is not None:
            timer = threading.Timer(options.kill_worker_at_s, _kill_worker, (cluster, console))
            stack.callback(timer.cancel)
            timer.start()
        summary, _ = replayer.play(workload, progress=progress)
    return summary


def _kill_worker(cluster: LocalCluster, console: Console) -> None:
    pid = cluster.supervisor.pid(WORKER)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        console.print(f"[yellow]SIGKILL to {WORKER}[/]")


ARCHITECTURES = ("bert-mini", "bert-tiny", "mobilenet", "resnet56", "shufflenet", "squeezenet")
"""Small enough that one core runs a request in a few milliseconds, and of several kinds."""

COPIES = 4
DEVICE_KIND = "cpu"


def fill_store(folder: Path, say: Callable[[str], None]) -> list[ModelSpec]:
    """Compile the demonstration's models into a store, as far as it does not hold them; return all of them.

    ``say`` gets a line for each architecture when its copies are there.
    """
    # Imported here, since `at_load` is also used where there is no ONNX.
    from mainspring.compiler.zoo.catalogue import compile_zoo

    store = Store(folder)
    specs = []
    for architecture in ARCHITECTURES:
        began = time.monotonic()
        compiled = list(compile_zoo([architecture], store, COPIES))
        done = [one.manifest.spec() for one in compiled]
        kept = sum(one.kept for one in compiled)
        profile = done[0].profiles[DEVICE_KIND]
        single = f"{profile.infer_ns[1] / 1e6:.1f} ms a request, LOAD {profile.load_ns / 1e6:.1f} ms"
        took = "kept" if kept == COPIES else f"{time.monotonic() - began:.1f} s"
        say(f"{COPIES} x {architecture:12} {done[0].pages} pages, {single}  ({took})")
        specs += done
    return sorted(specs, key=lambda spec: spec.name)


PLAIN_INTERVAL_S = 10.0
"""Time between two lines of progress where no terminal shows a live one."""

DISTURBED = 2.0
"""Spread of equal executions from which on late answers and wrong predictions are the machine's."""


class DemoProgress:
    """A live line on a terminal; elsewhere, such as in a log, a line now and then."""

    def __init__(self, console: Console, duration_s: float) -> None:
        self._console = console
        self._duration_s = duration_s
        self._live = ProgressLine(console, duration_s)
        self._next_line_s = PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, progress: Progress) -> None:
        """Show the state of the run."""
        self._live(progress)
        if not self._console.is_terminal and progress.elapsed_s >= self._next_line_s:
            self._next_line_s += PLAIN_INTERVAL_S
            self._console.print(progress_text(progress, self._duration_s), soft_wrap=True)


def result_table(title: str, summary: Summary, log: LogSummary, capacity: Capacity) -> Table:
    """Return the clients' table of a run with what the event log and the profiles add."""
    table = summary_table(title, summary)
    table.add_section()
    table.add_row("capacity in best batches / of single requests", _rates(capacity))
    table.add_row("EXEC busy", _share(log.exec_utilisation))
    table.add_row("pages occupied", _share(log.page_occupancy))
    table.add_row("loads / unloads", f"{log.loads:,} / {log.unloads:,}")
    table.add_row("INFER predicted too long / short, p99", _over_under(log.infer_prediction_error_p99_us))
    table.add_row("LOAD predicted too long / short, p99", _over_under(log.load_prediction_error_p99_us))
    table.add_row("INFER p99 / median, same model and batch", _spread(log.infer_spread_p99))
    if log.workers_lost:
        table.add_row("workers lost", f"{log.workers_lost:,}")
    return table


def _rates(capacity: Capacity) -> str:
    return f"{capacity.capacity_rate:,.0f}/s / {capacity.capacity_single_rate:,.0f}/s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _spread(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.1f} x" + (": something else disturbs this machine" if ratio > DISTURBED else "")


def _over_under(error: OverUnder) -> str:
    over, under = ("-" if value is None else f"{value:,.0f} us" for value in (error.over, error.under))
    return f"{over} / {under}"


class Capacity(msgspec.Struct, frozen=True):
    """Requests per second of a workload's mix of models that the devices can execute, by their profiles."""

    capacity_rate: float
    """Rate if every request runs in the best of its model's batches that end within the deadline."""
    capacity_single_rate: float
    """Rate if every request runs alone."""
    load: float
    """The share of ``capacity_rate`` that is asked for."""


def recipe_for(trace: Path | None, duration_ns: int, slo_ns: int, seed: int) -> Recipe:
    """Return the workload: an Azure trace's file of either schema, or a synthetic mix of that shape."""
    return Recipe(
        kind=chosen_kind(None, trace), trace=trace, duration_ns=duration_ns, slo_ns=slo_ns, seed=seed
    )


def at_load(
    recipe: Recipe, specs: Sequence[ModelSpec], device_kind: str, *, load: float, devices: int
) -> tuple[Recipe, Capacity]:
    """Scale a workload so that its average is ``load`` times what the devices can do with its mix.

    Durations come from the models' profiles for ``device_kind``; each counts as often as the workload
    names its model. Raises `WorkloadError` for a workload without any request.
    """
    profiles = {spec.name: spec.profiles[device_kind] for spec in specs}
    workload = build(recipe, [spec.name for spec in specs])
    assert isinstance(workload, Workload)
    used = [profiles[arrival.model] for arrival in workload.arrivals(np.random.default_rng(recipe.seed))]
    if not used:
        raise WorkloadError(f"the workload has no request in its first {recipe.duration_ns / SECOND_NS:g} s")
    best_ns = float(np.mean([best_request_ns(profile.infer_ns, recipe.slo_ns) for profile in used]))
    best = devices * SECOND_NS / best_ns
    single = devices * SECOND_NS / float(np.mean([min(profile.infer_ns.values()) for profile in used]))
    scale = load * best * recipe.duration_ns / SECOND_NS / len(used)
    return msgspec.structs.replace(recipe, scale=scale), Capacity(best, single, load)
