"""A plan of a local cluster's processes by its configuration: who runs where, and with which settings.

Of several controllers it says where each listens, its name, and which workers are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mainspring.cli.configuration.config import ClusterConfig, Config
from mainspring.cli.configuration.fitting import check_fits
from mainspring.cli.configuration.graphs import read_folder
from mainspring.cli.configuration.policies import check_policy
from mainspring.cli.exposure import check_exposed, of_cluster, of_processes
from mainspring.cli.launcher.addresses import (
    MAX_PORT,
    connectable,
    is_tcp,
    listens_by_tcp,
    own_keys,
    parse_any,
    with_sockets,
)
from mainspring.cli.launcher.gateways import also_serves, gateway_configs, gateway_jobs
from mainspring.cli.launcher.jobs import ConsoleJob, ControllerJob, GatewayJob, Job
from mainspring.cli.launcher.models import ModelSource
from mainspring.cli.launcher.repository import NAME as REPOSITORY
from mainspring.cli.launcher.repository import is_repository, repository_job, with_store
from mainspring.cli.launcher.worker_jobs import WorkerPool, worker_pool
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.controller.config import ControllerConfig
from mainspring.messages.model import ModelSpec
from mainspring.messages.tables import ConfigError
from mainspring.repository.config import RepositoryConfig
from mainspring.transport.controllers import SEPARATOR, STANDBY
from mainspring.transport.local import PREFIX as LOCAL
from mainspring.worker.limits import read_limits

NAME = "controller"
CHANGES = ".memory"
"""The end of the name of the file in the run folder that keeps what must outlive a controller."""
LEASE = "lease"
"""Name of the lease's files in the run folder, before each epoch."""


class LocalShard(msgspec.Struct, frozen=True):
    """One controller."""

    number: int
    name: str
    """Name of its process."""
    controller: ControllerConfig
    workers: tuple[int, ...]
    """The numbers of its workers."""
    standbys: tuple[tuple[str, ControllerConfig], ...] = ()
    """Controllers that share its lease, by the names of their processes."""

    @property
    def all(self) -> tuple[tuple[str, ControllerConfig], ...]:
        """Return all that share its lease, by the names of their processes; itself, if that is one."""
        return (self.name, self.controller), *self.standbys

    @property
    def address(self) -> str:
        """Return the address at which this machine's processes connect, or those of all that may lead."""
        return SEPARATOR.join(connectable(each.address) for _, each in self.all)


def local_shards(config: Config, run_dir: Path) -> list[LocalShard]:
    """Return the controllers of a cluster whose processes have their sockets; raise `ConfigError`."""
    own = config.controller
    events = config.cluster.event_log
    if not config.shards.several:
        told = (
            [msgspec.structs.replace(own, address=config.shards.controllers[0])]
            if (config.shards.controllers)
            else [own]
        )
        divided: tuple[int, ...] = (config.cluster.workers,)
    else:
        told, divided = _several(config, run_dir)
    found, first = [], 0
    for number, (each, workers) in enumerate(zip(told, divided, strict=True)):
        ending = f"-{number}" if number else ""
        controller = msgspec.structs.replace(
            each,
            event_log_dir=str(run_dir / f"events{ending}") if events else None,
            state_file=str(run_dir / f"{NAME}{ending}{CHANGES}"),
        )
        found.append(LocalShard(number, f"{NAME}{ending}", controller, tuple(range(first, first + workers))))
        first += workers
    if config.cluster.controllers > 1:
        if len(found) > 1:
            raise ConfigError("[cluster] controllers are for a cluster without [shards]: set one of the two")
        return [_with_standbys(found[0], config.cluster.controllers, run_dir)]
    return found


def _with_standbys(shard: LocalShard, controllers: int, run_dir: Path) -> LocalShard:
    """Return the controller with others that share its lease."""
    own = shard.controller
    lease = own.lease or f"file:{run_dir / LEASE}"
    standbys = []
    for number in range(1, controllers):
        name = f"{shard.name}-{STANDBY}{'' if number == 1 else f'-{number}'}"
        if is_tcp(own.address):
            stem, _, port = own.address.rpartition(":")
            address = f"{stem}:{int(port) + number if port.isdecimal() and int(port) else port}"
        else:
            address = f"{own.address.removesuffix('.sock')}-{STANDBY}-{number}.sock"
        events = None if own.event_log_dir is None else f"{own.event_log_dir}-{STANDBY}-{number}"
        standby = msgspec.structs.replace(
            own,
            address=address,
            event_log_dir=events,
            state_file=str(run_dir / f"{name}{CHANGES}"),
            lease=lease,
        )
        standbys.append((name, standby))
    leader = msgspec.structs.replace(own, lease=lease)
    return msgspec.structs.replace(shard, controller=leader, standbys=tuple(standbys))


def console_addresses(address: str, count: int) -> tuple[str, ...]:
    """Return where the consoles of all controllers are: at ports one behind the other, or at any (0).

    Raises `ConfigError` if there are not as many ports behind the first one.
    """
    stem, _, text = address.rpartition(":")
    first = int(text)
    if first + count - 1 > MAX_PORT:
        raise ConfigError(
            f"[console] address is {address}, and the consoles of {count} controllers are at that port and "
            f"those behind it: give one of at most {MAX_PORT + 1 - count}"
        )
    return tuple(f"{stem}:{first + number if first else 0}" for number in range(count))


def listeners(shards: list[LocalShard]) -> Iterator[tuple[str, str]]:
    """Yield the addresses of TCP that controllers listen on, each with the key that says so."""
    key = "[shards] controllers" if len(shards) > 1 else "[controller] address"
    for shard in shards:
        yield from ((key, each.address) for _, each in shard.all if is_tcp(each.address))


def _several(config: Config, run_dir: Path) -> tuple[list[ControllerConfig], tuple[int, ...]]:
    """Return the configurations of several controllers, and how many workers each has."""
    number, replace = config.shards.number, msgspec.structs.replace
    addresses = config.shards.controllers or tuple(
        f"{LOCAL}{run_dir}/{NAME}{f'-{each}' if each else ''}.sock" for each in range(number)
    )
    try:
        divided = config.shards.divided(config.cluster.workers)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    pages = config.shards.pages or tuple(each * max(1, config.worker.pages) for each in divided)
    seen = tuple(map(connectable, addresses))
    return [
        replace(config.controller, address=address, shard=shard, shards=seen, shard_pages=pages)
        for shard, address in enumerate(addresses)
    ], divided


CONTROL_NICE = -10
"""Niceness of controller and gateways: workers' copies share their core, and every request waits for them."""
CONTROL_PRIORITY = 30
"""Real-time priority of controller and gateways, where the user may: a message waits for no other program, as
it does behind niceness alone for some milliseconds on a busy machine. Below a worker's network thread (40)
and EXEC (50), above an EXEC that computes on their core (25)."""

ANY_HOST = ("*", "0.0.0.0", "::")
"""Hosts that stand for every address of the machine."""

LAUNCHER = "launcher"
"""Name of the launcher as the provider of workers, and of the folder of its own keys."""
CONSOLE = "console"
CONSOLE_NICE = 5
"""Niceness of the console, which may wait for the processes that serve."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the supervisor needs to know."""

    cluster: ClusterConfig
    jobs: tuple[Job, ...]
    """Jobs in the order in which they start."""
    stop_order: tuple[tuple[str, ...], ...]
    """Names of the processes that are stopped together, in the order of work: requests first. The workers
    follow."""
    shards: tuple[int, ...]
    """Number of workers of each controller."""
    pool: WorkerPool
    """The workers that the cluster begins with, and may have."""
    controller_address: str
    """Address at which processes of this machine connect to the controller; to the first of several."""
    provider_keys: str
    """The folder of the launcher's own keys, as the provider of workers; empty for none."""
    models: int
    """Models that are served."""
    gateways: tuple[GatewayJob, ...]
    also_serves: tuple[tuple[str, str], ...]
    """Protocols beside ZeroMQ of the first gateway, each with its address."""
    console_address: str
    """Empty if there is no console."""
    listening: tuple[tuple[str, str], ...]
    """Addresses that must be free, each with how to choose another."""
    run_dir: Path
    repository: RepositoryConfig = RepositoryConfig()
    """Settings of the model repository; their path is empty if there is none."""

    @property
    def gateway_addresses(self) -> tuple[str, ...]:
        """Return the addresses of all gateways for Mainspring's own clients."""
        return tuple([job.gateway.address for job in self.gateways])

    @property
    def gateway_address(self) -> str:
        """Return that of the first."""
        return self.gateway_addresses[0]


def make_plan(config: Config) -> Plan:
    """Return the processes of a configuration; raise `ConfigError` for what can't work together."""
    run_dir = Path(config.cluster.run_dir).absolute()
    config = _with_application_store(with_sockets(with_store(config, run_dir), run_dir), run_dir)
    cluster, repository = config.cluster, config.repository
    if repository.path and cluster.device == CUDA:
        raise ConfigError(
            "a model repository's models are compiled for the CPU, and the cluster's device is cuda: compile "
            "them into a store with --device cuda, and give that with --store"
        )
    source = model_source(cluster, repository)
    specs = source.specs()
    _check_models(config, source, specs)
    if cluster.engine != "emulated":
        source.check_files(device=cluster.device)
    check_fits(config, read_limits(), cluster.workers)
    check_policy(config.scheduler.policy, config.scheduler.policy_options)
    shards = local_shards(config, run_dir)
    _check_addresses(config, shards)
    _check_tracing(config.gateway.trace_address)
    pool = worker_pool(config, [shard.address for shard in shards for _ in shard.workers])
    controller = shards[0].address
    # While the gateway leaves, all others serve.
    stop_timeout_s = cluster.stop_timeout_s + config.gateway.lame_duck_ms / 1e3
    jobs = _jobs(config, source, shards, pool)
    gateways = tuple([job for job in jobs if isinstance(job, GatewayJob)])
    return Plan(
        cluster=msgspec.structs.replace(cluster, stop_timeout_s=stop_timeout_s),
        pool=pool,
        controller_address=controller,
        provider_keys=_provider_keys(cluster.keys) if is_tcp(controller) else "",
        jobs=jobs,
        stop_order=(
            *([(REPOSITORY,)] if repository.path else []),
            tuple([job.name for job in gateways]),
            *([_consoles(len(shards))] if cluster.console else []),
            tuple(name for shard in shards for name, _ in shard.all),
        ),
        shards=tuple(len(shard.workers) for shard in shards),
        models=len(specs),
        gateways=gateways,
        also_serves=also_serves(config.gateway),
        console_address=config.console.address if cluster.console else "",
        listening=tuple((address, remedy) for _, address, remedy in _listeners(config, shards) if remedy),
        run_dir=run_dir,
        repository=repository,
    )


def _with_application_store(config: Config, run_dir: Path) -> Config:
    """Return the configuration with a file for what applications learn, unless it says where that is kept."""
    store = config.gateway.application_store or f"sqlite:{run_dir / 'applications.sqlite'}"
    gateway = msgspec.structs.replace(config.gateway, application_store=store)
    return msgspec.structs.replace(config, gateway=gateway)


def _check_models(config: Config, source: ModelSource, specs: Sequence[ModelSpec]) -> None:
    """Raise `ConfigError` if there is nothing to serve and nothing can come, or a model that fits nowhere."""
    if not specs and not config.repository.path:
        remedy = "`mainspring zoo` or `compile` adds some"
        if source.store is not None and is_repository(Path(source.store)):
            remedy = f"it is a model repository: serve it with --model-repository {source.store}"
        raise ConfigError(f"the store {source.store} holds no model; {remedy}")
    largest = max(specs, key=lambda spec: spec.pages, default=None)
    measured = config.cluster.device == CUDA and not config.worker.pages
    if largest is not None and not measured and largest.pages > config.worker.pages:
        raise ConfigError(
            f"{largest.name} needs {largest.pages} pages and a worker has {config.worker.pages}; "
            f"give it more with --pages or [worker] pages"
        )


def _listeners(config: Config, shards: list[LocalShard]) -> Iterator[tuple[str, str, str]]:
    """Yield what listens on TCP: the key that says where, the address, and how to choose another.

    The last is empty for what is not checked before the start.
    """
    choose = "choose another with"
    data, repository = config.worker.data_address, config.repository
    for gateway in gateway_configs(config):
        yield ("[gateway] address", gateway.address, f"{choose} --port or [gateway] address")
        for name, address in also_serves(gateway):
            key = f"[gateway] {name}_address"
            yield (key, address, f"{choose} --{name}-port or {key}, or off")
    for key, address in listeners(shards):
        yield (key, address, f"{choose} {key}")
    if is_tcp(data):
        yield ("[worker] data_address", data, "")
    if listens_by_tcp(repository):
        yield ("[repository] address", repository.address, f"{choose} [repository] address")
    if config.cluster.console:
        key = "[console] address"
        for address in console_addresses(config.console.address, len(shards)):
            yield (key, address, f"{choose} --console-port or {key}, or off")


def _check_addresses(config: Config, shards: list[LocalShard]) -> None:
    """Raise `ConfigError` if two were to listen on one address, or one in clear to other hosts."""
    keys = config.cluster.keys
    doors = [of_processes(key, address, keys) for key, address in listeners(shards)]
    check_exposed([*of_cluster(config), *doors], config.cluster.insecure)
    data = config.worker.data_address
    if data and not data.endswith(":*") and config.cluster.workers > 1:
        raise ConfigError(
            f"[worker] data_address is {data} for each of {config.cluster.workers} workers, and only one can"
            " listen there; end it with :* for any free port"
        )
    for (one, first, _), (other, second, _) in itertools.combinations(_listeners(config, shards), 2):
        if not any(each.endswith((":*", ":0")) for each in (first, second)) and _same(first, second):
            raise ConfigError(f"{second} would be listened on twice: give {one} and {other} different ports")


def _check_tracing(address: str) -> None:
    """Raise `ConfigError` if a gateway could not send traces there."""
    from mainspring.gateway.otlp import TracingMissing, check_tracing

    try:
        if address:
            check_tracing(address)
    except (OSError, TracingMissing) as error:
        raise ConfigError(str(error)) from None


def _same(first: str, second: str) -> bool:
    (host, port), (other_host, other_port) = parse_any(first), parse_any(second)
    return port == other_port and (host == other_host or not {host, other_host}.isdisjoint(ANY_HOST))


def model_source(cluster: ClusterConfig, repository: RepositoryConfig) -> ModelSource:
    """Return where the cluster's models come from; raise `ConfigError` unless that is exactly one place.

    A repository may be alone, and beside a store.
    """
    if repository.path:
        return ModelSource(store=cluster.store, state_dir=repository.state_dir)
    if (cluster.store is None) == (cluster.profiles is None):
        wrong = "neither was given" if cluster.store is None else "both were given"
        raise ConfigError(
            "models come from a store (--store DIR), a model repository (--model-repository DIR) or profiles "
            f"(--profiles CSV): {wrong}"
        )
    if cluster.profiles is not None and cluster.engine != "emulated":
        raise ConfigError("profiles are for the emulated engine (--engine emulated); others need a store")
    return ModelSource(
        store=cluster.store, profiles=cluster.profiles, copies=cluster.copies, devices=cluster.devices
    )


def _provider_keys(keys: str) -> str:
    """Return the folder of the launcher's own keys; empty if there is none, so that nothing can be scaled."""
    folder = Path(keys, LAUNCHER)
    return str(folder.absolute()) if keys and folder.is_dir() else ""


def _jobs(config: Config, source: ModelSource, shards: list[LocalShard], pool: WorkerPool) -> tuple[Job, ...]:
    cluster, replace = config.cluster, msgspec.structs.replace
    shared, exec_cores = pool.shared, pool.exec_cores
    nice, priority = (CONTROL_NICE, CONTROL_PRIORITY) if config.worker.realtime else (0, 0)
    graphs = read_folder(cluster.graphs)
    jobs: list[Job] = [
        ControllerJob(
            name=name,
            controller=replace(controller, keys=own_keys(cluster.keys, "controller", name)),
            scheduler=config.scheduler,
            models=source,
            graphs=() if shard.number else graphs,
            cores=shared,
            nice=nice,
            priority=priority,
        )
        for shard in shards
        for name, controller in shard.all
    ]
    addresses = tuple(shard.address for shard in shards)
    jobs += gateway_jobs(config, addresses, shared, exec_cores, nice, priority)
    if config.repository.path:
        pages = shards[0].controller.shard_pages
        jobs.append(repository_job(config.repository, [each.address for each in shards], pages, shared))
    if cluster.console:
        jobs += _console_jobs(config, shards, shared)
    jobs += pool.first_jobs()
    alike = {
        "log_level": cluster.log_level,
        "log_format": cluster.log_format,
        "transport": config.transport,
    }
    return tuple(replace(job, **alike) for job in jobs)


def _consoles(count: int) -> tuple[str, ...]:
    """Return the names of the consoles of a number of controllers."""
    return (CONSOLE, *(f"{CONSOLE}-{number}" for number in range(1, count)))


def _console_jobs(config: Config, shards: list[LocalShard], cores: tuple[int, ...]) -> list[ConsoleJob]:
    """Return a console for each controller."""
    # Who may change what is served through a gateway may do so from the console.
    tokens = config.console.token_file or config.gateway.token_file
    addresses = console_addresses(config.console.address, len(shards))
    return [
        ConsoleJob(
            name=name,
            console=msgspec.structs.replace(
                config.console,
                address=address,
                controller_address=shard.address,
                token_file=tokens,
                shard=shard.number,
                shards=addresses if len({*addresses}) > 1 else (),
            ),
            cores=cores,
            nice=CONSOLE_NICE,
        )
        for name, address, shard in zip(_consoles(len(shards)), addresses, shards, strict=True)
    ]
