"""How many clients each of the gateway's listeners may have of the process's file descriptors.

Each listener has a share of its own, so that idle connections to one of them leave the others theirs.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from mainspring.gateway.config import PROTOCOLS, GatewayConfig

METRICS_CONNECTIONS: Final = 32
_LOCAL_CONNECTIONS: Final = 256
"""Clients of the gateway's own host and user, which are few; others of them use ZeroMQ."""
_LOCAL_FRACTION: Final = 32
"""The local listener has at most one part in this many, where there are few descriptors."""
FEW_CONNECTIONS: Final = 1_000
"""Clients of one listener; a limit that leaves fewer is worth a warning."""
FILES_REMEDY: Final = (
    "raise nofile in /etc/security/limits.conf (systemd: LimitNOFILE; docker run --ulimit nofile=1048576)"
)
_DEFAULTS: Final = GatewayConfig()
_LISTENERS: Final = {
    "max_connections": "address",
    **{f"{name}_max_connections": f"{name}_address" for name in PROTOCOLS},
}
"""The key of each listener's clients, and that of its address, which is empty if it is not served."""
_SPARE_FILES: Final = 512
"""Descriptors that are kept for everything but clients: workers, files, libraries."""
_SPARE_FRACTION: Final = 4
"""At most one part in this many is spare, where there are few descriptors."""
_LEAST_CONNECTIONS: Final = 32
"""Clients that are taken however few descriptors there are."""


def share(config: GatewayConfig, configured: int) -> int:
    """Return how many of its configured clients a listener may have."""
    return min(configured, share_of(file_limit(), 1 + len(config.protocols)))


def share_of(files: int, listeners: int) -> int:
    """Return the share of one listener, of those beside metrics and this host's own clients."""
    spare = min(_SPARE_FILES, files // _SPARE_FRACTION)
    # Clients of this host have a connection each, and memory that workers are given.
    kept = spare + METRICS_CONNECTIONS + 2 * local_share(files)
    return max((files - kept) // listeners, _LEAST_CONNECTIONS)


def local_share(files: int) -> int:
    """Return how many clients of its own host and user a gateway may have."""
    return max(1, min(_LOCAL_CONNECTIONS, files // _LOCAL_FRACTION))


def shortage(config: GatewayConfig) -> str | None:
    """Return what is to be said of a limit that leaves a listener fewer clients than it should have.

    That is what is configured, or what a busy gateway has where the configuration says nothing of its own.
    """
    for name, address in _LISTENERS.items():
        configured: int = getattr(config, name)
        wanted = configured if configured != getattr(_DEFAULTS, name) else FEW_CONNECTIONS
        clients = share(config, wanted)
        if getattr(config, address) and clients < wanted:
            asked = f"; [gateway] {name} is {configured:,}" if wanted == configured else ""
            return (
                f"a process may open {file_limit():,} files, which leaves {clients:,} clients for each of "
                f"ZeroMQ, HTTP and gRPC{asked}; {FILES_REMEDY}"
            )
    return None


def file_limit() -> int:
    """Return how many descriptors the process may have, after asking for as many as are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
