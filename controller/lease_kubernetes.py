"""The lease of controllers of one Kubernetes cluster: an object ``Lease`` of ``coordination.k8s.io/v1``."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import secrets
import ssl
from pathlib import Path
from typing import Any, Final

from mainspring.controller.lease import Lease, StoreError

SCHEME: Final = "kubernetes"
TTL_NS: Final = 3_000_000_000
"""Time for which this lease is held without being renewed. Its object has whole seconds."""
ADDRESS: Final = "mainspring/address"
"""Annotation with the address of the holder."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod with its token, its namespace, and the certificate of the API server. A
test has its own: it is not final, or compiled code would have its value inlined."""
_TIMEOUT_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20
_CONFLICT, _NOT_FOUND = 409, 404


class ApiServer:
    """The API server, of which three calls are needed: too few for a client library of 100 MB."""

    def __init__(self, host: str, port: int, account: Path | None) -> None:
        """Raise OSError if the account lacks its certificate. Without an account it is asked in clear."""
        self._host, self._port, self._account = host, port, account
        self._trusts = None if account is None else ssl.create_default_context(cafile=account / "ca.crt")

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of a reply; raise `StoreError` if there is none."""
        headers = {"Content-Type": "application/json"}
        try:
            if self._account is not None:
                # The token is renewed every hour.
                headers["Authorization"] = f"Bearer {(self._account / 'token').read_text().strip()}"
            with contextlib.closing(self._connection()) as connection:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                reply = connection.getresponse()
                found = json.loads(reply.read(_MOST_BYTES))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StoreError(
                f"Kubernetes at {self._host}:{self._port}: {error or type(error).__name__}"
            ) from error
        if not isinstance(found, dict):
            raise StoreError(f"Kubernetes at {self._host}:{self._port} answered no object")
        return reply.status, found

    def _connection(self) -> http.client.HTTPConnection:
        if self._trusts is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._trusts)


class KubernetesStore:
    """Keeps the lease in an object of the API server.

    The object's ``leaseTransitions`` is the epoch, and a write names the version that it changes, so of two
    writers one fails. Clocks of pods are not compared: as for Kubernetes' own controllers, a lease has ended
    once it was seen unchanged for its duration. So who has just started waits for that long.
    """

    ttl_ns = TTL_NS
    look_ns = 500_000_000

    def __init__(self, server: ApiServer, namespace: str, name: str, holder: str, address: str = "") -> None:
        self._server = server
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._address = name, address
        # A pod that starts again has its name again, and not its lease.
        self._identity = f"{holder}_{secrets.token_hex(8)}"
        self._version = ""
        """Version of the object that this process wrote last; empty while it does not hold the lease."""
        self._epoch = 0
        self._seen = ""
        """Version of the object that was seen last."""
        self._seen_ns = 0
        """Instant at which that was seen for the first time."""

    def look(self, now_ns: int) -> Lease | None:
        """See `Store.look`."""
        found = self._read(now_ns)
        return None if found is None else self._lease(found, now_ns)

    def claim(self, now_ns: int, epoch: int) -> bool:
        """See `Store.claim`."""
        found = self._read(now_ns)
        if found is None:
            return self._hold("POST", epoch, "")
        lease = self._lease(found, now_ns)
        if lease.held or epoch <= lease.epoch:
            return False
        return self._hold("PUT", epoch, found["metadata"]["resourceVersion"])

    def renew(self, now_ns: int) -> bool:
        """See `Store.renew`."""
        if not self._version:
            return False
        if self._hold("PUT", self._epoch, self._version):
            return True
        # A renewal whose reply was lost has changed the version, too; so has whoever edits the object.
        found = self._read(now_ns)
        if found is None or found["spec"].get("holderIdentity") != self._identity:
            return False
        return self._hold("PUT", self._epoch, found["metadata"]["resourceVersion"])

    def release(self) -> None:
        """See `Store.release`."""
        if self._version:
            version, self._version = self._version, ""
            # If that is not to be had, it ends with its time.
            with contextlib.suppress(StoreError):
                self._write("PUT", self._epoch, version, "")

    def close(self) -> None:
        """See `Store.close`: no connection is kept."""

    def _lease(self, found: dict[str, Any], now_ns: int) -> Lease:
        spec, notes = found["spec"], found["metadata"].get("annotations") or {}
        duration_ns = 1_000_000_000 * (spec.get("leaseDurationSeconds") or 0)
        holder = spec.get("holderIdentity") or ""
        held = bool(holder) and now_ns < self._seen_ns + duration_ns
        epoch = spec.get("leaseTransitions") or 0
        return Lease(epoch, holder.rpartition("_")[0], notes.get(ADDRESS, ""), held)

    def _read(self, now_ns: int) -> dict[str, Any] | None:
        found = self._asked(_NOT_FOUND, "GET", f"{self._path}/{self._name}")
        version = "" if found is None else found["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen, self._seen_ns = version, now_ns
        return found

    def _hold(self, method: str, epoch: int, version: str) -> bool:
        """Write that this process holds it; return False if the object is not of this version any more."""
        made = self._write(method, epoch, version, self._identity)
        if made is None:
            self._version = ""
            return False
        self._version, self._epoch = made["metadata"]["resourceVersion"], epoch
        return True

    def _write(self, method: str, epoch: int, version: str, identity: str) -> dict[str, Any] | None:
        metadata: dict[str, Any] = {"name": self._name, "annotations": {ADDRESS: self._address}}
        if version:
            metadata["resourceVersion"] = version
        spec = {
            "holderIdentity": identity,
            "leaseDurationSeconds": TTL_NS // 1_000_000_000,
            "leaseTransitions": epoch,
            "renewTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        path = self._path if method == "POST" else f"{self._path}/{self._name}"
        return self._asked(_CONFLICT, method, path, body)

    def _asked(self, otherwise: int, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """Return the object of a reply, None if it has this status; raise `StoreError` for others."""
        status, found = self._server.ask(method, path, body)
        if status == otherwise:
            return None
        try:
            if status < 300 and found["metadata"]["resourceVersion"] and isinstance(found["spec"], dict):
                return found
        except (KeyError, TypeError):
            pass
        why = found.get("message") or found.get("reason") or "this is not a Lease"
        raise StoreError(f"Kubernetes answers {method} {path} with {status}: {why}")


def in_this_pod(name: str, holder: str, address: str) -> KubernetesStore:
    """Return the store of a lease of this pod's namespace; raise ValueError outside a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()
        if not host:
            raise ValueError("KUBERNETES_SERVICE_HOST is not set")
        return KubernetesStore(ApiServer(host, int(port), ACCOUNT), namespace, name, holder, address)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the lease is in Kubernetes, and this is not a pod with an account: {error}"
        ) from error
