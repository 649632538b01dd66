"""The name of a Ray cluster in ``--ray``, and the connection to it."""

from __future__ import annotations

import socket
from typing import Any

from mainspring import extras
from mainspring.messages.tables import ConfigError

LOCAL = "local"
"""``--ray local`` starts a Ray of its own on this machine."""
REACHED_S = 5.0
"""Time in which a Ray cluster must answer."""


def connect(address: str, **own: Any) -> Any:
    """Connect this process to a Ray cluster, or start one for `LOCAL`, and return Ray's module.

    ``own`` are arguments of ``ray.init`` for one that is started. Raises `ConfigError` if there is none.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"Ray is not installed here: {extras.command('cluster')}, or leave --ray out to use this "
            "machine alone"
        ) from None
    _check_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **(own if address == LOCAL else {}))
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raise `ConfigError` unless something listens at ``HOST:PORT``: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        if address not in (LOCAL, "auto"):
            raise ConfigError(f"--ray takes HOST:PORT, ray://HOST:PORT, auto or {LOCAL}, not {address!r}")
        return
    try:
        socket.create_connection((host, int(port)), REACHED_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
