"""A check of what processes listen on beyond this host: only what is encrypted or, for clients, is said to be
insecure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mainspring.messages.tables import ConfigError
from mainspring.transport.addresses import PREFIX, parse_tcp

if TYPE_CHECKING:
    from mainspring.cli.configuration.config import Config
    from mainspring.console.config import ConsoleConfig
    from mainspring.gateway.config import GatewayConfig
    from mainspring.repository.serving import ServingConfig

KEYS_REMEDY = "give it keys ([cluster] keys or --keys; `mainspring keys` makes them)"
_LOCAL = ("unix", "name", "ipc")
"""Schemes of addresses that only processes of this host reach."""
PORTS = {"tcp": 7400, "http": 8000, "https": 8000, "grpc": 8001, "grpcs": 8001}
"""A port for the example of an address, by its scheme."""
TLS_REMEDY = "serve it at {scheme}:// with {table} tls (`mainspring keys issue` makes the folder)"


class Door(NamedTuple):
    """An address at which a process listens."""

    key: str
    """Key of the configuration, or flag, that sets it."""
    address: str
    encrypted: bool
    remedy: str
    """Advice on how to have its traffic encrypted."""
    scheme: str = "tcp"
    """The first part of such addresses where nothing is encrypted."""
    always: bool = False
    """True if it has to be encrypted even where the operator allows what is insecure."""


def check_exposed(doors: Iterable[Door], insecure: bool) -> None:
    """Raise `ConfigError` for what would be open to other hosts and is not encrypted, unless ``insecure``.

    ``insecure`` changes nothing for processes, and for clients over ZeroMQ: between hosts they are known by
    keys alone.
    """
    for door in doors:
        _check_form(door)
        if door.encrypted or (insecure and not door.always) or not reaches_beyond(door.address):
            continue
        otherwise = "" if door.always else ", or say insecure = true in [cluster], or --insecure"
        raise ConfigError(
            f"{door.key} {door.address} is open to other hosts, and what is said there is not encrypted: "
            f"{door.remedy}{otherwise}"
        )


def _check_form(door: Door) -> None:
    """Raise `ConfigError` for an invalid address; one within this host is left to who listens there."""
    scheme, _, rest = door.address.partition("://")
    if not door.address or scheme in _LOCAL:
        return
    try:
        if not rest:
            raise ValueError("there is no scheme")
        parse_tcp(f"{PREFIX}{rest.rstrip('/')}", listens=True)
    except ValueError:
        wanted = scheme if scheme in PORTS else door.scheme
        raise ConfigError(
            f"{door.key} is {door.address!r}, which is not an address; write it like "
            f"{wanted}://127.0.0.1:{PORTS[wanted]}, or {wanted}://[::1]:{PORTS[wanted]}"
        ) from None


def reaches_beyond(address: str) -> bool:
    """Say whether other hosts may reach an address: whether it is of TCP and not the loopback's."""
    scheme, _, rest = address.partition("://")
    if not rest or scheme in _LOCAL:
        return False
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def of_processes(key: str, address: str, keys: str) -> Door:
    """Return a door that processes of the cluster come in by."""
    return Door(key, address, bool(keys), KEYS_REMEDY, always=True)


def of_gateway(gateway: GatewayConfig) -> list[Door]:
    """Return the doors that clients come in by."""
    from mainspring.gateway.config import PROTOCOLS

    return [
        Door(
            "[gateway] address",
            gateway.address,
            bool(gateway.curve_key),
            "give it [gateway] curve_key (`mainspring keys curve` makes one)",
            always=True,
        ),
        *(
            Door(
                f"[gateway] {name}",
                address,
                address.startswith(f"{scheme}://"),
                TLS_REMEDY.format(scheme=scheme, table="[gateway]"),
                scheme.removesuffix("s"),
            )
            for name, address, scheme in (
                *((f"{name}_address", getattr(gateway, f"{name}_address"), f"{name}s") for name in PROTOCOLS),
                ("metrics_address", gateway.metrics_address, "https"),
            )
        ),
    ]


def of_console(console: ConsoleConfig) -> Door:
    """Return the door that browsers come in by."""
    remedy = TLS_REMEDY.format(scheme="https", table="[console]")
    return Door("[console] address", console.address, console.encrypted, remedy, "http")


def of_store(store: ServingConfig) -> Door:
    """Return the door that workers fetch models by."""
    return Door("--address", store.address, store.encrypted, "serve it at https:// with --tls", "http")


def of_cluster(config: Config) -> list[Door]:
    """Return all doors of a cluster that `mainspring up` starts."""
    keys, repository = config.cluster.keys, config.repository
    return [
        of_processes("[controller] address", config.controller.address, keys),
        of_processes("[worker] data_address", config.worker.data_address, keys),
        *([of_processes("[repository] address", repository.address, keys)] if repository.path else []),
        *of_gateway(config.gateway),
        *([of_console(config.console)] if config.cluster.console else []),
    ]
