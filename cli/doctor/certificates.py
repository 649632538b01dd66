"""The certificates of the cluster that is configured here: whether they can be used, and for how long."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from mainspring.cli.configuration.config import Config
from mainspring.cli.doctor.machine import Finding
from mainspring.transport.keys import Keys, ServerKeys

SOON_DAYS = 30
"""A certificate that ends sooner is to be renewed."""
DAY_S = 86_400


def certificates(config: Config, now_s: float | None = None) -> list[Finding]:
    """Return what there is to say of the configured folders of keys; ``now_s``: seconds of the epoch."""
    now_s = time.time() if now_s is None else now_s
    found = []
    for key, role, name, folder in _folders(config):
        try:
            days = (ssl.cert_time_to_seconds(Keys(str(folder)).own.expires) - now_s) / DAY_S
        except OSError as error:
            found.append(_bad(f"{key}: {error.strerror}", f"mainspring keys issue {role} {name}"))
            continue
        said = f"{key}: that of the {name} is valid for {days:.0f} days"
        remedy = f"mainspring keys issue {role} {name} --keys {folder.parent}"
        found.append(
            Finding(subject="certificate", good=True, found=said)
            if days >= SOON_DAYS
            else _bad(said, f"{remedy}; a running process reads it within a second")
        )
    for key, path in (("[gateway] tls", config.gateway.tls), ("[console] tls", config.console.tls)):
        if not path:
            continue
        try:
            ServerKeys(path, clients=config.gateway.client_certificates and key == "[gateway] tls")
            found.append(Finding(subject="certificate", good=True, found=f"{key}: {path} can be shown"))
        except OSError as error:
            found.append(_bad(f"{key}: {error.strerror}", "mainspring keys issue gateway NAME --host HOST"))
    return found


def _bad(found: str, remedy: str) -> Finding:
    return Finding(
        subject="certificate",
        good=False,
        found=found,
        costs="connections with it are refused, now or once it has expired",
        remedy=remedy,
    )


def _folders(config: Config) -> Iterator[tuple[str, str, str, Path]]:
    """Yield the key, role, name and folder of each process that `mainspring up` gives keys."""
    if not config.cluster.keys:
        return
    names = [("controller", "controller"), ("gateway", "gateway")]
    names += [("worker", f"worker-{number}") for number in range(config.cluster.workers)]
    names += [("repository", "repository")] if config.repository.path else []
    names += [("operator", "console")] if config.cluster.console else []
    for role, name in names:
        yield "[cluster] keys", role, name, Path(config.cluster.keys, name)
