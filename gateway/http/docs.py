"""The page to try a model in a browser, at ``/docs``: one file, which asks nobody but this gateway."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from mainspring.gateway.http.exchange import Exchange, Handler

_FILE = Path(__file__).with_name("docs.html")
_TYPE = b"text/html; charset=utf-8"


def page() -> Handler:
    """Return the handler that sends the page."""
    text = _FILE.read_text(encoding="utf-8")
    content, more = text.encode(), _headers(text)

    def send(exchange: Exchange) -> None:
        exchange.reply(200, (content,), _TYPE, more)

    return send


def _headers(text: str) -> bytes:
    """Return what keeps the page from running, fetching or being framed by anything else."""
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_digest(text, 'script')}",
            f"style-src {_digest(text, 'style')}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
    return (
        f"content-security-policy: {policy}\r\nx-content-type-options: nosniff\r\n"
        "referrer-policy: no-referrer\r\ncache-control: no-cache\r\n"
        "cross-origin-opener-policy: same-origin\r\ncross-origin-resource-policy: same-origin\r\n"
    ).encode()


def _digest(text: str, tag: str) -> str:
    """Return how a policy names what stands between the tags."""
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert found is not None, f"the page has no <{tag}>"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
