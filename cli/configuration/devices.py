"""Unlike devices of a local cluster: groups of workers that are alike, in ``[[devices]]`` or from a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.cli.configuration.tables import ConfigError, build
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
    """Return the groups of a plan, or of any spec of a simulation, and the table of profiles that its models
    come from if it is one alone; raise `ConfigError` for a file that is none, or whose counts are open."""
    from mainspring.simulator.spec_file import parse_spec, read_table

    table = read_table(path)
    spec = parse_spec(table, str(path))
    groups = [
        {name: value for name, value in each.items() if name in DeviceConfig.__struct_fields__}
        for each in table.get(NAME, [])
    ]
    tables = {each.profiles for each in spec.models}
    return groups, tables.pop() if len(tables) == 1 else None


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
