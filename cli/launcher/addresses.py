"""TCP addresses of a local cluster: whether they are free, and free ones where any will do."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

from mainspring.cli.configuration.tables import ConfigError

PREFIX = "tcp://"
PREFIXES = (PREFIX, "http://", "grpc://")


def parse(address: str, prefix: str = PREFIX) -> tuple[str, int]:
    """Return host and port of an address such as ``tcp://127.0.0.1:7400``; raise `ConfigError`."""
    host, _, port = address.removeprefix(prefix).rpartition(":")
    if not address.startswith(prefix) or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address: write it like {prefix}127.0.0.1:7400")
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


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on at the moment, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def connectable(address: str) -> str:
    """Return an address that a process of this machine connects to, for one that another listens on."""
    if not address.startswith(PREFIX):
        return address
    host, port = parse(address)
    return f"tcp://127.0.0.1:{port}" if host in {"*", "0.0.0.0"} else address
