"""The check that a browser's request comes from a page of the server's own.

A page of another site can make a browser send requests to a server here (cross-site request forgery), and its
site can let a name of its own point to this machine (DNS rebinding), so that the browser takes the server for
that site. So a request must call the server by a name that the server knows, and a request with an origin
must have the same name there. See <https://www.rfc-editor.org/rfc/rfc6454> on origins.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit


class KnownNames:
    """The names by which a server may be called."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """``hosts``: further names beside ``localhost`` and numeric addresses."""
        self._hosts = {"localhost", *(host.strip("[]").lower() for host in hosts)}

    def known(self, authority: str) -> bool:
        """Return whether the server may be called by this host, with or without port."""
        host = _host(authority)
        if host is None:
            return False
        # No site can let a name of its own point to a numeric address: it has no name.
        return host in self._hosts or _is_numeric(host)

    def own(self, origin: str, authority: str) -> bool:
        """Return whether a page of this origin is the server's own, called by ``authority``."""
        scheme, _, of_page = origin.partition("://")
        if scheme not in {"http", "https"}:
            return False
        # A proxy that ends TLS may use another port than browsers see; then the name decides.
        same = of_page.lower() == authority.lower()
        return same or (scheme == "https" and _host(of_page) in self._hosts - {"localhost"})


def _host(authority: str) -> str | None:
    """Return the host of ``host`` or ``host:port`` in lower case; None if it is neither."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != authority or parts.username is not None or not authority.isprintable():
        return None
    return parts.hostname


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
