"""How many clients each of the gateway's listeners may have of the process's file descriptors.

Each listener has a share of its own, so that idle connections to one of them leave the others theirs.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from mainspring.gateway.config import GatewayConfig

METRICS_CONNECTIONS: Final = 32
FEW_CONNECTIONS: Final = 1_000
"""Clients of one listener; a limit that leaves fewer is worth a warning."""
_SPARE_FILES: Final = 512
"""Descriptors that are kept for everything but clients: workers, files, libraries."""
_SPARE_FRACTION: Final = 4
"""At most one part of so many, where there are few."""
_LEAST_CONNECTIONS: Final = 32
"""Clients that are taken however few descriptors there are."""


def share(config: GatewayConfig, configured: int) -> int:
    """Return how many of its configured clients a listener may have."""
    listeners = 1 + bool(config.http_address) + bool(config.grpc_address)
    return min(configured, share_of(file_limit(), listeners))


def share_of(files: int, listeners: int) -> int:
    """Return the share of one listener, of those beside metrics. Pure."""
    spare = min(_SPARE_FILES, files // _SPARE_FRACTION)
    return max((files - spare - METRICS_CONNECTIONS) // listeners, _LEAST_CONNECTIONS)


def shortage(config: GatewayConfig) -> str | None:
    """Return what is to be said of a limit that leaves fewer clients than a busy gateway has."""
    clients = share(config, FEW_CONNECTIONS)
    if clients >= FEW_CONNECTIONS:
        return None
    return (
        f"this process may open {file_limit():,} files, which leaves {clients:,} clients for each of ZeroMQ, "
        "HTTP and gRPC; raise nofile in /etc/security/limits.conf (docker run --ulimit nofile=1048576)"
    )


def file_limit() -> int:
    """Return how many descriptors the process may have, after asking for as many as are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
