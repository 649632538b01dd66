"""``mainspring worker``: one worker in the foreground."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.configuration.single import (
    ConfigFile,
    Shard,
    address_of,
    configured_by,
    keys_of,
    log_of,
    replaced,
    with_typed,
)
from mainspring.cli.launcher.foreground import DEFAULT_DRAIN, DrainTimeout, LogFormat, LogLevel, begin, ready
from mainspring.cli.options import (
    DEFAULT_STORE,
    DEVICE,
    DEVICE_KIND,
    ENGINE,
    PAGES,
    Controller,
    KeysFolder,
    ModelStore,
    Realtime,
    Threads,
    duration_ns,
    typed,
)
from mainspring.messages.choices import did_you_mean, one_of

if TYPE_CHECKING:
    from mainspring.cli.configuration.config import ClusterConfig
    from mainspring.worker.config import WorkerConfig

DataAddress = Annotated[
    str,
    typer.Option(
        help="Where gateways connect: unix:///PATH, or tcp://HOST:PORT with --keys; port * takes any. "
        "Default: a socket beside the controller's, or any port of 127.0.0.1 if that has none.",
        show_default=False,
    ),
]
DataHost = Annotated[
    str,
    typer.Option(
        help="Host by which gateways reach --data-address, a name or number. Default: the host in there or, "
        "for a wildcard, this host's address on the way to the controller.",
        show_default=False,
    ),
]
StoreFrom = Annotated[
    str,
    typer.Option(
        help="Where models are fetched from that the store lacks: the address of `store serve`, a folder, or "
        "a URL that fsspec knows.",
        show_default=False,
    ),
]
ExecCore = Annotated[int | None, typer.Option(help="Core for EXEC alone; the last one by default.")]


def worker(
    context: typer.Context,
    config: ConfigFile = None,
    name: Annotated[str, typer.Option(help="Unique in the cluster.")] = "worker-0",
    shard: Shard = None,
    controller: Controller = None,
    keys: KeysFolder = None,
    data_address: DataAddress = "",
    data_host: DataHost = "",
    store: ModelStore = DEFAULT_STORE,
    store_from: StoreFrom = "",
    engine: Annotated[str, ENGINE] = "onnxruntime",
    device: Annotated[str, DEVICE] = "cpu",
    device_kind: Annotated[str, DEVICE_KIND] = "cpu",
    pages: Annotated[int | None, PAGES] = None,
    threads: Threads = 1,
    realtime: Realtime = True,
    exec_core: ExecCore = None,
    drain_timeout: DrainTimeout = DEFAULT_DRAIN,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Run a worker until Ctrl-C or SIGTERM, which drain within --drain-timeout."""
    from mainspring.cli.places import check_guarded, find
    from mainspring.worker.server import run

    whole, tables = configured_by(config)
    engine, device, folder = _computes(context, whole.cluster, engine, device, store)
    _check(engine, device, folder, exec_core, fetches=bool(store_from or whole.worker.store_from))
    door = find(controller or address_of(whole, shard), keys_of(whole, keys, name))
    drain_ms = max(1, round(duration_ns(drain_timeout, "--drain-timeout") / 1e6))
    own: dict[str, object] = {"data_address": data_address, "data_host": data_host, "pages": pages}
    own |= {"device_kind": device_kind, "threads": threads, "realtime": realtime, "store_from": store_from}
    flags = {each: (each, value) for each, value in own.items()}
    flags["drain_timeout"] = ("drain_timeout_ms", drain_ms)
    table = replaced(whole.worker, **_told(whole.cluster, tables.get("worker", {}), device, engine))
    settings = replaced(
        with_typed(context, table, flags),
        **{"name": name, "controller": door.address, "keys": door.folder},
        **{"store": str(folder), "engine": engine, "device": device, "exec_core": exec_core},
    )
    _check_memory(settings)
    check_guarded(settings.data_address, door.folder, "--data-address")
    run(settings, begin(name, *log_of(context, whole, log_level, log_format), whole.transport), ready)


def _told(cluster: ClusterConfig, table: Mapping[str, object], device: str, engine: str) -> dict[str, Any]:
    """Return what a worker has of the cluster's table, and what fits this machine."""
    return {**_fitting(table, device, engine), "op_libraries": cluster.op_libraries}


def _fitting(told: Mapping[str, object], device: str, engine: str) -> dict[str, int]:
    """Return pages and IO memory that fit this machine, or all of a GPU, where nothing is said."""
    from mainspring.cli.configuration.fitting import defaults, usable_bytes
    from mainspring.worker.limits import read_limits

    memory = usable_bytes(read_limits())
    fitting = {"pages": 0} if device != "cpu" else {}
    if device == "cpu" and engine != "emulated" and memory is not None:
        fitting = defaults(memory, {"engine": engine, **told})
    return {key: value for key, value in fitting.items() if key not in told}


def _check_memory(settings: WorkerConfig) -> None:
    """Raise `ConfigError` if a worker can't have the memory that it asks for."""
    import msgspec

    from mainspring.cli.configuration.fitting import check_memory
    from mainspring.worker.limits import read_limits

    if settings.cuda_device is not None:
        settings = msgspec.structs.replace(settings, pages=0)
    if settings.engine != "emulated":
        check_memory(f"worker {settings.name} needs", settings, read_limits())


def _computes(
    context: typer.Context, cluster: ClusterConfig, engine: str, device: str, store: Path
) -> tuple[str, str, Path]:
    """Return engine, device and store, as typed or else as configured; of several GPUs the first."""
    configured_device = "cuda:0" if cluster.device == "cuda" else cluster.device
    return (
        engine if typed(context, "engine") else cluster.engine,
        device if typed(context, "device") else configured_device,
        Path(cluster.store) if cluster.store and not typed(context, "store") else store,
    )


def _check(engine: str, device: str, store: Path, exec_core: int | None, *, fetches: bool) -> None:
    """Raise BadParameter for what this machine does not have."""
    from mainspring.worker.config import DEVICE
    from mainspring.worker.engines.registry import CUDA_ENGINES, ENGINES

    if DEVICE.fullmatch(device) is None:
        raise typer.BadParameter(
            f"{device!r} is not a device; give cpu, or cuda:0 for the first GPU"
            f"{did_you_mean(device, ('cpu', 'cuda:0'))}"
        )
    engines = tuple(ENGINES) if device == "cpu" else CUDA_ENGINES
    if engine not in engines:
        raise typer.BadParameter(f"there is no engine {engine!r}; choose one of {one_of(engine, engines)}")
    if engine != "emulated" and not fetches and not store.is_dir():
        raise typer.BadParameter(
            f"there is no folder {store}, where this worker would read its models; make it, or say with "
            "--store-from where they are fetched from",
            param_hint="--store",
        )
    cores = sorted(os.sched_getaffinity(0))
    if exec_core is not None and exec_core not in cores:
        raise typer.BadParameter(
            f"core {exec_core} is none of those that this process may use: {', '.join(map(str, cores))}",
            param_hint="--exec-core",
        )
