"""The addresses of a cluster's processes, from the one address that people give: the gateway's.

It is ``--address``, else the environment's ``MAINSPRING_ADDRESS``, else what ``mainspring.toml`` in the
working folder says, else where `mainspring up` listens by default. The gateway says where the others are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mainspring.cli.launcher.addresses import connectable
from mainspring.client.address import ADDRESS_VARIABLE, gateway_address

CONFIG_FILE = Path("mainspring.toml")
PATIENCE_S = 2.0
"""Time for which a gateway is asked before its controller is looked for in the run folder."""
CONTROLLER, HTTP, CONSOLE = "controller", "http", "console"
DEFAULT_PLACES = {HTTP: "http://127.0.0.1:8000", CONSOLE: "http://127.0.0.1:8003"}
"""Addresses at which `mainspring up` serves these by default."""


def gateway(given: str | None = None) -> str:
    """Return the gateway's address; raise `ConfigError` for a ``mainspring.toml`` that can't be read."""
    if given or os.environ.get(ADDRESS_VARIABLE, "").strip():
        return gateway_address(given)
    return gateway_address(_of_file())


def place(name: str, address: str, token: str | None) -> str:
    """Return where one of a cluster's listeners is, as its gateway says or, if none answers, as by default.

    ``name`` is `CONTROLLER`, `HTTP` or `CONSOLE`. A controller is nowhere by default ("");
    `controllers.find` looks for its socket then.
    """
    told = asked(address, token).get(name)
    if told:
        return told
    return DEFAULT_PLACES.get(name, "")


def asked(address: str, token: str | None, patience_s: float = PATIENCE_S) -> Mapping[str, str]:
    """Return what a gateway says of where the others are, by name; nothing if it does not answer in time."""
    from mainspring.client.connection import Connection
    from mainspring.client.errors import MainspringError
    from mainspring.messages.clients import GetStatus, StatusReply

    give_up = time.monotonic() + patience_s
    connection, sent = Connection(address, name="mainspring", token=token), False
    try:
        while (left := give_up - time.monotonic()) > 0:
            connection.poll(1e3 * left)
            while (received := connection.receive()) is not None:
                if isinstance(received[0], StatusReply):
                    return received[0].places
            if connection.welcome is not None and not sent:
                connection.send(GetStatus(key=0))
                sent = True
    except MainspringError:
        return {}
    finally:
        connection.close()
    return {}


def _of_file() -> str | None:
    """Return the gateway's address of ``mainspring.toml`` in the working folder, None if it names none."""
    from mainspring.cli.configuration.config import read_tables

    if not CONFIG_FILE.is_file():
        return None
    table = read_tables(CONFIG_FILE).get("gateway", {})
    found = table.get("address") if isinstance(table, dict) else None
    return connectable(found) if isinstance(found, str) else None
