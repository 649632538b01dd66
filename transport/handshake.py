"""The handshake of a new connection: both ends prove that they belong together, before anything else is read.

Each end sends its role, its name and a nonce. An end that has the run's secret proves it with an HMAC over
everything that both have sent, under the label of its own side, so that neither a recorded nor a reflected
proof is valid. Between processes of one user on one host the kernel's statement of the user is enough
(*trusted* below), and so is a certificate, over TLS, which then has to allow role and name (`certify`). The
listener proves itself only to a connector that it has accepted. Pure: bytes in, bytes out.

    connector: hello                     listener: hello
    connector: proof, if it has a secret listener: verdict, with its proof if it has one, or with a refusal
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Container
from typing import NamedTuple

VERSION = 3
MAGIC = b"MSPG"
TLS = b"\x16\x03"
"""First bytes of TLS."""
HEAD = struct.Struct("<4sBBBB")
"""Magic, version, bytes of the role, bytes of the name, and whether the sender has a secret."""
VERDICT = struct.Struct("<BB")
"""Layout of the verdict: 1 if the connector is refused, and the bytes of the proof or reason that follows."""
NONCE_BYTES = PROOF_BYTES = 32
MAX_ROLE_BYTES = 16
MAX_NAME_BYTES = 255
MAX_BYTES = HEAD.size + NONCE_BYTES + MAX_ROLE_BYTES + MAX_NAME_BYTES + PROOF_BYTES
"""The most that either end reads before the other end is known."""
MIN_SECRET_BYTES = 32
_CONNECTOR, _LISTENER = b"mainspring/2 connector\0", b"mainspring/2 listener\0"

NO_SECRET = (
    "it shows no secret, and is not a process of this user on this host; give it the run's --secret-file"
)
OTHER_SECRET = "its secret is another one; give both processes the same --secret-file"
NONE_HERE = (
    "this process has no secret, so that only processes of its user on its host may connect; start it with "
    "--secret-file"
)
UNPROVED = (
    "does not prove that it belongs to this cluster: it is not a process of this user on this host, and "
    "without a secret on both sides nothing else is proof; give both the run's --secret-file"
)


class Violation(ValueError):
    """The other end has sent what no process of Mainspring sends; the text says what."""


class Unproved(Violation):
    """The other end is not the expected process, or refuses this one; the text says why."""

    def __init__(self, why: str, reply: bytes = b"") -> None:
        super().__init__(why)
        self.reply = reply
        """Bytes that are still to be sent to the other end."""


class Identity(NamedTuple):
    """The process at one end of a connection."""

    role: str
    """Decides which messages it may send and receive (`messages.roles`)."""
    name: bytes = b""


class Handshake:
    """One end of the handshake: send `opening`, then `take` exactly ``wants`` bytes until that is 0."""

    def __init__(self, own: Identity, secret: bytes | None, trusted: bool, nonce: bytes) -> None:
        """``trusted``: by the kernel's word the other end is a process of this user, or root, on this host.

        ``nonce``: `NONCE_BYTES` of this handshake alone. Raises ValueError if the role or the name is
        too long, or the secret too short.
        """
        role = own.role.encode()
        if len(own.name) > MAX_NAME_BYTES or not 0 < len(role) <= MAX_ROLE_BYTES:
            raise ValueError(f"a peer's name has at most {MAX_NAME_BYTES} bytes, not {len(own.name)}")
        if secret is not None and len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a secret has at least {MIN_SECRET_BYTES} bytes, not {len(secret)}")
        self.wants = HEAD.size
        """The number of bytes that `take` needs next; 0 once the handshake is complete."""
        self.peer = Identity("")
        """The other end, once ``wants`` is 0."""
        self._secret = secret
        self._trusted = trusted
        self._fault: Callable[[Identity], str] = lambda _: ""
        self._own = HEAD.pack(MAGIC, VERSION, len(role), len(own.name), secret is not None)
        self._own += nonce + role + own.name
        self._other = b""
        self._both = False
        """True if both ends have a secret, so that each proves it."""
        self._step: Callable[[bytes], bytes] = self._head

    @property
    def opening(self) -> bytes:
        """The bytes that this end sends first."""
        return b""

    def certify(self, fault: Callable[[Identity], str]) -> None:
        """Note that the other end has a certificate of this cluster's authority.

        ``fault``: why that does not allow a role and a name; empty if it does.
        """
        self._trusted, self._fault = True, fault

    def refusal(self, why: str) -> bytes:
        """Return what a listener says to a connector of which it has heard nothing that counts."""
        text = why.encode()[:255]
        return self._own + VERDICT.pack(1, len(text)) + text

    def take(self, data: bytes) -> bytes:
        """Take what came; return what to send. Raises `Violation`, and `Unproved` if this end gives up."""
        assert len(data) == self.wants > 0, f"{len(data)} bytes were given, not {self.wants}"
        return self._step(data)

    def _head(self, data: bytes) -> bytes:
        magic, version, role_bytes, name_bytes, has_secret = HEAD.unpack(data)
        if data.startswith(TLS):
            raise Violation("it speaks TLS, for which this process has no keys; start it with --keys")
        if magic != MAGIC:
            raise Violation(
                f"it begins with {magic!r}: that is no Mainspring process, or one of another release"
            )
        if version != VERSION:
            raise Violation(
                f"it speaks framing {version}, this process {VERSION}; install the same release on both"
            )
        if has_secret > 1 or not 0 < role_bytes <= MAX_ROLE_BYTES:
            raise Violation("its preamble is damaged")
        self._other = data
        self._both = self._secret is not None and bool(has_secret)
        self.wants = NONCE_BYTES + role_bytes + name_bytes
        self._step = self._identity
        return b""

    def _identity(self, data: bytes) -> bytes:
        """Read the role and name that the other end claims."""
        role_bytes, self._other = self._other[5], self._other + data
        role = data[NONCE_BYTES : NONCE_BYTES + role_bytes]
        if not role.isascii() or not role.isalpha():
            raise Violation("its preamble is damaged")
        self.peer = Identity(role.decode(), data[NONCE_BYTES + role_bytes :])
        return self._identified()

    def _identified(self) -> bytes:
        raise NotImplementedError

    def _proof(self, label: bytes, first: bytes, second: bytes) -> bytes:
        assert self._secret is not None, "only an end with a secret proves it"
        signed = label + len(first).to_bytes(2, "little") + first + second
        return hmac.digest(self._secret, signed, hashlib.sha256)


class Connecting(Handshake):
    """The connector's end of the handshake."""

    def __init__(
        self, own: Identity, secret: bytes | None, trusted: bool, nonce: bytes, expects: Identity | None
    ) -> None:
        """``expects``: the process that must be there; an empty name accepts any name, None any process."""
        super().__init__(own, secret, trusted, nonce)
        self._expects = expects

    @property
    def opening(self) -> bytes:
        """The connector's head, nonce, role and name."""
        return self._own

    def _identified(self) -> bytes:
        self.wants, self._step = VERDICT.size, self._verdict
        return self._proof(_CONNECTOR, self._own, self._other) if self._both else b""

    def _verdict(self, data: bytes) -> bytes:
        refused, length = VERDICT.unpack(data)
        self.wants = length
        self._step = self._refused if refused else self._accepted
        if not refused and length != (PROOF_BYTES if self._both else 0):
            raise Violation("its preamble is damaged")
        return b"" if length else self._step(b"")

    def _refused(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "replace")
        raise Unproved(f"it refuses this process: {text if text.isprintable() else repr(text)}")

    def _accepted(self, proof: bytes) -> bytes:
        self.wants = 0
        if self._both:
            if not hmac.compare_digest(proof, self._proof(_LISTENER, self._own, self._other)):
                raise Unproved(OTHER_SECRET)
        elif not self._trusted:
            raise Unproved(f"the {self.peer.role} {UNPROVED}")
        if fault := self._fault(self.peer):
            raise Unproved(fault)
        if self._expects is not None and (
            self.peer.role != self._expects.role or self._expects.name not in (b"", self.peer.name)
        ):
            raise Unproved(f"it is {_described(self.peer)}, not {_described(self._expects)}")
        return b""


class Accepting(Handshake):
    """The listener's end of the handshake."""

    def __init__(
        self,
        own: Identity,
        secret: bytes | None,
        trusted: bool,
        nonce: bytes,
        accepts: Container[str] | None,
    ) -> None:
        """``accepts``: the roles that may connect; None for all."""
        super().__init__(own, secret, trusted, nonce)
        self._accepts = accepts

    def _identified(self) -> bytes:
        if self._both:
            self.wants, self._step = PROOF_BYTES, self._proved
            return self._own
        if not self._trusted:
            self._refuse(NONE_HERE if self._secret is None else NO_SECRET, self._own)
        return self._own + self._accept(b"", self._own)

    def _proved(self, proof: bytes) -> bytes:
        if not hmac.compare_digest(proof, self._proof(_CONNECTOR, self._other, self._own)):
            self._refuse(OTHER_SECRET)
        return self._accept(self._proof(_LISTENER, self._other, self._own))

    def _accept(self, proof: bytes, before: bytes = b"") -> bytes:
        if fault := self._fault(self.peer):
            self._refuse(fault, before)
        if self._accepts is not None and self.peer.role not in self._accepts:
            self._refuse(f"a process in the role of {self.peer.role} has no business here", before)
        self.wants = 0
        return VERDICT.pack(0, len(proof)) + proof

    def _refuse(self, why: str, before: bytes = b"") -> None:
        text = why.encode()[:255]
        raise Unproved(f"refused: {why}", before + VERDICT.pack(1, len(text)) + text)


def _described(who: Identity) -> str:
    return f"{who.role} {who.name.decode('utf-8', 'replace')!r}" if who.name else f"a {who.role}"
