"""A model repository over a gateway's HTTP: its index, and loading and unloading where that is on.

For those who administer a cluster: what the ZeroMQ protocol has no words for; see docs/repository.md.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.client.errors import (
    ERROR_OF_REASON,
    GatewayUnreachable,
    InvalidRequest,
    MainspringError,
)
from mainspring.messages.codes import Reason
from mainspring.messages.repository import IndexEntry

TIMEOUT_S = 1_800.0
"""Longest time that a load may take, with what has to be compiled first."""
_MOST_BYTES = 64 << 20
_ITS_OWN_WORDS = frozenset({Reason.BAD_INPUT, Reason.BAD_MESSAGE, Reason.UNKNOWN_MODEL})


class RepositoryClient:
    """Asks one gateway, at an address such as ``http://127.0.0.1:8000``.

    Every method raises `MainspringError` for what the gateway refuses, and `GatewayUnreachable` if there is
    none.
    """

    def __init__(self, address: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ValueError for an address that is not one of HTTP."""
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{address!r} is not an address of HTTP; it is like http://127.0.0.1:8000")
        self.address = address.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Return every version of every model, or of those that are ready."""
        found = self._post("/v2/repository/index", {"ready": ready})
        return msgspec.convert(found, list[IndexEntry])

    def load(
        self,
        name: str,
        files: Mapping[str, bytes] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Have a model served, or what changed of it; return once it is.

        ``files`` are sent, by their paths within the model's folder, such as ``1/model.onnx``: they count in
        its place. ``parameters`` are a configuration in the place of ``config.pbtxt``.
        """
        encoded = {f"file:{path}": base64.b64encode(data).decode() for path, data in (files or {}).items()}
        if parameters:
            config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
            encoded["config"] = json.dumps(config)
        body = {"parameters": encoded} if encoded else {}
        self._post(f"/v2/repository/models/{urllib.parse.quote(name, safe='')}/load", body)

    def unload(self, name: str) -> None:
        """Stop serving a model; return once no gateway takes requests for it."""
        self._post(f"/v2/repository/models/{urllib.parse.quote(name, safe='')}/unload", {})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self.address}{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                return msgspec.json.decode(reply.read(_MOST_BYTES) or b"{}")
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read(_MOST_BYTES)) from None
        except msgspec.MsgspecError:
            raise GatewayUnreachable(f"what answers at {self.address} is not a gateway") from None
        except OSError as error:
            why = getattr(error, "reason", error)
            raise GatewayUnreachable(f"no gateway answers over HTTP at {self.address} ({why})") from None


def _refusal(status: int, body: bytes) -> MainspringError:
    """Return what a gateway's error says."""
    try:
        refusal = msgspec.json.decode(body, type=dict[str, Any])
        reason = Reason(refusal["reason"]) if "reason" in refusal else None
        detail = str(refusal["error"])
    except (msgspec.MsgspecError, KeyError, ValueError):
        return MainspringError(f"the answer is HTTP {status}, which no gateway gives here")
    if reason is None:
        return MainspringError(detail)
    # Of a request for outputs these have other remedies than here.
    kind = InvalidRequest if reason in _ITS_OWN_WORDS else ERROR_OF_REASON.get(reason, MainspringError)
    return kind(detail.removeprefix(f"{reason}: "), reason)
