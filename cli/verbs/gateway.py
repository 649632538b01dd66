"""``mainspring gateway``: one gateway in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.configuration.single import (
    ConfigFile,
    address_of,
    configured,
    keys_of,
    log_of,
    replaced,
    with_typed,
)
from mainspring.cli.launcher.foreground import DEFAULT_DRAIN, DrainTimeout, LogFormat, LogLevel, begin, ready
from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    LISTEN,
    Controller,
    Insecure,
    KeysFolder,
    duration_ns,
    tls_option,
    token_file_option,
)
from mainspring.gateway.config import STRICT

if TYPE_CHECKING:
    from mainspring.cli.configuration.config import Config

PORT = typer.Option(
    help="Where its clients connect: http://0.0.0.0:8000, grpc://0.0.0.0:8001, for Prometheus "
    "http://0.0.0.0:8002. Empty: nowhere."
)
Tls = Annotated[Path | None, tls_option("clients", "https:// and grpcs:// addresses")]
CurveKey = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        help="File of a key, as `mainspring keys curve` writes it: clients over ZeroMQ encrypt.",
    ),
]
TokenFile = Annotated[Path | None, token_file_option("one of which clients need. Without it: none.")]

ReadyWhen = Annotated[
    str, typer.Option(help="When it is ready: strict, once all models are; serving, once one is.")
]
Age = Annotated[str, typer.Option(help="Age at which a client is told to make another connection. 0: never.")]
LameDuck = Annotated[
    str,
    typer.Option(
        help="How long it goes on answering after Ctrl-C or SIGTERM, while it says that it is leaving."
    ),
]


def _ms(text: str, option: str) -> float:
    return duration_ns(text, option, least_ns=0) / 1e6


def _shards(whole: Config) -> dict[str, object]:
    """Return where the controllers are, if there are several."""
    from mainspring.cli.launcher.addresses import connectable

    several = whole.shards.several
    return {"shards": tuple(map(connectable, whole.shards.controllers))} if several else {}


def gateway(
    context: typer.Context,
    config: ConfigFile = None,
    address: Annotated[str, LISTEN] = DEFAULT_GATEWAY,
    http: Annotated[str, PORT] = "",
    grpc: Annotated[str, PORT] = "",
    metrics: Annotated[str, PORT] = "",
    controller: Controller = None,
    keys: KeysFolder = None,
    insecure: Insecure = False,
    name: Annotated[str, typer.Option(help="Name for the logs, of this gateway alone.")] = "",
    tls: Tls = None,
    curve_key: CurveKey = None,
    token_file: TokenFile = None,
    readiness: ReadyWhen = STRICT,
    max_connection_age: Age = "0",
    lame_duck: LameDuck = "0",
    drain_timeout: DrainTimeout = DEFAULT_DRAIN,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM, which drain within --drain-timeout."""
    from mainspring.cli.exposure import check_exposed, of_gateway
    from mainspring.cli.places import find
    from mainspring.gateway.server import run

    whole = configured(config)
    first = address_of(whole, 0)
    door = find(controller or first, keys_of(whole, keys, name or "gateway"))
    flags: dict[str, tuple[str, object]] = {
        **{"address": ("address", address), "http": ("http_address", http)},
        "grpc": ("grpc_address", grpc),
        "metrics": ("metrics_address", metrics),
        "name": ("name", name),
        **{"tls": ("tls", str(tls)), "curve_key": ("curve_key", str(curve_key))},
        "token_file": ("token_file", str(token_file)),
        "readiness": ("readiness", readiness),
        "max_connection_age": ("max_connection_age_ms", _ms(max_connection_age, "--max-connection-age")),
        "lame_duck": ("lame_duck_ms", _ms(lame_duck, "--lame-duck")),
        "drain_timeout": ("drain_timeout_ms", duration_ns(drain_timeout, "--drain-timeout") / 1e6),
    }
    shown = {"keys": door.folder, **({} if controller else _shards(whole))}
    own = replaced(with_typed(context, whole.gateway, flags), controller_address=door.address, **shown)
    check_exposed(of_gateway(own), insecure or whole.cluster.insecure)
    stop = begin(own.name or "gateway", *log_of(context, whole, log_level, log_format), whole.transport)
    run(own, stop, lambda addresses: ready(addresses.zeromq))
