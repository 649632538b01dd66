"""The addresses of a cluster's processes: sockets in the run folder, or TCP.

Where all is on one host there is no TCP between them: the sockets are in the run folder, which is the user's
alone. Where a configuration names addresses of TCP, processes of other hosts and users need keys.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainspring.messages.tables import ConfigError

if TYPE_CHECKING:
    from mainspring.cli.configuration.config import Config
    from mainspring.repository.config import RepositoryConfig

OPERATOR = "operator"
"""The role of a console, which passes operators' commands on."""
CONTROLLER_SOCKET = "controller.sock"
SOCKETS = "*.sock"
MAX_PORT = 65_535
PORTS_APART = 10
"""Difference between the ports of one gateway and those of the next."""
PREFIX = "tcp://"
PREFIXES = (PREFIX, "http://", "grpc://", "https://", "grpcs://")


def parse(address: str, prefix: str = PREFIX) -> tuple[str, int]:
    """Return host and port of an address such as ``tcp://127.0.0.1:7400``; raise `ConfigError`."""
    host, _, port = address.removeprefix(prefix).rpartition(":")
    if not address.startswith(prefix) or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address: write it like {prefix}127.0.0.1:7400")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"{address!r} is not an address: write one of IPv6 in brackets: {prefix}[::1]:7400")
    return host.strip("[]"), int(port)


def parse_any(address: str) -> tuple[str, int]:
    """Return host and port of an address of any of `PREFIXES`; raise `ConfigError`."""
    return parse(address, next((prefix for prefix in PREFIXES if address.startswith(prefix)), PREFIX))


def check_free(address: str, remedy: str) -> None:
    """Raise `ConfigError` if the address can't be listened on; ``remedy`` says how to choose another."""
    host, port = parse_any(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == "*" else host, port))
        except OSError as error:
            why = "is in use by another program" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise ConfigError(f"{address} {why}; {remedy}") from None


def answers(address: str) -> bool:
    """Return whether a process accepts connections at an address."""
    host, port = parse_any(address)
    try:
        socket.create_connection(
            ("127.0.0.1" if host in {"*", "0.0.0.0"} else host, port), timeout=1.0
        ).close()
    except OSError:
        return False
    return True


def free_ports(count: int, gateways: int = 1) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on at the moment, all different.

    Of several ``gateways`` the first one's: the others' are free, too.
    """
    found: list[int] = []
    taken: set[int] = set()
    with ExitStack() as stack:
        while len(found) < count:
            first = _bound(stack, 0)
            others = [first + number * PORTS_APART for number in range(1, gateways)]
            if taken.isdisjoint(others) and all(_bound(stack, port) for port in others):
                found.append(first)
                taken.update((first, *others))
    return found


def _bound(stack: ExitStack, port: int) -> int:
    """Return a port that is held while the stack is; 0 if it can't be."""
    probe = stack.enter_context(socket.socket())
    try:
        probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        return 0
    return int(probe.getsockname()[1])


def connectable(address: str) -> str:
    """Return an address that a process of this machine connects to, for one that another listens on."""
    if not address.startswith(PREFIX):
        return address
    host, port = parse(address)
    if host == "::":
        return f"tcp://[::1]:{port}"
    return f"tcp://127.0.0.1:{port}" if host in {"*", "0.0.0.0"} else address


def is_tcp(address: str) -> bool:
    """Say whether it is an address of TCP."""
    return address.startswith(PREFIX)


def listens_by_tcp(repository: RepositoryConfig) -> bool:
    """Say whether there is a model repository that is reached by TCP."""
    return bool(repository.path) and is_tcp(repository.address)


def with_sockets(config: Config, run_dir: Path) -> Config:
    """Return the configuration with an address for each process, and keys.

    Raises `ConfigError` if there are keys, but not for every process.
    """
    from mainspring.transport.local import PREFIX as LOCAL

    replace = msgspec.structs.replace
    local = f"{LOCAL}{run_dir}"
    return replace(
        config,
        controller=replace(
            config.controller,
            address=config.controller.address or f"{local}/{CONTROLLER_SOCKET}",
            keys=_keys(config, "controller"),
        ),
        gateway=replace(config.gateway, keys=_keys(config, "gateway")),
        repository=replace(
            config.repository,
            address=config.repository.address or f"{local}/repository.sock",
            keys=_keys(config, "repository") if config.repository.path else "",
        ),
        console=replace(
            config.console,
            keys=_keys(config, "console", OPERATOR) if config.cluster.console else "",
        ),
    )


def _keys(config: Config, name: str, role: str = "") -> str:
    """Return the folder of a process's keys, empty where none are configured; raise `ConfigError`."""
    return own_keys(config.cluster.keys, role or name, name)


def own_keys(keys: str, role: str, name: str) -> str:
    """Return a process's folder in the folder of all keys, empty where that is; raise `ConfigError`."""
    folder = Path(keys, name)
    if keys and not folder.is_dir():
        raise ConfigError(
            f"[cluster] keys has no folder {folder} for the {name}: "
            f"mainspring keys issue {role} {name} --keys {keys}"
        )
    return str(folder.absolute()) if keys else ""


def prepare_sockets(run_dir: Path) -> None:
    """Remove the sockets of a former run; raise `ConfigError` if the folder can't be written to."""
    try:
        for each in run_dir.glob(SOCKETS):
            each.unlink()
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
