"""The lease of controllers of several hosts, in etcd: two keys, changed by transactions.

``PREFIX/epoch`` holds the highest epoch and stays; ``PREFIX/holder`` holds who has it, and goes with etcd's
own lease on it. Only `etcd3gw` speaks with etcd, over its HTTP gateway.
"""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from mainspring.controller.lease import Lease, StoreError
from mainspring.extras import missing

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEME: Final = "etcd"
TTL_S: Final = 2
"""Time for which etcd holds a lease that is not renewed; it counts whole seconds."""
TIMEOUT_S: Final = 0.5
"""Longest wait for an answer of etcd."""
_PORT: Final = 2379


class _Holder(msgspec.Struct, frozen=True):
    """The content of ``PREFIX/holder``."""

    epoch: int
    holder: str
    address: str


_DECODER = msgspec.json.Decoder(_Holder)


class EtcdStore:
    """Keeps the lease; see the module's docstring."""

    ttl_ns = TTL_S * 1_000_000_000
    look_ns = 100_000_000

    def __init__(self, where: str, holder: str, address: str = "") -> None:
        """``where``: ``etcd://HOST:PORT/PREFIX``. Raises ValueError if it is none, or lacks `etcd3gw`."""
        found = urlsplit(where)
        if found.scheme != SCHEME or not found.hostname:
            raise ValueError(f"{where!r} is no address of etcd; write it like etcd://HOST:{_PORT}")
        self._etcd = _client(found.hostname, found.port or _PORT)
        prefix = found.path.strip("/") or "mainspring"
        self._epoch_key, self._holder_key = f"{prefix}/epoch", f"{prefix}/holder"
        self._holder, self._address = holder, address
        self._where = found.netloc
        self._lease: Any = None
        self._epoch = 0

    def look(self, now_ns: int) -> Lease | None:
        """See `Store.look`."""
        epoch, holder = self._read()
        if not epoch:
            return None
        if holder is None:
            return Lease(epoch, "", held=False)
        return Lease(max(epoch, holder.epoch), holder.holder, holder.address, held=True)

    def claim(self, now_ns: int, epoch: int) -> bool:
        """See `Store.claim`."""
        known, holder = self._read()
        if holder is not None or epoch <= known:
            return False
        lease = self._asked(lambda: self._etcd.lease(TTL_S))
        compare = [self._is_absent(self._holder_key), self._is_known(known)]
        put = [self._put(self._epoch_key, str(epoch).encode()), self._put_holder(epoch, lease)]
        if not self._transacted(compare, put):
            self._revoke(lease)
            return False
        self._lease, self._epoch = lease, epoch
        return True

    def renew(self, now_ns: int) -> bool:
        """See `Store.renew`."""
        if self._lease is None:
            return False
        if self._asked(self._lease.refresh) > 0:
            return True
        # It ended in etcd, which may not have been reached for long. Nobody need have claimed it since.
        lease = self._asked(lambda: self._etcd.lease(TTL_S))
        compare = [self._is_absent(self._holder_key), self._is_known(self._epoch)]
        if self._transacted(compare, [self._put_holder(self._epoch, lease)]):
            self._lease = lease
            return True
        self._revoke(lease)
        self._lease, self._epoch = None, 0
        return False

    def release(self) -> None:
        """See `Store.release`."""
        if self._lease is not None:
            self._revoke(self._lease)
        self._lease, self._epoch = None, 0

    def close(self) -> None:
        """Give the lease back."""
        self.release()

    def _read(self) -> tuple[int, _Holder | None]:
        """Return the highest epoch, 0 for none, and who holds the lease, as they are at one instant."""
        ranges = [{"requestRange": {"key": _coded(key)}} for key in (self._epoch_key, self._holder_key)]
        answer = self._asked(
            lambda: self._etcd.transaction({"compare": [], "success": ranges, "failure": []})
        )
        found: dict[bytes, bytes] = {}
        for part in answer.get("responses", ()):
            for pair in part.get("response_range", {}).get("kvs", ()):
                found[base64.b64decode(pair["key"])] = base64.b64decode(pair.get("value", ""))
        try:
            holder = found.get(self._holder_key.encode())
            epoch = int(found.get(self._epoch_key.encode(), b"0"))
            return epoch, None if holder is None else _DECODER.decode(holder)
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreError(f"etcd at {self._where} holds what is no lease: {error}") from error

    def _is_absent(self, key: str) -> dict[str, object]:
        return {"key": _coded(key), "result": "EQUAL", "target": "CREATE", "create_revision": 0}

    def _is_known(self, epoch: int) -> dict[str, object]:
        if not epoch:
            return self._is_absent(self._epoch_key)
        value = _coded(str(epoch))
        return {"key": _coded(self._epoch_key), "result": "EQUAL", "target": "VALUE", "value": value}

    def _put(self, key: str, value: bytes, lease: Any = None) -> dict[str, object]:
        put: dict[str, object] = {"key": _coded(key), "value": base64.b64encode(value).decode()}
        if lease is not None:
            put["lease"] = lease.id
        return {"request_put": put}

    def _put_holder(self, epoch: int, lease: Any) -> dict[str, object]:
        record = _Holder(epoch, self._holder, self._address)
        return self._put(self._holder_key, msgspec.json.encode(record), lease)

    def _transacted(self, compare: list[dict[str, object]], success: list[dict[str, object]]) -> bool:
        asked = {"compare": compare, "success": success, "failure": []}
        return bool(self._asked(lambda: self._etcd.transaction(asked)).get("succeeded", False))

    def _revoke(self, lease: Any) -> None:
        with contextlib.suppress(StoreError):
            self._asked(lease.revoke)

    def _asked(self, call: Callable[[], Any]) -> Any:
        """Return what etcd answers; raise `StoreError` if it does not, or not so that it can be used."""
        try:
            return call()
        except Exception as error:
            raise StoreError(f"etcd at {self._where}: {error or type(error).__name__}") from error


def _client(host: str, port: int) -> Any:
    """Return a client of etcd; raise ValueError if its library is not installed."""
    try:
        from etcd3gw import Etcd3Client
    except ModuleNotFoundError as error:
        raise ValueError(missing(error) or str(error)) from None
    return Etcd3Client(host, port, timeout=TIMEOUT_S, api_path="/v3/")


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
