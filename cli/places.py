"""The addresses of a cluster's processes, from the one address that people give: the gateway's.

It is ``--address``, else the environment's ``MAINSPRING_ADDRESS``, else what ``mainspring.toml`` in the
working folder says, else where `mainspring up` listens by default. The gateway says where the others are. A
controller asks other users and hosts for keys.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainspring.cli.launcher.addresses import CONTROLLER_SOCKET, connectable, is_tcp
from mainspring.client.address import ADDRESS_VARIABLE, DEFAULT_ADDRESS, gateway_address, gateway_addresses
from mainspring.messages.roles import Role
from mainspring.messages.tables import ConfigError
from mainspring.transport.local import PREFIX as LOCAL

if TYPE_CHECKING:
    from mainspring.transport.keys import Keys


CONFIG_FILE = Path("mainspring.toml")
PATIENCE_S = 2.0
"""Time for which a gateway is asked before its controller is looked for in the run folder."""
CONTROLLER, HTTP, CONSOLE = "controller", "http", "console"
DEFAULT_PLACES = {HTTP: "http://127.0.0.1:8000", CONSOLE: "http://127.0.0.1:8003"}
"""Addresses at which `mainspring up` serves these by default."""


def gateway(given: str | None = None) -> str:
    """Return the gateway's address, or those of several with commas.

    Raises `ConfigError` for a ``mainspring.toml`` that can't be read.
    """
    if given or os.environ.get(ADDRESS_VARIABLE, "").strip():
        return gateway_address(given)
    return gateway_address(_of_file())


def place(name: str, address: str, token: str | None) -> str:
    """Return where one of a cluster's listeners is, as its gateway says or, if none answers, as by default.

    ``name`` is `CONTROLLER`, `HTTP` or `CONSOLE`. A controller is nowhere by default (""); `find` looks for
    its socket then. Raises `ConfigError` if a gateway does not answer that is not the one meant by default:
    what else runs here is not its cluster.
    """
    told = asked(address, token)
    if told is None and address != gateway_address(_of_file(), {}):
        raise ConfigError(
            f"no gateway answers at {address}: is `mainspring up` running there? --address names another one"
        )
    return (told or {}).get(name) or DEFAULT_PLACES.get(name, "")


def asked(address: str, token: str | None, patience_s: float = PATIENCE_S) -> Mapping[str, str] | None:
    """Return what a gateway says of where the others are, by name; None if none answers in time."""
    addresses = gateway_addresses(address)
    answers = (_asked(each, token, patience_s / len(addresses)) for each in addresses)
    return next((each for each in answers if each is not None), None)


def _asked(address: str, token: str | None, patience_s: float) -> Mapping[str, str] | None:
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
        return None
    finally:
        connection.close()
    return None


def _of_file() -> str | None:
    """Return the gateways' addresses of ``mainspring.toml`` in the working folder, None if it names none."""
    from mainspring.cli.configuration.config import read_tables
    from mainspring.cli.launcher.gateways import behind

    if not CONFIG_FILE.is_file():
        return None
    tables = read_tables(CONFIG_FILE)
    table, count = tables.get("gateway", {}), tables.get("cluster", {}).get("gateways", 1)
    found = table.get("address") if isinstance(table, dict) else None
    several = isinstance(count, int) and count > 1
    if several and found is None:
        found = DEFAULT_ADDRESS
    if not isinstance(found, str):
        return None
    numbers = range(count) if several else range(1)
    return ",".join(connectable(behind("address", found, number)) for number in numbers)


DEFAULT_FILE = Path("mainspring.toml")
DEFAULT_RUN_DIR = "out/run"


class Door(NamedTuple):
    """A controller, and how to be let in."""

    address: str
    folder: str = ""
    """Folder of this process's keys, for TLS; empty for none: this user's own controller on this host needs
    none."""

    def keys(self) -> Keys | None:
        """Return the keys, if there are any; raise `ConfigError` if they can't be used."""
        from mainspring.transport.keys import read_keys

        try:
            return read_keys(self.folder)
        except OSError as error:
            raise ConfigError(error.strerror or str(error)) from None


def find(given: str | None, keys: Path | None = None) -> Door:
    """Return the controller that is meant: an address or a run folder that was given, or the one nearby.

    Nearby is the cluster of ``mainspring.toml`` here, one whose run folder is here, or a controller that this
    user has started singly. Raises `ConfigError` on a bad ``mainspring.toml``.
    """
    run_dir, configured, folder = _configured()
    if given and Path(given).is_dir():
        run_dir, given = Path(given), None
        configured = folder = ""
    elif not given and not configured and not (run_dir / CONTROLLER_SOCKET).exists():
        run_dir = personal_folder()
    address = given or configured or _sockets(run_dir.absolute())
    folder = folder if keys is None else str(keys)
    if not is_tcp(address) and keys is None:
        folder = ""
    return Door(address, folder)


def _sockets(run_dir: Path) -> str:
    """Return the address of the controller of a run folder, and of those that stand by."""
    from mainspring.transport.controllers import SEPARATOR, STANDBY

    standbys = sorted(run_dir.glob(CONTROLLER_SOCKET.replace(".", f"-{STANDBY}-*.")))
    return SEPARATOR.join(f"{LOCAL}{each}" for each in (run_dir / CONTROLLER_SOCKET, *standbys))


def find_for(address: str, token: str | None, given: str | None, keys: Path | None = None) -> Door:
    """Return the controller that was given, or that of the gateway at ``address``, or the one nearby.

    Raises as `find` and `place`.
    """
    return find(given or place(CONTROLLER, address, token), keys)


def personal_address() -> str:
    """Return where a controller listens that is started singly; make the folder, for this user alone.

    Raises `ConfigError` if the folder is another user's.
    """
    folder = personal_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a folder of this user alone; remove it, or say where to listen with --address "
            f"{LOCAL}/PATH"
        )
    return f"{LOCAL}{folder}/{CONTROLLER_SOCKET}"


def personal_folder() -> Path:
    """Return this user's folder for sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "mainspring"
    return Path(f"/tmp/mainspring-{os.geteuid()}")


def check_guarded(address: str, keys: str, option: str) -> None:
    """Raise `ConfigError` where a process would listen beyond this host without keys."""
    from mainspring.cli.exposure import check_exposed, of_processes

    check_exposed([of_processes(option, address, keys)], insecure=False)


def _configured() -> tuple[Path, str, str]:
    """Return run folder, controller's address and observer's keys of the configuration here."""
    from mainspring.cli.configuration.config import read_tables

    if not DEFAULT_FILE.exists():
        return Path(DEFAULT_RUN_DIR), "", ""
    tables = read_tables(DEFAULT_FILE)
    cluster = tables.get("cluster", {})
    run_dir = Path(str(cluster.get("run_dir", DEFAULT_RUN_DIR)))
    address = str(tables.get("controller", {}).get("address", ""))
    keys = Path(str(cluster.get("keys", "") or os.devnull), Role.OBSERVER)
    return (
        run_dir,
        address.replace("tcp://*:", "tcp://127.0.0.1:"),
        str(keys) if keys.is_dir() else "",
    )
