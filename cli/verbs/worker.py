"""``mainspring worker``: one worker in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.launcher.foreground import (
    DEFAULT_DRAIN,
    DrainTimeout,
    LogFormat,
    LogLevel,
    begin,
    ready,
)
from mainspring.cli.options import DEFAULT_STORE, Controller, ModelStore, SecretFile, Threads, duration_ns

DataAddress = Annotated[
    str,
    typer.Option(
        help="Where gateways connect: unix:///PATH, or tcp://HOST:PORT with --secret-file; port * takes any. "
        "Default: a socket beside the controller's, or any port of 127.0.0.1 if that has none.",
        show_default=False,
    ),
]


def worker(
    name: Annotated[str, typer.Option(help="Unique in the cluster.")] = "worker-0",
    controller: Controller = None,
    secret_file: SecretFile = None,
    data_address: DataAddress = "",
    store: ModelStore = DEFAULT_STORE,
    engine: Annotated[str, typer.Option(help="onnxruntime, tvm, auto or emulated.")] = "onnxruntime",
    device: Annotated[str, typer.Option(help="cpu, or cuda:N for a GPU.")] = "cpu",
    device_kind: Annotated[str, typer.Option(help="Which of a model's profiles is this device's.")] = "cpu",
    pages: Annotated[
        int | None,
        typer.Option(min=1, help="Pages of weights memory, 16 MiB each; 64, or all of a GPU, by default."),
    ] = None,
    threads: Threads = 1,
    realtime: Annotated[
        bool, typer.Option(help="Pinned threads, real-time priority, locked memory, where permitted.")
    ] = True,
    exec_core: Annotated[
        int | None, typer.Option(help="Core for EXEC alone; the last one by default.")
    ] = None,
    drain_timeout: DrainTimeout = DEFAULT_DRAIN,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Run a worker until Ctrl-C or SIGTERM, which drain within --drain-timeout."""
    from mainspring.cli.controllers import check_guarded, find
    from mainspring.worker.config import DEFAULT_PAGES, WorkerConfig
    from mainspring.worker.server import run

    _check(engine, device, store, exec_core)
    door = find(controller, secret_file)
    check_guarded(data_address, door.secret_file, "--data-address")
    config = WorkerConfig(
        name=name,
        controller=door.address,
        secret_file=door.secret_file,
        data_address=data_address,
        store=str(store),
        engine=engine,
        device=device,
        device_kind=device_kind,
        pages=pages or (DEFAULT_PAGES if device == "cpu" else 0),
        threads=threads,
        realtime=realtime,
        exec_core=exec_core,
        drain_timeout_ms=max(1, round(duration_ns(drain_timeout, "--drain-timeout") / 1e6)),
    )
    stop = begin(name, log_level, log_format)
    run(config, stop, ready)


def _check(engine: str, device: str, store: Path, exec_core: int | None) -> None:
    """Raise BadParameter for what this machine does not have."""
    from mainspring.worker.config import DEVICE
    from mainspring.worker.engines.registry import CUDA_ENGINES, ENGINES

    if DEVICE.fullmatch(device) is None:
        raise typer.BadParameter(f"{device!r} is not a device; give cpu, or cuda:0 for the first GPU")
    engines = tuple(ENGINES) if device == "cpu" else CUDA_ENGINES
    if engine not in engines:
        raise typer.BadParameter(f"there is no engine {engine!r}; choose one of {', '.join(engines)}")
    if engine != "emulated" and not store.is_dir():
        raise typer.BadParameter(
            f"there is no folder {store}, where this worker would read its models", param_hint="--store"
        )
    cores = sorted(os.sched_getaffinity(0))
    if exec_core is not None and exec_core not in cores:
        raise typer.BadParameter(
            f"core {exec_core} is none of those that this process may use: {', '.join(map(str, cores))}",
            param_hint="--exec-core",
        )
