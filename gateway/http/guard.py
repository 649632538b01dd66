"""Keeps pages of other sites from routes that change something. Pure.

Programs bring none of the headers that browsers add to what pages send, and call the gateway by whatever name
it has where they run; nothing is asked of them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mainspring.transport.origins import KnownNames

_OF_BROWSERS: Final = (b"origin", b"referer", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest")
_OWN_SITE: Final = (b"same-origin", b"none")


class PageGuard:
    """See the module's docstring."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """``hosts``: names of the gateway beside ``localhost`` and numeric addresses."""
        self._names = KnownNames(hosts)

    def problem(self, headers: Mapping[bytes, bytes]) -> str:
        """Return why a request with these headers may change nothing; empty if it may."""
        if not any(name in headers for name in _OF_BROWSERS):
            return ""
        called = headers.get(b"host", b"").decode("latin-1")
        if not self._names.known(called):
            return (
                f"the gateway is not known to browsers as {called[:200]!r}: call it by its address or as "
                "localhost, or add the name to http_hosts in the table [gateway]"
            )
        origin = headers.get(b"origin")
        if origin is not None:
            own = self._names.own(origin.decode("latin-1"), called)
        else:
            own = headers.get(b"sec-fetch-site") in _OWN_SITE
        return "" if own else "a page of another site may change nothing here; use a program, or an own page"
