"""Tables of a ``mainspring.toml`` that a process which is started by itself reads, under its flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mainspring.cli.options import typed

if TYPE_CHECKING:
    import msgspec

    from mainspring.cli.configuration.config import Config, Tables

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A mainspring.toml whose tables this process reads; flags override it.",
        envvar="MAINSPRING_CONFIG",
        show_default=False,
    ),
]
_MOST_DIGITS = 4
"""Most digits of a shard's number."""


def shard_number(text: str) -> int:
    """Return the shard that a number says, or a name that ends in one; raise `typer.BadParameter`."""
    digits = text.rpartition("-")[2]
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MOST_DIGITS:
        raise typer.BadParameter(
            f"{text!r} is not a number from 0, nor a name that ends in one, such as pod-1"
        )
    return int(digits)


Shard = Annotated[
    int | None,
    typer.Option(
        "--shard",
        parser=shard_number,
        metavar="NUMBER",
        help="Which of several controllers, listed in [shards] of --config, counted from 0. A name "
        "that ends in the number, such as that of a StatefulSet's pod, says it, too.",
        show_default=False,
    ),
]

Table = TypeVar("Table", bound="msgspec.Struct")


def configured(path: Path | None) -> Config:
    """Return what a file says, or what is so without one; raise `ConfigError` if the file can't be used."""
    return configured_by(path)[0]


def configured_by(path: Path | None) -> tuple[Config, Tables]:
    """Return the same, and the file's tables, which have only the keys that it names."""
    from mainspring.cli.configuration.config import Config, read_config, read_tables

    if path is None:
        return Config(), {}
    tables = read_tables(path)
    return read_config(tables, str(path)), tables


def with_typed(context: typer.Context, table: Table, flags: Mapping[str, tuple[str, Any]]) -> Table:
    """Return ``table`` with the flags that were typed: by parameter, the table's field and the value.

    Raises BadParameter if they don't go with the rest.
    """
    values = {field: value for name, (field, value) in flags.items() if typed(context, name)}
    return replaced(table, **values)


def replaced(table: Table, **values: Any) -> Table:
    """Return ``table`` with other values; raise BadParameter if they don't go with the rest."""
    import msgspec

    try:
        return msgspec.structs.replace(table, **values)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def address_of(config: Config, shard: int | None) -> str:
    """Return the address of a shard's controller, or of the only one; empty if the configuration has none.

    Raises `ConfigError` if there is no such shard, or several of which none is chosen.
    """
    from mainspring.messages.tables import ConfigError

    controllers, number = config.shards.controllers, config.shards.number
    if number == 1 and not shard:
        return controllers[0] if controllers else config.controller.address
    if len(controllers) < number or number == 1:
        raise ConfigError(
            "several controllers that are started singly need [shards] controllers, their addresses, in a "
            "mainspring.toml that --config names"
        )
    if shard is None or shard >= number:
        chosen = "none is chosen" if shard is None else f"{shard} is not one of them"
        raise ConfigError(f"there are shards 0 to {number - 1}, and {chosen}: give one with --shard")
    return controllers[shard]


def with_shards(config: Config, shard: int | None) -> dict[str, Any]:
    """Return what a shard's controller knows about the others, as fields of its configuration."""
    if not config.shards.several:
        return {}
    from mainspring.cli.launcher.addresses import connectable

    shards = tuple(map(connectable, config.shards.controllers))
    return {"shard": shard or 0, "shards": shards, "shard_pages": config.shards.pages}


def keys_of(config: Config, given: Path | None, name: str) -> Path | None:
    """Return the folder of a process's keys: the one given, or else its own in the configuration's."""
    return given or (Path(config.cluster.keys, name) if config.cluster.keys else None)


def log_of(context: typer.Context, config: Config, level: str, form: str) -> tuple[str, str]:
    """Return log level and format: each as typed, or else as the configuration says."""
    return (
        level if typed(context, "log_level") else config.cluster.log_level,
        form if typed(context, "log_format") else config.cluster.log_format,
    )
