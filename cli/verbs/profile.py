"""``mainspring profile``: what every model of a store takes on this machine's device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import (
    BATCH_SIZES,
    DEFAULT_STORE,
    DEVICE,
    DEVICE_KIND,
    AsJson,
    LibraryOption,
    ModelStore,
    Realtime,
    Threads,
    seconds,
)
from mainspring.cli.spans import Log
from mainspring.messages.choices import one_of

Seconds = Annotated[
    str, typer.Option("--seconds", help="Time for each number; five runs are made in any case.")
]
Graph = Annotated[
    str | None, typer.Option(help="With --log: profile this graph by what the log holds of it.")
]
WIDTH = 140
"""Width of what is printed where there is no terminal whose width would limit it."""

if TYPE_CHECKING:
    from mainspring.cli.profiling.profiling import Measured
    from mainspring.compiler.artifact.manifest import Manifest
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.choosing.durations import Effort
    from mainspring.worker.config import WorkerConfig


def profile(
    models: Annotated[list[str] | None, typer.Argument(help="Models of the store; all by default.")] = None,
    store: ModelStore = DEFAULT_STORE,
    engine: Annotated[
        str, typer.Option(help="Engine that runs them; auto for the one that each was compiled for.")
    ] = "auto",
    device: Annotated[str, DEVICE] = "cpu",
    device_kind: Annotated[str | None, DEVICE_KIND] = None,
    batch_sizes: Annotated[str | None, BATCH_SIZES] = None,
    effort: Seconds = "1s",
    threads: Threads = 1,
    op_library: LibraryOption = None,
    csv: Annotated[Path | None, typer.Option(help="File for the table as CSV.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Store the profiles with the models.")] = False,
    fastest: Annotated[
        str | None, typer.Option(help="Store the fastest of the named models once more, under this name.")
    ] = None,
    realtime: Realtime = True,
    graph: Graph = None,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Measure LOAD and INFER of models on this machine's device, as the paper's appendix A does.

    Durations are medians of whole calls; a profile that is stored is near the 99th percentile. With --graph:
    shares of steps, conditions that go together, and durations by --log, as part of a spec to plan.
    """
    if graph is not None or log is not None:
        _profile_graph(graph, log, device_kind, as_json=as_json)
        return
    from mainspring.cli.profiling.profiling import by_executable
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.choosing.durations import Effort
    from mainspring.compiler.pipeline import parse_batch_sizes

    sizes = parse_batch_sizes(batch_sizes) if batch_sizes else ()
    opened = Store(store)
    config = _config(engine, device, store, threads, op_library or (), realtime=realtime)
    groups = by_executable(_manifests(opened, models or [], fastest))
    if save or fastest:
        opened.check_writable()
    rows, kind = _measure(config, groups, sizes, Effort(seconds=seconds(effort, "--seconds")), quiet=as_json)
    if csv is not None:
        _write(rows, csv)
    if save:
        _save(opened, rows, device_kind or kind)
    if fastest:
        _keep_fastest(opened, rows, fastest)
    _print_json(rows, engine, device_kind or kind) if as_json else _print(rows)


def _profile_graph(graph: str | None, log: Path | None, kind: str | None, *, as_json: bool) -> None:
    """Print what a log tells of a graph."""
    from mainspring.telemetry.entries import SegmentHeader
    from mainspring.telemetry.graph_profile import GraphProfiler, as_spec
    from mainspring.telemetry.log import read_entries

    if graph is None or log is None:
        raise typer.BadParameter("--graph and --log belong together", param_hint="--graph")
    profiler = GraphProfiler(graph)
    for _, entry in read_entries(log):
        if not isinstance(entry, SegmentHeader):
            profiler.take(entry)
    found = profiler.finish()
    if found is None:
        raise typer.BadParameter(f"{log} has no query of a graph {graph!r}", param_hint="--graph")
    try:
        text = as_spec(found, kind)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device-kind") from None
    if as_json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(found, str_keys=True), indent=2))
    else:
        print(text, end="")


def _config(
    engine: str, device: str, store: Path, threads: int, libraries: Sequence[str], *, realtime: bool
) -> WorkerConfig:
    """Return the worker's part of the options; raise BadParameter for an unknown engine or device."""
    from mainspring.worker.config import WorkerConfig
    from mainspring.worker.engines.registry import CUDA_ENGINES, ENGINES

    try:
        config = WorkerConfig(
            name="profile",
            engine=engine,
            device=device,
            store=str(store),
            threads=threads,
            op_libraries=tuple(libraries),
            realtime=realtime,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from None
    known = tuple(ENGINES) if config.cuda_device is None else CUDA_ENGINES
    if engine not in known:
        raise typer.BadParameter(f"{device} has no engine {engine!r}; choose one of {one_of(engine, known)}")
    return config


def _manifests(store: Store, names: Sequence[str], fastest: str | None) -> list[Manifest]:
    """Return the named manifests, or all; raise `StoreError` if there is none.

    Raises `ConfigError` if they are not artifacts of one model, of which the ``fastest`` could be kept.
    """
    from mainspring.compiler.artifact.errors import StoreError

    found = [store.manifest(name) for name in dict.fromkeys(names)] if names else store.manifests()
    if not found:
        raise StoreError(f"the store {store.root} holds no model; `mainspring zoo` or `compile` adds some")
    if fastest:
        from mainspring.cli.profiling.profiling import check_alike

        check_alike(found if names else [], fastest)
    return found


def _measure(
    config: WorkerConfig,
    groups: Sequence[Sequence[Manifest]],
    sizes: Sequence[int],
    effort: Effort,
    *,
    quiet: bool,
) -> tuple[list[Measured], str]:
    """Measure in a thread like a worker's EXEC; return also the device's kind."""
    from rich.console import Console

    from mainspring.cli.profiling.lone_device import as_exec_thread, device_for
    from mainspring.cli.profiling.profiling import chosen_sizes, measure_models
    from mainspring.worker.realtime import Rights

    for group in groups:
        chosen_sizes(group[0], sizes)
    console = Console(stderr=True, highlight=False, quiet=quiet)
    with console.status("measuring") as status, device_for([g[0].spec() for g in groups], config) as device:
        rights = Rights(config.realtime)
        with rights.claimed_process():
            found = measure_models(
                device, groups, sizes, effort, lambda name: status.update(f"measuring {name}")
            )
            rows = as_exec_thread(rights, lambda: list(found))
    for note in rights.notes:
        console.print(f"note: {note}")
    return rows, device.kind


def _write(rows: Sequence[Measured], csv: Path) -> None:
    from mainspring.cli.profiling.profiling import csv_table

    csv.parent.mkdir(parents=True, exist_ok=True)
    csv.write_text(csv_table(rows), encoding="utf-8")


def _save(store: Store, rows: Sequence[Measured], device_kind: str) -> None:
    from mainspring.cli.profiling.profiling import keep

    for row in rows:
        keep(store, row, device_kind)


def _keep_fastest(store: Store, rows: Sequence[Measured], name: str) -> None:
    """Store the fastest under the name, and say which it is."""
    import sys

    from mainspring.cli.profiling.profiling import keep_fastest, per_row_ns

    kept = keep_fastest(store, rows, name)
    times = ", ".join(f"{row.models[0]} {per_row_ns(row) / 1e6:.3g} ms" for row in rows)
    print(f"{name} is {kept.models[0]} (engine {kept.engine}); for a row: {times}", file=sys.stderr)


def _print_json(rows: Sequence[Measured], engine: str, device_kind: str) -> None:
    import msgspec

    from mainspring.cli.profiling.profiling import family_of, titles

    models = [
        {"family": family_of(row), "title": title, **msgspec.to_builtins(row, str_keys=True)}
        for row, title in zip(rows, titles(rows), strict=True)
    ]
    print(json.dumps({"engine": engine, "device_kind": device_kind, "models": models}, indent=2))


def _print(rows: Sequence[Measured]) -> None:
    from rich.console import Console

    from mainspring.cli.profiling.profiling import heading, terminal_table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(heading(rows))
    console.print(terminal_table(rows))
