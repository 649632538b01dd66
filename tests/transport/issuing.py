"""Certificates for tests, of an authority of their own, and those that no honest process would use."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from mainspring.cli.authority import Authority
from mainspring.transport import keys as keys_module
from mainspring.transport.certificate import Certificate, Named
from mainspring.transport.keys import Folder, Keys

CLUSTER = "here"
Issue = Callable[[str, str], Path]
"""Makes the folder of a process of a role and a name."""


def issuing(folder: Path, days: int = 30, cluster: str = CLUSTER) -> Issue:
    """Return what issues certificates of an authority's folder, each once."""

    def issue(role: str, name: str) -> Path:
        known = folder / (role if name == "*" else name)
        if known.is_dir():
            return known
        authority = Authority(folder)
        authority.cluster = cluster
        return authority.issue(role, name, ("localhost",), days)

    return issue


class Forced(Keys):
    """Keys that are used whatever others will say of them: an attacker does not check its own."""

    def __init__(self, path: Path, *, shows: bool = True) -> None:
        """``shows``: whether the certificate is shown when it is asked for."""
        folder = self._folder = Folder(str(path))
        self._signature, self._looked_ns = folder.signature(), 1 << 62
        server = keys_module._mutual(ssl.PROTOCOL_TLS_SERVER, folder)
        client = keys_module._mutual(ssl.PROTOCOL_TLS_CLIENT, folder)
        if not shows:
            client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client.check_hostname = False
            keys_module._trust(client, folder)
        own = Certificate((Named(CLUSTER, "tool", "*"),), 0, "")
        self.own, self._server, self._client, self._revoked = own, server, client, frozenset()
