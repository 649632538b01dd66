"""The controllers of a local cluster: where each listens, how it is called, which workers are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.launcher.addresses import connectable, is_tcp
from mainspring.controller.config import ControllerConfig
from mainspring.transport.local import PREFIX as LOCAL

NAME = "controller"
MAX_PORT = 65_535
CHANGES = ".changes"
"""The end of the name of the file in the run folder that keeps what clients and operators changed over a
controller's restart."""


class LocalShard(msgspec.Struct, frozen=True):
    """One controller."""

    number: int
    name: str
    """Name of its process."""
    controller: ControllerConfig
    workers: tuple[int, ...]
    """The numbers of its workers."""

    @property
    def address(self) -> str:
        """Return the address at which this machine's processes connect."""
        return connectable(self.controller.address)


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
    return found


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
    for shard in shards:
        if is_tcp(shard.controller.address):
            key = "[shards] controllers" if len(shards) > 1 else "[controller] address"
            yield key, shard.controller.address


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
