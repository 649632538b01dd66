"""The workers of a local cluster, those that may come later, too: each one's settings, cores and device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.configuration.fitting import check_fits
from mainspring.cli.doctor.machine import usable_gpus
from mainspring.cli.launcher.addresses import own_keys
from mainspring.cli.launcher.jobs import WorkerJob
from mainspring.cli.launcher.placement import Placement, place, place_near
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.worker.engines.cuda.devices import FoundDevice
from mainspring.worker.engines.cuda.engine import kind_of
from mainspring.worker.engines.cuda.numa import cores_near
from mainspring.worker.limits import affinity, read_limits

STEM = "worker"
_AT = "@"


class WorkerKind(msgspec.Struct, frozen=True):
    """Workers of one kind of device on this machine."""

    kind: str
    stem: str
    """Beginning of the names of workers that come later, before ``-`` and a number."""
    first: tuple[str, ...]
    """Workers that the cluster begins with."""
    gpus: tuple[FoundDevice, ...] = ()
    """The devices that they share in turn; none for the CPU."""
    pages: int | None = None
    """Pages of each; None for ``[worker] pages``."""
    price: float = 0.0
    """Price of one for an hour; 0 for not known."""


class WorkerPool(msgspec.Struct, frozen=True):
    """All workers that the cluster may have."""

    config: Config
    shared: tuple[int, ...]
    """Cores for everything but EXEC."""
    exec_cores: tuple[tuple[int, ...], ...]
    """The cores of EXEC of each worker that the cluster begins with; none where threads are not pinned."""
    kinds: tuple[WorkerKind, ...]
    controllers: tuple[str, ...] = ()
    """The address of the controller of each of these; those that come later say by their name which shard is
    theirs (`stem_at`)."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The addresses of all controllers, by shard; each has a worker at the start."""
        return tuple(dict.fromkeys(self.controllers))

    def first_shards(self) -> list[tuple[str, int]]:
        """Return the workers that the cluster begins with, each with its shard."""
        shards = {address: shard for shard, address in enumerate(self.shards)}
        names = [name for kind in self.kinds for name in kind.first]
        return [(name, shards[self.controllers[number_of(name)]]) for name in names]

    def first_jobs(self) -> list[WorkerJob]:
        """Return the jobs of the workers that the cluster begins with; raise `ConfigError`."""
        return [self.job(kind.kind, name) for kind in self.kinds for name in kind.first]

    def job(self, kind: str, name: str) -> WorkerJob:
        """Return a worker's job; raise `ConfigError` if it lacks something, such as keys."""
        of_kind = next(each for each in self.kinds if each.kind == kind)
        of_its_kind, number = self._numbers(of_kind, name)
        if number >= len(self.exec_cores):
            check_fits(self.config, read_limits(), number + 1, running=number)
        gpu = of_kind.gpus[of_its_kind % len(of_kind.gpus)] if of_kind.gpus else None
        shard = shard_of(name)
        first = name in of_kind.first and number < len(self.controllers)
        where = self.controllers[number] if first else self.shards[shard if shard < len(self.shards) else 0]
        job = _job(self.config, name, where, gpu, self.shared, self._exec_cores(number))
        if gpu is None:
            pages = self.config.worker.pages if of_kind.pages is None else of_kind.pages
            worker = msgspec.structs.replace(job.worker, device_kind=kind, pages=pages)
            job = msgspec.structs.replace(job, worker=worker)
        cluster = self.config.cluster
        return msgspec.structs.replace(
            job,
            log_level=cluster.log_level,
            log_format=cluster.log_format,
            transport=self.config.transport,
        )

    def _numbers(self, kind: WorkerKind, name: str) -> tuple[int, int]:
        """Return which worker of its kind a worker is, and which of all, both counted from 0."""
        number = number_of(name)
        if name in kind.first:
            return kind.first.index(name), number
        if kind.stem == STEM and not shard_of(name):
            return number, number
        # Numbers of those that come later begin at 0 for each of several kinds, and for each shard.
        return len(kind.first) + number, len(self.exec_cores) + number

    def _exec_cores(self, number: int) -> tuple[int, ...]:
        """Return the cores of a worker's EXEC: its own while there are enough, then all."""
        if number < len(self.exec_cores):
            return self.exec_cores[number]
        return affinity() if self.config.worker.realtime else ()


def stem_at(stem: str, shard: int) -> str:
    """Return how the workers of a kind are called that come later to a shard, without their number."""
    return f"{stem}{_AT}{shard}" if shard else stem


def shard_of(name: str) -> int:
    """Return the shard that a worker was started for which came later, by its name."""
    at = name.rpartition("-")[0].rpartition(_AT)
    return int(at[2]) if at[0] and at[2].isdecimal() else 0


def number_of(name: str) -> int:
    """Return the number at the end of a worker's name, 0 if it has none."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def worker_pool(config: Config, controllers: Sequence[str]) -> WorkerPool:
    """Return the workers of a configuration, each with its controller's address; raise `ConfigError`."""
    placed = placement_of(config)
    return WorkerPool(config, placed.shared, placed.exec_cores, _kinds(config), tuple(controllers))


def _kinds(config: Config) -> tuple[WorkerKind, ...]:
    names = [f"{STEM}-{number}" for number in range(config.cluster.workers)]
    if config.cluster.devices:
        return _groups(config, iter(names))
    if config.cluster.device != CUDA:
        return (WorkerKind(_cpu_kind(config), STEM, tuple(names)),)
    found = usable_gpus()
    own = config.worker.device_kind
    by_kind: dict[str, list[FoundDevice]] = {}
    for gpu in found:
        by_kind.setdefault(kind_of(gpu.name) if own == "cpu" else own, []).append(gpu)
    return tuple(
        WorkerKind(
            kind,
            STEM if len(by_kind) == 1 else f"{STEM}-{kind}",
            tuple([name for number, name in enumerate(names) if found[number % len(found)] in gpus]),
            tuple(gpus),
        )
        for kind, gpus in by_kind.items()
    )


def _groups(config: Config, names: Iterator[str]) -> tuple[WorkerKind, ...]:
    """Return a kind for each group of unlike devices, which take the names in turn."""
    return tuple(
        WorkerKind(
            group.kind,
            f"{STEM}-{group.kind}",
            tuple(itertools.islice(names, group.count)),
            pages=group.pages,
            price=group.price,
        )
        for group in config.cluster.devices
    )


def _cpu_kind(config: Config) -> str:
    return EMULATED if config.cluster.profiles is not None else config.worker.device_kind


def placement_of(config: Config) -> Placement:
    """Return the cores for everything but EXEC, and for each worker those of EXEC; none if not real-time."""
    cores, workers = affinity(), config.cluster.workers
    if not config.worker.realtime:
        return Placement((), ((),) * workers)
    if config.cluster.engine == "emulated":
        # An emulated device only sleeps: it needs no core, and the rest needs all of them.
        return Placement(cores, (cores,) * workers)
    if config.cluster.device == CUDA:
        found = usable_gpus()
        return place_near(cores, [cores_near(found[number % len(found)].bus_id) for number in range(workers)])
    return place(cores, workers)


def _near_device(bus_id: str, cores: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of the cores that are near a device, all of them if none is or that is not known."""
    near = cores_near(bus_id)
    return tuple(core for core in cores if core in near) or cores


def _job(
    config: Config,
    name: str,
    controller: str,
    gpu: FoundDevice | None,
    shared: tuple[int, ...],
    exec_cores: tuple[int, ...],
) -> WorkerJob:
    cluster = config.cluster
    device = cluster.device
    if gpu is not None:
        device, shared = f"{CUDA}:{gpu.number}", _near_device(gpu.bus_id, shared)
    worker = msgspec.structs.replace(
        config.worker,
        name=name,
        device=device,
        controller=controller,
        keys=own_keys(cluster.keys, "worker", name),
        engine=cluster.engine,
        store=cluster.store or "",
        op_libraries=cluster.op_libraries,
        device_kind=_cpu_kind(config),
        exec_core=exec_cores[0] if len(exec_cores) == 1 else None,
        exec_core_shared=len(exec_cores) > 1 or not {*exec_cores}.isdisjoint(shared),
        emulated_seed=config.worker.emulated_seed + number_of(name),
    )
    # The worker keeps its other threads off the core of EXEC by itself, so it is allowed both.
    cores = tuple(sorted({*shared, *exec_cores})) if exec_cores else ()
    return WorkerJob(name=name, worker=worker, cores=cores)
