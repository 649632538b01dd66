"""A process's certificate, its key and the authority that it trusts: a folder, read again when it changes.

The folder has ``cert.pem``, ``key.pem`` and ``ca.pem``, and ``crl.pem`` where certificates have been revoked,
as `mainspring keys` writes them; the names of Kubernetes (``tls.crt``, ``tls.key``, ``ca.crt``, ``ca.crl``)
are taken as well. `Keys` is of processes that know each other by certificates, both ways; `ServerKeys` is of
what clients connect to, who know a server by its host's name.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
from pathlib import Path
from typing import Any

from mainspring.transport.certificate import ANY, BadCertificate, Certificate, read_certificate, revoked

LOG = logging.getLogger(__name__)

NAMES = {
    "certificate": ("cert.pem", "tls.crt"),
    "key": ("key.pem", "tls.key"),
    "authority": ("ca.pem", "ca.crt"),
    "list": ("crl.pem", "ca.crl"),
}
"""The files of a folder, each with the name that Kubernetes gives it."""
MAX_BYTES = 16 << 20
"""Most bytes of one of these files."""
LOOK_NS = 1_000_000_000
"""Time between two looks at the files."""
REVOKED = "its certificate has been revoked"
_TURNS = 8
"""Turns of the handshake of a process with itself, at most; it takes three."""


class BadKeys(OSError):
    """A folder of keys can't be used; the text says why and what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(None, why)

    def __str__(self) -> str:
        """Return the text alone."""
        return str(self.strerror)


class Folder:
    """The files of one folder, and whether they have changed."""

    def __init__(self, path: str) -> None:
        """Raise `BadKeys` if there is no such folder."""
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadKeys(f"there is no folder {path} with a certificate: `mainspring keys issue` makes one")

    def find(self, kind: str, needed: bool = True) -> Path | None:
        """Return a file of `NAMES`, None if it is missing and not ``needed``; else raise `BadKeys`."""
        for name in NAMES[kind]:
            if (self.path / name).is_file():
                return self.path / name
        if needed:
            raise BadKeys(f"the folder {self.path} has no {NAMES[kind][0]} (nor {NAMES[kind][1]})")
        return None

    def signature(self) -> tuple[object, ...]:
        """Return what changes when a file does."""
        found: list[object] = []
        for name in (each for names in NAMES.values() for each in names):
            try:
                status = os.stat(self.path / name)
            except OSError:
                continue
            found.append((name, status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)

    def check_key(self, path: Path) -> None:
        """Raise `BadKeys` if others may read a private key."""
        status = path.stat()
        # A key that root gave to this user's group is what Kubernetes mounts.
        others = 0o027 if status.st_uid == 0 else 0o077
        if stat.S_IMODE(status.st_mode) & others or status.st_uid not in {os.geteuid(), 0}:
            raise BadKeys(f"the key {path} is open to others: chown it to its user and chmod it to 0600")


def _load(context: ssl.SSLContext, folder: Folder) -> None:
    certificate, key = folder.find("certificate"), folder.find("key")
    assert certificate is not None, "it is needed"
    assert key is not None, "it is needed"
    folder.check_key(key)
    try:
        # Without a password the library would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise BadKeys(f"{certificate} and {key} are no certificate with its key: {_words(error)}") from None


def _trust(context: ssl.SSLContext, folder: Folder) -> None:
    authority, listed = folder.find("authority"), folder.find("list", needed=False)
    for path in (authority, listed):
        if path is None:
            continue
        try:
            context.load_verify_locations(path)
        except OSError as error:
            raise BadKeys(f"{path} is no certificate in PEM: {_words(error)}") from None
    if listed is not None:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _words(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


class Reloaded:
    """Keys that are made of a folder, again within `LOOK_NS` after its files have changed.

    What is wrong with new files is logged, and what was made of the former ones stays in use.
    """

    def __init__(self, path: str) -> None:
        """Read the folder; raise `BadKeys` if it is of no use."""
        self._folder = Folder(path)
        self._signature = self._folder.signature()
        self._looked_ns = time.monotonic_ns()
        self._read()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    def look(self, now_ns: int) -> bool:
        """Read the files again if it is time to and they have changed; return whether they have."""
        if now_ns - self._looked_ns < LOOK_NS:
            return False
        self._looked_ns = now_ns
        signature = self._folder.signature()
        if signature == self._signature:
            return False
        self._signature = signature
        try:
            self._read()
        except BadKeys as error:
            LOG.warning("%s has changed, and is not taken: %s", self._folder.path, error.strerror)
            return False
        LOG.info("%s has changed and was read again", self._folder.path)
        return True

    def _read(self) -> None:
        raise NotImplementedError


class Keys(Reloaded):
    """The certificate and contexts by which this process and others of its cluster prove who they are."""

    own: Certificate
    """This process's."""
    _server: ssl.SSLContext
    _client: ssl.SSLContext
    _revoked: frozenset[int]

    @property
    def cluster(self) -> str:
        """The cluster that this process is of."""
        return self.own.names[0].cluster

    def name_of(self, role: str) -> str:
        """Return the name that the certificate gives a process of this role; empty if it gives none."""
        return next((each.name for each in self.own.names if each.role == role and each.name != ANY), "")

    def context(self, server: bool) -> ssl.SSLContext:
        """Return how to speak with another process: as a ``server``, or as the one that connects."""
        self.look(time.monotonic_ns())
        return self._server if server else self._client

    def revokes(self, certificate: Certificate) -> bool:
        """Say whether a certificate has been revoked."""
        return certificate.serial in self._revoked

    def _read(self) -> None:
        self.own, self._server, self._client, self._revoked = _read(self._folder)


class ServerKeys(Reloaded):
    """The certificate that a server shows its clients, and the rule whether they have to show one."""

    _context: ssl.SSLContext

    def __init__(self, path: str, *, clients: bool) -> None:
        """``clients``: each must have a certificate of the folder's authority. Raises `BadKeys`."""
        self.clients = clients
        self.revoked: frozenset[int] = frozenset()
        """Serial numbers of certificates that are not to be taken any more."""
        super().__init__(path)

    def context(self) -> ssl.SSLContext:
        """Return how to speak with the next client."""
        self.look(time.monotonic_ns())
        return self._context

    def texts(self) -> tuple[bytes, bytes, bytes | None]:
        """Return key, certificate and authority in PEM, the last only if clients need certificates of it."""
        kinds = ("key", "certificate", *(["authority"] if self.clients else []))
        paths = [self._folder.find(kind) for kind in kinds]
        found = [path.read_bytes() for path in paths if path is not None]
        return found[0], found[1], found[2] if self.clients else None

    def _read(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, self._folder)
        serials = frozenset[int]()
        if self.clients:
            _trust(context, self._folder)
            context.verify_mode = ssl.CERT_REQUIRED
            listed = self._folder.find("list", needed=False)
            try:
                serials = frozenset() if listed is None else _revoked_in(listed)
            except BadCertificate as error:
                raise BadKeys(f"{listed}: {error}") from None
        self._context, self.revoked = context, serials


def client_context(path: str) -> ssl.SSLContext:
    """Return how to speak with a server whose certificate is of the authority in a folder of keys, or public.

    It is shown the folder's certificate if it asks for one. Raises `BadKeys`.
    """
    folder = Folder(path)
    context = ssl.create_default_context()
    _trust(context, folder)
    context.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF
    _load(context, folder)
    return context


def read_keys(path: str) -> Keys | None:
    """Return the keys in a folder, None for an empty path; raise `BadKeys`."""
    return Keys(path) if path else None


def _read(folder: Folder) -> tuple[Certificate, ssl.SSLContext, ssl.SSLContext, frozenset[int]]:
    """Return this process's certificate, both contexts, and what is revoked; raise `BadKeys`."""
    server, client = (_mutual(kind, folder) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    server.num_tickets = 0
    listed = folder.find("list", needed=False)
    try:
        own = read_certificate(_shown(server, client))
        serials = frozenset[int]() if listed is None else _revoked_in(listed)
    except ssl.SSLCertVerificationError as error:
        raise BadKeys(
            f"the certificate in {folder.path} would be refused by others: {error.verify_message}"
        ) from None
    except (ssl.SSLError, BadCertificate) as error:
        raise BadKeys(f"the certificate in {folder.path} is of no use: {_words(error)}") from None
    return own, server, client, serials


def _mutual(kind: Any, folder: Folder) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Processes are known by what their certificates call them, not by the host that they run on.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, folder)
    _trust(context, folder)
    return context


def _shown(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Return this process's own certificate as others get it: it connects to itself, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(_TURNS):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    return ends[1].getpeercert() or {}


def _revoked_in(path: Path) -> frozenset[int]:
    text = path.read_text("ascii", "replace")
    begin, end = "-----BEGIN X509 CRL-----", "-----END X509 CRL-----"
    found: set[int] = set()
    for part in text.split(begin)[1:]:
        body = part.partition(end)[0]
        found |= revoked(ssl.PEM_cert_to_DER_cert(f"{ssl.PEM_HEADER}{body}{ssl.PEM_FOOTER}"))
    return frozenset(found)
