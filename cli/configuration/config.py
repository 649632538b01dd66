"""``mainspring.toml``: one table for each kind of process and one for the cluster as a whole.

``[cluster]`` is `ClusterConfig`, ``[shards]`` `ShardsConfig`; ``[scheduler]``, ``[controller]``,
``[gateway]``, ``[worker]``, ``[repository]`` and ``[console]`` are the processes' own structs, so a key is
documented in one place, beside its default. What follows from another key (a worker's name, the controller's
address as others see it) can't be set twice: `DERIVED` says where it comes from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainspring.cli.configuration.groups import NAME as DEVICE_GROUPS
from mainspring.cli.configuration.groups import DeviceConfig, ShardsConfig, checked, preferring, read_devices
from mainspring.cli.output import check_logging
from mainspring.compiler.artifact.op_libraries import check_entry, is_path
from mainspring.console.config import ConsoleConfig
from mainspring.controller.config import ControllerConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.messages.choices import did_you_mean, one_of
from mainspring.messages.operating import weight_fault
from mainspring.messages.tables import FIXED, MOVED, ConfigError, build
from mainspring.repository.config import RepositoryConfig
from mainspring.scheduler.config import SchedulerConfig, take_tenants
from mainspring.transport.config import TransportConfig
from mainspring.worker.config import WorkerConfig
from mainspring.worker.engines.registry import ENGINES

MODELS = "models"
MOST = {
    **{"workers": 10_000, "max_workers": 10_000, "gateways": 64, "copies": 1_000_000},
    **dict.fromkeys(("ready_timeout_s", "stop_timeout_s"), 10_000_000),
    **dict.fromkeys(("restart_delay_ms", "restart_delay_max_ms"), 100_000_000),
}
"""The most of each in a local cluster: more is a slip, and would take memory or time without end."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one model."""

    max_queue_size: int | None = None
    """Number of requests that may wait for it; one more is refused at once."""
    goodput_weight: float | None = None
    """Number of other models' answers that an answer of it in time counts as."""
    max_rows_per_request: int | None = None
    """Same as ``max_rows_per_request`` of the gateway, of this model or graph alone."""

    workers: int | None = None
    """Number of workers that it has of its own: they run nothing else, and no others run it."""
    max_batch: int | None = None
    """Most of its rows that run together, with ``workers``; as many as its largest batch by default."""
    device_kind: str | None = None
    """Kind of those workers' devices; any by default."""

    @property
    def own_workers(self) -> tuple[int, int, str] | None:
        """Return workers, largest batch and kind; None if it has no workers of its own."""
        return None if self.workers is None else (self.workers, self.max_batch or 0, self.device_kind or "")

    def __post_init__(self) -> None:
        """Check the values."""
        if self.workers is None and (self.max_batch is not None or self.device_kind is not None):
            raise ValueError("max_batch and device_kind are of workers of its own: say how many with workers")
        if self.workers is not None and not 1 <= self.workers <= MOST["workers"]:
            raise ValueError(
                f"workers is {self.workers}; it must be at least 1 and at most {MOST['workers']:,}"
            )
        if self.max_batch is not None and self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; it must be at least 1")
        if self.max_queue_size is not None and self.max_queue_size < 1:
            raise ValueError(f"max_queue_size is {self.max_queue_size}; it must be at least 1")
        if self.max_rows_per_request is not None and self.max_rows_per_request < 1:
            raise ValueError(f"max_rows_per_request is {self.max_rows_per_request}; it must be at least 1")
        if self.goodput_weight is not None and (fault := weight_fault(self.goodput_weight)):
            raise ValueError(fault)


def read_models(tables: object, source: str) -> dict[str, ModelConfig]:
    """Return the settings of each model that is named; raise `ConfigError`."""
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError(f"{source}: models has a table for each model: write [{MODELS}.NAME]")
    return {
        name: build(ModelConfig, table, f"{source}, [{MODELS}.{name}]", {}) for name, table in tables.items()
    }


WORKER_NAME = "worker"
"""Name of workers, before each gets its number."""

MOST_CONTROLLERS = 9
AUTO = "auto"
DEVICES = ("cpu", "cuda")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A local cluster as a whole. Raises ValueError on a value that can't work."""

    workers: int = 1
    """Worker processes, each one device. The cores of this machine bound what more of them are good for. With
    ``device = "cuda"`` it is the number of GPUs found, unless it is given."""
    controllers: int = 1
    """Controllers that share a lease: one leads, the others stand by and take over within a second once it
    is gone."""
    max_workers: int = 64
    """The most workers of one kind that `mainspring scale` may have it run, for each controller if there are
    several; it may begin with more."""
    devices: tuple[DeviceConfig, ...] = ()
    """Workers on unlike devices, in the place of ``workers``: groups with ``kind``, ``count``, ``speed`` or
    ``profiles`` of emulated devices, ``pages`` and ``price``. Written as ``[[devices]]`` at the end of the
    file, or taken from a plan with ``--devices``."""
    gateways: int = 1
    """Gateways, for clients that know several. Each listens at ports 10 higher than the one before."""
    device: str = "cpu"
    """Device that workers compute on: ``cpu``, or ``cuda`` for this machine's GPUs, one worker for each."""
    engine: str = "onnxruntime"
    """Engine that runs the models: ``onnxruntime``; ``tvm``; ``auto``, for each model the engine that it was
    compiled for; ``python`` for Python models alone, which each of these runs on the CPU, too; or
    ``emulated``, which only sleeps."""
    store: str | None = None
    """Folder of the model store; all of its models are served. Relative to the configuration file."""
    op_libraries: tuple[str, ...] = ()
    """Libraries with operators that ONNX Runtime lacks, for models that have them: packages, such as
    ``onnxruntime-extensions``, .so files, or folders, of whose files a ``config.pbtxt`` may name some (a path
    has a / in it). They are code that compiler and workers run. Relative to the file."""
    graphs: str = ""
    """Folder of files NAME.toml, each with a graph of models that is served under its name. Relative to the
    file."""
    profiles: str | None = None
    """CSV file of profiles in place of a store, for the emulated engine. Relative to the file."""
    copies: int = 1
    """Instances of each row of ``profiles``."""
    run_dir: str = "out/run"
    """Folder for the processes' logs, their jobs, their sockets and the event log, which it keeps to its user
    (mode 0700). Relative to the file."""
    keys: str = ""
    """Folder of keys that `mainspring keys` made, with a folder of its own for each process: ``controller``,
    ``gateway``, ``worker-0`` and so on. With it the processes speak TLS over TCP. Relative to the file."""
    insecure: bool = False
    """True if clients and browsers may be served beyond this host without encryption; else such processes
    don't start. Processes on several hosts need ``keys`` in any case."""
    event_log: bool = True
    """Keep the controller's event log in ``run_dir/events``."""
    console: bool = False
    """Run an operator console beside the cluster, at ``[console] address``; `mainspring up` does so unless
    this is set to false, or ``--console-port off`` is given."""
    log_level: str = "WARNING"
    """Lowest level of what the processes log: DEBUG, INFO, WARNING or ERROR."""
    log_format: str = "text"
    """Format of the log: text for a person, or json, one object on each line."""
    ready_timeout_s: float = 600.0
    """Time in which every worker must prepare every model."""
    stop_timeout_s: float = 10.0
    """Time that all processes together may take to drain on a stop; what is left then is killed."""
    restart_delay_ms: float = 200.0
    """Delay from a process's death to its restart; it doubles with each death in a row."""
    restart_delay_max_ms: float = 5_000.0
    """The longest such delay; a process that lived longer starts afresh."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 1 <= self.controllers <= MOST_CONTROLLERS:
            raise ValueError(f"controllers is {self.controllers}; it must be 1 to {MOST_CONTROLLERS}")
        for field, most in MOST.items():
            value = getattr(self, field)
            if not 0 < value <= most:
                raise ValueError(f"{field} is {value}; it must be greater than 0 and at most {most:,}")
        if self.restart_delay_max_ms < self.restart_delay_ms:
            raise ValueError("restart_delay_max_ms must be at least restart_delay_ms")
        for entry in self.op_libraries:
            check_entry(entry)
        _check_one_of("engine", self.engine, tuple(ENGINES))
        _check_one_of("device", self.device, DEVICES)
        if self.engine == "emulated" and self.device != "cpu":
            raise ValueError("the emulated engine needs no device: leave device 'cpu'")
        check_logging(self.log_level, self.log_format)


def _check_one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    """Raise `ValueError` that suggests the nearest unless the value is known."""
    if value not in known:
        raise ValueError(f"{field} {value!r} is not one of {one_of(value, known)}")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A whole ``mainspring.toml``."""

    cluster: ClusterConfig = ClusterConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    controller: ControllerConfig = ControllerConfig()
    gateway: GatewayConfig = GatewayConfig()
    worker: WorkerConfig = WorkerConfig(name=WORKER_NAME)
    repository: RepositoryConfig = RepositoryConfig()
    console: ConsoleConfig = ConsoleConfig()
    shards: ShardsConfig = ShardsConfig()
    transport: TransportConfig = TransportConfig()


TABLES: dict[str, type[msgspec.Struct]] = {each.name: each.type for each in msgspec.structs.fields(Config)}

DERIVED: dict[tuple[str, str], str] = {
    **{
        (table, "keys"): "set [cluster] keys, with a folder in it for each process"
        for table in ("controller", "gateway", "worker", "repository", "console")
    },
    ("controller", "shard"): "a controller's place in [shards] controllers says it, or --shard",
    ("controller", "shards"): "set [shards] controllers",
    ("controller", "shard_pages"): "set [shards] pages",
    ("gateway", "shards"): "set [shards] controllers",
    ("gateway", "controller_address"): "it is [controller] address",
    ("gateway", "launcher_token_sha256"): "the launcher makes a token for itself at each start",
    ("gateway", "console_address"): "it is [console] address",
    ("gateway", "repository_address"): "it is [repository] address",
    ("repository", "controller_address"): "it is [controller] address",
    ("repository", "shards"): "set [shards] controllers",
    ("repository", "shard_pages"): "set [shards] pages",
    ("repository", "store"): "set [cluster] store; without one it is the folder store in run_dir",
    ("repository", "own_store"): "it says whether [cluster] store is left to the launcher",
    ("repository", "state_dir"): "it is a folder in [cluster] run_dir",
    ("console", "controller_address"): "it is [controller] address",
    ("console", "shard"): "`mainspring up` starts a console for each controller",
    (
        "console",
        "shards",
    ): "`mainspring up` starts a console for each controller, at ports from [console] address on",
    ("console", "log_dir"): "a cluster's console shows the cluster; `mainspring console --log` shows a log",
    ("scheduler", "epoch"): "the controllers' lease counts it",
    ("controller", "forget"): "give `mainspring controller` --forget",
    ("controller", "state_file"): "it is in [cluster] run_dir",
    ("controller", "event_log_dir"): "set [cluster] event_log and run_dir",
    ("worker", "controller"): "it is [controller] address",
    ("worker", "name"): "workers are named worker-0, worker-1 and so on",
    ("worker", "engine"): "set [cluster] engine",
    ("worker", "device"): "set [cluster] device",
    ("worker", "op_libraries"): "set [cluster] op_libraries",
    ("repository", "op_libraries"): "set [cluster] op_libraries",
    ("worker", "store"): "set [cluster] store",
    ("worker", "exec_core"): "the launcher divides the cores; [worker] realtime = false leaves them alone",
    ("worker", "exec_core_shared"): "the launcher knows what it has put on EXEC's core",
}
"""Keys of the structs that the launcher sets, and what to set instead."""


def is_key(table: str, field: str) -> bool:
    """Return whether a field of a table's struct can be set in the file."""
    key = (table, field)
    return key not in DERIVED and key not in MOVED and field not in FIXED.get(table, ())


def why_not_set(table: str, key: str) -> str:
    """Return why a key can't be set in the file, as the end of a sentence; empty if it can."""
    if (table, key) in DERIVED:
        return f"is not set here: {DERIVED[table, key]}"
    if (table, key) in MOVED:
        return f"is no longer a key: {MOVED[table, key]}"
    if key not in FIXED.get(table, ()):
        return ""
    fields = {field.name: field for field in msgspec.structs.fields(TABLES[table])}
    always = f": it is always {fields[key].default}" if key in fields else ", for nothing needs it"
    return f"is no longer a key{always}; leave it out"


PATH_KEYS = (
    *(("cluster", "store"), ("cluster", "graphs"), ("cluster", "profiles"), ("cluster", "run_dir")),
    *(("cluster", "keys"), ("repository", "path"), ("worker", "store_token_file")),
    *(("gateway", "tls"), ("gateway", "curve_key"), ("gateway", "token_file"), ("gateway", "access_log")),
    *(("console", "tls"), ("console", "token_file")),
)
"""Keys that are paths, relative to the configuration file, by table."""
PATHS_BEHIND = (
    *(("gateway", "application_store", "sqlite:"), ("controller", "lease", "file:")),
    ("worker", "store_from", ""),
)
"""Keys whose value may be such a path behind a prefix, or an address with ``://``."""

Tables = Mapping[str, Mapping[str, Any]]


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a file; raise `ConfigError` if it is missing, no TOML, or has other tables."""
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; docs/configuration.md shows one to begin with") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, and a configuration is a file; to serve the models in a folder: "
            f"--store {path}, or --model-repository {path} if it has Triton's layout"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not a text file, and a configuration is TOML; `mainspring compile` takes an "
            "ONNX model"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if DEVICE_GROUPS in tables:
        groups = read_devices(tables.pop(DEVICE_GROUPS), str(path), path.parent)
        tables.setdefault("cluster", {})[DEVICE_GROUPS] = groups
    for name, key in MOVED:
        if isinstance(table := tables.get(name), dict) and key in table:
            raise ConfigError(f"{path}, [{name}]: {key} {why_not_set(name, key)}")
    take_tenants(tables, str(path))
    if MODELS in tables:
        _spread(read_models(tables.pop(MODELS), str(path)), tables)
    _check_tables(tables, str(path))
    for name, key in PATH_KEYS:
        table = tables.get(name, {})
        if isinstance(table.get(key), str) and table[key]:
            table[key] = str(path.parent / table[key])
    for name, key, prefix in PATHS_BEHIND:
        table = tables.get(name, {})
        said = table.get(key)
        if isinstance(said, str) and said and said.startswith(prefix) and "://" not in said:
            table[key] = prefix + str(path.parent / said.removeprefix(prefix))
    libraries = tables.get("cluster", {}).get("op_libraries")
    if isinstance(libraries, list):
        tables["cluster"]["op_libraries"] = [
            str(path.parent / each) if isinstance(each, str) and is_path(each) else each for each in libraries
        ]
    return tables


def _spread(models: Mapping[str, ModelConfig], tables: dict[str, Any]) -> None:
    """Enter the settings of single models in the tables of the processes that heed them."""
    for key, process, kept in (
        ("max_queue_size", "scheduler", "max_queue_sizes"),
        ("goodput_weight", "scheduler", "goodput_weights"),
        ("own_workers", "scheduler", "own_workers"),
        ("max_rows_per_request", "gateway", "model_max_rows"),
    ):
        said = {name: getattr(each, key) for name, each in models.items() if getattr(each, key) is not None}
        table = tables.setdefault(process, {})
        if said and isinstance(table, dict):
            table[kept] = {**table.get(kept, {}), **said}


def read_config(tables: Tables, source: str) -> Config:
    """Return the configuration of these tables; ``source`` names where they are from in errors.

    Raises `ConfigError`.
    """
    _check_tables(tables, source)
    parts = {name: _read_table(name, tables.get(name, {}), source) for name in TABLES}
    config = msgspec.convert({name: msgspec.to_builtins(part) for name, part in parts.items()}, Config)
    config = _with_devices(config, source, "workers" in tables.get("cluster", {}))
    _check_together(config, source)
    return config


def _with_devices(config: Config, source: str, counted: bool) -> Config:
    """Return a configuration with as many workers as its groups of devices have; raise `ConfigError`.

    ``counted`` says whether the number of workers was given as well.
    """
    cluster = config.cluster
    emulated = cluster.engine == "emulated"
    own = config.worker.device_kind
    checked(cluster.devices, emulated=emulated, device=cluster.device, own=own, source=source)
    if not cluster.devices:
        return config
    workers = sum(each.count for each in cluster.devices)
    if counted and cluster.workers != workers:
        raise ConfigError(
            f"{source}: [cluster] workers is {cluster.workers} and the groups of [[devices]] have {workers}: "
            "take workers out"
        )
    return msgspec.structs.replace(
        config,
        cluster=msgspec.structs.replace(cluster, workers=workers),
        scheduler=preferring(config.scheduler, cluster.devices),
    )


def merged(tables: Tables, overrides: Tables) -> dict[str, dict[str, Any]]:
    """Return ``tables`` with the values of ``overrides`` put over them."""
    names = [*tables, *(name for name in overrides if name not in tables)]
    return {name: {**tables.get(name, {}), **overrides.get(name, {})} for name in names}


def _check_tables(tables: Mapping[str, object], source: str) -> None:
    """Raise `ConfigError` unless all that stands at the top of a configuration are tables that it knows."""
    for name, table in tables.items():
        if name not in TABLES:
            raise ConfigError(f"{source} has no table [{name}]{_table_suggestion(name)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{source}: {name} is a table: write [{name}] on a line of its own")


def _read_table(name: str, table: Mapping[str, Any], source: str) -> msgspec.Struct:
    known = TABLES[name].__struct_fields__
    for key in table:
        if ((name, key) not in MOVED or key not in known) and (why := why_not_set(name, key)):
            raise ConfigError(f"{source}, [{name}]: {key} {why}")
    elsewhere = {
        field: other
        for other, struct in reversed(TABLES.items())
        for field in struct.__struct_fields__
        if other != name and is_key(other, field)
    }
    given = {"name": WORKER_NAME} if TABLES[name] is WorkerConfig else {}
    hidden = {field for field in known if not is_key(name, field)}
    return build(TABLES[name], {**given, **table}, f"{source}, [{name}]", elsewhere, hidden)


def _check_together(config: Config, source: str) -> None:
    """Raise `ConfigError` for numbers with which one process could not work with another."""
    if config.shards.number > 1 and config.controller.address:
        raise ConfigError(
            f"{source}: [controller] address is where the only controller listens, and [shards] has "
            f"{config.shards.number}: say where with [shards] controllers"
        )
    gateway_bytes, worker_bytes = config.gateway.max_message_bytes, config.worker.max_message_bytes
    if gateway_bytes > worker_bytes:
        raise ConfigError(
            f"{source}: [gateway] max_message_bytes is {gateway_bytes} and that of [worker] {worker_bytes}: "
            "an input between them would cut the gateway off from its workers; give the workers at least as "
            "much"
        )


def _table_suggestion(name: str) -> str:
    owners = [table for table, struct in TABLES.items() if name in struct.__struct_fields__]
    if owners:
        return f": {name} is a key of [{owners[0]}]"
    tables = [f"[{table}]" for table in TABLES]
    return did_you_mean(f"[{name}]", tables, f"it knows {', '.join(tables)}").replace("'", "")
