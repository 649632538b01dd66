"""The address of the gateway for a client that was given none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

DEFAULT_ADDRESS = "tcp://127.0.0.1:7400"
ADDRESS_VARIABLE = "MAINSPRING_ADDRESS"
"""Environment variable with the gateway's address, or those of several, separated by commas."""


def gateway_address(given: str | None = None, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``given``, else the environment's ``MAINSPRING_ADDRESS``, else the default."""
    return given or environment.get(ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS


def gateway_addresses(given: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the addresses of a cluster's gateways, each once: as given, or as `gateway_address` says.

    A text may have several, separated by commas. Raises ValueError if there is none.
    """
    texts = [gateway_address(given)] if given is None or isinstance(given, str) else given
    found = [each.strip() for text in texts for each in text.split(",")]
    addresses = tuple(dict.fromkeys(filter(None, found)))
    if not addresses:
        raise ValueError(f"address is {given!r}; it has no gateway's address")
    return addresses
