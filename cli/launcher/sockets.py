"""How a cluster's processes reach each other: sockets in the run folder, and the secret of the run.

Where all is on one host there is no TCP between them: the sockets are in the run folder, which is the user's
alone. Where a configuration names addresses of TCP, every connection to them proves the secret.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.configuration.tables import ConfigError
from mainspring.repository.config import RepositoryConfig
from mainspring.transport.addresses import PREFIX as TCP
from mainspring.transport.greeting import read_secret, write_secret
from mainspring.transport.local import PREFIX as LOCAL

SECRET_NAME = "secret"
CONTROLLER_SOCKET = "controller.sock"
SOCKETS = "*.sock"


def is_tcp(address: str) -> bool:
    """Say whether it is an address of TCP."""
    return address.startswith(TCP)


def listens_by_tcp(repository: RepositoryConfig) -> bool:
    """Say whether there is a model repository that is reached by TCP."""
    return bool(repository.path) and is_tcp(repository.address)


def with_sockets(config: Config, run_dir: Path) -> Config:
    """Return the configuration with an address for each process, and the file of the run's secret."""
    replace, secret = msgspec.structs.replace, config.cluster.secret_file or str(run_dir / SECRET_NAME)
    local = f"{LOCAL}{run_dir}"
    return replace(
        config,
        cluster=replace(config.cluster, secret_file=secret),
        controller=replace(
            config.controller,
            address=config.controller.address or f"{local}/{CONTROLLER_SOCKET}",
            secret_file=secret,
        ),
        gateway=replace(config.gateway, secret_file=secret),
        worker=replace(config.worker, secret_file=secret),
        repository=replace(
            config.repository,
            address=config.repository.address or f"{local}/repository.sock",
            secret_file=secret,
        ),
        console=replace(config.console, secret_file=secret),
    )


def prepare(secret_file: str, run_dir: Path) -> None:
    """Put sockets of a former run away, and make a new secret unless the operator has given one.

    Raises `ConfigError` if the secret can't be used, or the folder can't be written to.
    """
    own = run_dir / SECRET_NAME
    try:
        for each in run_dir.glob(SOCKETS):
            each.unlink()
        if secret_file == str(own):
            write_secret(own)
        read_secret(secret_file)
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
