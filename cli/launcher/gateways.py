"""The gateways of a local cluster: where each listens, and its job."""

from __future__ import annotations

import itertools

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.addresses import MAX_PORT, PORTS_APART, connectable, own_keys
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.placement import lent_to_gateway
from mainspring.gateway.config import PROTOCOLS, GatewayConfig
from mainspring.messages.tables import ConfigError

NAME = "gateway"
DRAIN_SHARE = 0.7
"""Share of the time to stop that a gateway may use, so that it can answer before it would be killed."""


def gateway_names(config: Config) -> list[str]:
    """Return the names of all gateways' processes."""
    return [f"{NAME}-{number}" if number else NAME for number in range(config.cluster.gateways)]


def gateway_configs(config: Config) -> list[GatewayConfig]:
    """Return the settings of each gateway as the configuration has them, with addresses of its own.

    Raises `ConfigError` for an address without room for all of them behind it.
    """
    first = config.gateway
    keys = ("address", *(f"{name}_address" for name in PROTOCOLS), "metrics_address")
    return [
        msgspec.structs.replace(first, **{key: behind(key, getattr(first, key), number) for key in keys})
        for number in range(config.cluster.gateways)
    ]


def behind(key: str, address: str, number: int) -> str:
    """Return where the gateway of a number listens, for an address of the first."""
    stem, _, port = address.rpartition(":")
    if not address or not number:
        return address
    if not port.isdecimal() or int(port) + number * PORTS_APART > MAX_PORT:
        raise ConfigError(
            f"[gateway] {key} is {address!r}, and gateway {number} listens at a port {number * PORTS_APART} "
            "higher: give it a port that leaves room"
        )
    return f"{stem}:{int(port) + number * PORTS_APART}"


def also_serves(gateway: GatewayConfig) -> tuple[tuple[str, str], ...]:
    """Return the protocols beside ZeroMQ that a gateway serves, each with its address."""
    metrics = (("metrics", gateway.metrics_address),) if gateway.metrics_address else ()
    return (*gateway.protocols.items(), *metrics)


def gateway_jobs(
    config: Config,
    controllers: tuple[str, ...],
    shared: tuple[int, ...],
    exec_cores: tuple[tuple[int, ...], ...],
    nice: int,
    priority: int,
) -> list[GatewayJob]:
    """Return the jobs of all gateways, which serve with these controllers."""
    most_ms = DRAIN_SHARE * config.cluster.stop_timeout_s * 1e3
    return [
        GatewayJob(
            name=name,
            gateway=msgspec.structs.replace(
                gateway,
                controller_address=controllers[0],
                shards=controllers if len(controllers) > 1 else (),
                console_address=config.console.address if config.cluster.console else "",
                repository_address=connectable(config.repository.address) if config.repository.path else "",
                drain_timeout_ms=min(gateway.drain_timeout_ms, most_ms),
                keys=own_keys(config.cluster.keys, NAME, name),
            ),
            cores=shared,
            lent_cores=lent_to_gateway(shared, list(itertools.chain(*exec_cores))),
            nice=nice,
            priority=priority,
        )
        for name, gateway in zip(gateway_names(config), gateway_configs(config), strict=True)
    ]
