"""What a process that is started by itself takes of a ``mainspring.toml``: its tables, under its flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mainspring.cli.options import typed

if TYPE_CHECKING:
    import msgspec

    from mainspring.cli.configuration.config import Config

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A mainspring.toml whose tables this process takes; flags that are given go before it.",
        envvar="MAINSPRING_CONFIG",
        show_default=False,
    ),
]

Table = TypeVar("Table", bound="msgspec.Struct")


def configured(path: Path | None) -> Config:
    """Return what a file says, or what is so without one; raise `ConfigError` if the file can't be used."""
    from mainspring.cli.configuration.config import Config, read_config, read_tables

    return Config() if path is None else read_config(read_tables(path), str(path))


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


def secret_of(config: Config, given: Path | None) -> Path | None:
    """Return the file of the run's secret: the one given, or else the configuration's, if it names one."""
    return given or (Path(config.cluster.secret_file) if config.cluster.secret_file else None)


def keys_of(config: Config, given: Path | None, name: str) -> Path | None:
    """Return the folder of a process's keys: the one given, or else its own in the configuration's."""
    return given or (Path(config.cluster.keys, name) if config.cluster.keys else None)


def log_of(context: typer.Context, config: Config, level: str, form: str) -> tuple[str, str]:
    """Return log level and format: each as typed, or else as the configuration says."""
    return (
        level if typed(context, "log_level") else config.cluster.log_level,
        form if typed(context, "log_format") else config.cluster.log_format,
    )
