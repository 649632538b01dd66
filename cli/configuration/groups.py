"""Groups of a cluster: workers on one kind of device (``[[devices]]``, plans), controllers (``[shards]``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.messages.ids import MAX_SHARDS
from mainspring.messages.sharding import first_map, map_fault
from mainspring.messages.tables import ConfigError, build
from mainspring.scheduler.config import SchedulerConfig

_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,39}")
FIRST_FREE = "first-free"
"""The policy that goes by the kinds' order."""
NAME = "devices"
"""The key of the groups, at the top of a file and in ``[cluster]``."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Workers on one kind of device. Raises ValueError on a value that can't work."""

    kind: str
    """Name of the kind."""
    count: int = 1
    """Workers that the cluster begins with; 0 for a kind that it may only scale to."""
    speed: float = 1.0
    """Speed of emulated devices, as a multiple of what the models' profiles say."""
    profiles: str | None = None
    """Table of profiles of this kind, for models of the same names, if the devices are emulated. Relative to
    the file."""
    pages: int | None = None
    """Pages of 16 MiB for weights; ``[worker] pages`` if it is not set."""
    price: float = 0.0
    """Price of one for an hour, in any currency; 0 for not known."""

    def __post_init__(self) -> None:
        """Check the values."""
        if _KIND.fullmatch(self.kind) is None:
            raise ValueError(
                f"kind is {self.kind!r}; it must have 1 to 40 letters, digits and . _ - : @ +, and begin "
                "with a letter or digit"
            )
        if self.count < 0:
            raise ValueError(f"count is {self.count}; it must be at least 0")
        if not self.speed > 0:
            raise ValueError(f"speed is {self.speed}; it must be greater than 0")
        if self.price < 0:
            raise ValueError(f"price is {self.price}; it must be at least 0")
        if self.pages is not None and self.pages < 1:
            raise ValueError(f"pages is {self.pages}; it must be at least 1")


def read_devices(found: object, source: str, folder: Path) -> list[dict[str, Any]]:
    """Return the groups of a file as tables, with paths that lead on from its folder; raise `ConfigError`."""
    if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) for each in found):
        raise ConfigError(f"{source}: {NAME} are groups: begin each with [[{NAME}]] on a line of its own")
    groups = []
    for number, each in enumerate(found, start=1):
        group = dict(each)
        build(DeviceConfig, group, f"{source}, [[{NAME}]] number {number}", {})
        if group.get("profiles"):
            group["profiles"] = str(folder / group["profiles"])
        groups.append(group)
    return groups


def of_plan(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Return the groups of a plan, or of any spec of a simulation, one for each kind, and the table of
    profiles that its models come from if it is one alone; raise `ConfigError` for a file that is none, or
    whose counts are open."""
    from mainspring.simulator.spec_file import parse_spec, read_table

    table = read_table(path)
    spec = parse_spec(table, str(path))
    groups: dict[str, dict[str, Any]] = {}
    for each in table.get(NAME, []):
        found = {name: value for name, value in each.items() if name in DeviceConfig.__struct_fields__}
        before = groups.setdefault(found.get("kind", ""), {**found, "count": 0})
        before["count"] += found.get("count", 1)
    tables = {each.profiles for each in spec.models}
    return list(groups.values()), tables.pop() if len(tables) == 1 else None


def own_workers(path: Path) -> dict[str, tuple[int, int, str]]:
    """Return workers, largest batch and kind of each model that has devices of a plan for its own."""
    from mainspring.simulator.cluster import assigned
    from mainspring.simulator.spec_file import parse_spec, read_table

    wishes = assigned(parse_spec(read_table(path), str(path)).devices)
    return {each.model: (each.workers, each.max_batch, each.kind) for each in wishes}


def preferring(scheduler: SchedulerConfig, groups: Sequence[DeviceConfig]) -> SchedulerConfig:
    """Return the scheduler's configuration in which `first-free` prefers the groups in their order, as plans
    have them, unless another one is given."""
    options = scheduler.policy_options
    if scheduler.policy != FIRST_FREE or "kinds" in options:
        return scheduler
    kinds = ",".join(each.kind for each in groups)
    return msgspec.structs.replace(scheduler, policy_options={**options, "kinds": kinds})


def checked(groups: Sequence[DeviceConfig], *, emulated: bool, device: str, own: str, source: str) -> None:
    """Raise `ConfigError` for groups that a cluster on this machine can't have.

    ``device`` is what the workers compute on, ``own`` what the machine's own kind is called.
    """
    names = [each.kind for each in groups]
    if len({*names}) < len(names):
        raise ConfigError(f"{source}: two groups of devices are of one kind: give one group for each kind")
    if groups and not any(each.count for each in groups):
        raise ConfigError(f"{source}: no group of devices has a worker: give one a count of at least 1")
    if emulated or not groups:
        return
    if device != "cpu":
        raise ConfigError(
            f"{source}: GPUs are what this machine has, so their kinds can't be given: take [[{NAME}]] out, "
            "and say how many with [cluster] workers"
        )
    for each in groups:
        if each.kind != own or each.profiles is not None or each.speed != 1.0:
            raise ConfigError(
                f"{source}: devices of kind {each.kind!r} would have to be emulated, and the engine is not: "
                f"set [cluster] engine to emulated, or give one group, of this machine's own kind {own!r}"
            )


class ShardsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Several controllers. Raises ValueError on a value that can't work."""

    count: int = 1
    """Controllers that `mainspring up` starts, at sockets in the run folder, each with its part of the
    workers; ``controllers`` says it, too."""
    controllers: tuple[str, ...] = ()
    """Addresses at which they listen, by shard, instead of [controller] address; gateways on other hosts need
    it. Empty: at sockets in the run folder. Keep the order: a controller's place in it is its shard."""
    workers: tuple[int, ...] = ()
    """Workers of each shard, of those that `mainspring up` starts. Empty: as many to each as there can be."""
    pages: tuple[int, ...] = ()
    """Weight of each shard: models are divided in proportion to it. Empty: of `mainspring up` the pages of
    its workers together, else the same of all."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 1 <= self.count <= MAX_SHARDS:
            raise ValueError(f"count is {self.count}; there may be 1 to {MAX_SHARDS} controllers")
        if self.controllers and self.count not in (1, len(self.controllers)):
            raise ValueError(
                f"count is {self.count} and controllers are {len(self.controllers)}: leave count out"
            )
        for name in ("workers", "pages"):
            given = getattr(self, name)
            if given and len(given) != self.number:
                raise ValueError(
                    f"{name} has {len(given)} numbers for {self.number} controllers; give one for each"
                )
        if self.workers and min(self.workers) < 1:
            raise ValueError(f"workers has {min(self.workers)} for a shard; each needs one at least")
        if self.controllers and (fault := map_fault(first_map(self.controllers, self.pages))) is not None:
            raise ValueError(f"controllers and pages can't be: {fault}")

    @property
    def number(self) -> int:
        """Return the number of controllers."""
        return len(self.controllers) or self.count

    @property
    def several(self) -> bool:
        """Return whether there is more than one."""
        return self.number > 1

    def divided(self, workers: int) -> tuple[int, ...]:
        """Return how many of the workers each shard has; raise ValueError if there are too few."""
        if not self.workers:
            share, more = divmod(workers, self.number)
            if not share:
                raise ValueError(
                    f"there are {self.number} controllers and workers = {workers}: each controller needs a "
                    "worker; give more --workers, or fewer controllers"
                )
            return tuple(share + (number < more) for number in range(self.number))
        if sum(self.workers) != workers:
            raise ValueError(
                f"[shards] workers are {sum(self.workers)} together and [cluster] workers is {workers}: give "
                "the same number"
            )
        return self.workers
