"""The address of the gateway for a client that was given none."""

from __future__ import annotations

import os
from collections.abc import Mapping

DEFAULT_ADDRESS = "tcp://127.0.0.1:7400"
ADDRESS_VARIABLE = "MAINSPRING_ADDRESS"
"""Environment variable with the gateway's address."""


def gateway_address(given: str | None = None, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``given``, else the environment's ``MAINSPRING_ADDRESS``, else the default."""
    return given or environment.get(ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS
