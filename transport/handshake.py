"""The handshake of a new connection: both ends say who they are, before anything else is read.

Each end sends its role and its name. What proves them lies below: on one host the kernel's statement that the
other end is a process of the same user (*trusted* below), over TLS a certificate, which has to allow role and
name (`certify`). Pure: bytes in, bytes out.

    connector: hello                     listener: hello and verdict, with the reason if it is a refusal
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from typing import NamedTuple

VERSION = 4
MAGIC = b"MSPG"
TLS = b"\x16\x03"
"""First bytes of TLS."""
HEAD = struct.Struct("<4sBBB")
"""Magic, version, bytes of the role and bytes of the name."""
VERDICT = struct.Struct("<BB")
"""Layout of the verdict: 1 if the connector is refused, and the bytes of the reason that follows."""
MAX_ROLE_BYTES = 16
MAX_NAME_BYTES = 255
MAX_BYTES = HEAD.size + MAX_ROLE_BYTES + MAX_NAME_BYTES
"""The most that either end reads before the other end is known."""

NOT_KNOWN = "it is not a process of this user on this host; between hosts and users give both --keys"
UNPROVED = (
    "does not prove that it belongs to this cluster: it is not a process of this user on this host, and "
    "shows no certificate; give both --keys"
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

    def __init__(self, own: Identity, trusted: bool) -> None:
        """``trusted``: by the kernel's word the other end is a process of this user, or root, on this host.

        Raises ValueError if the role or the name is too long.
        """
        role = own.role.encode()
        if len(own.name) > MAX_NAME_BYTES or not 0 < len(role) <= MAX_ROLE_BYTES:
            raise ValueError(f"a peer's name has at most {MAX_NAME_BYTES} bytes, not {len(own.name)}")
        self.wants = HEAD.size
        """The number of bytes that `take` needs next; 0 once the handshake is complete."""
        self.peer = Identity("")
        """The other end, once ``wants`` is 0."""
        self._trusted = trusted
        self._fault: Callable[[Identity], str] = lambda _: ""
        self._own = HEAD.pack(MAGIC, VERSION, len(role), len(own.name)) + role + own.name
        self._role_bytes = 0
        """Length of the name of the other end's role, in bytes."""
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
        magic, version, role_bytes, name_bytes = HEAD.unpack(data)
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
        if not 0 < role_bytes <= MAX_ROLE_BYTES:
            raise Violation("its preamble is damaged")
        self._role_bytes = role_bytes
        self.wants = role_bytes + name_bytes
        self._step = self._identity
        return b""

    def _identity(self, data: bytes) -> bytes:
        """Read the role and name that the other end claims."""
        role = data[: self._role_bytes]
        if not role.isascii() or not role.isalpha():
            raise Violation("its preamble is damaged")
        self.peer = Identity(role.decode(), data[self._role_bytes :])
        return self._identified()

    def _identified(self) -> bytes:
        raise NotImplementedError


class Connecting(Handshake):
    """The connector's end of the handshake."""

    def __init__(self, own: Identity, trusted: bool, expects: Identity | None) -> None:
        """``expects``: the process that must be there; an empty name accepts any name, None any process."""
        super().__init__(own, trusted)
        self._expects = expects

    @property
    def opening(self) -> bytes:
        """The connector's head, role and name."""
        return self._own

    def _identified(self) -> bytes:
        self.wants, self._step = VERDICT.size, self._verdict
        return b""

    def _verdict(self, data: bytes) -> bytes:
        refused, length = VERDICT.unpack(data)
        self.wants = length
        self._step = self._refused if refused else self._accepted
        if refused > 1 or bool(length) is not bool(refused):
            raise Violation("its preamble is damaged")
        return b"" if length else self._step(b"")

    def _refused(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "replace")
        raise Unproved(f"it refuses this process: {text if text.isprintable() else repr(text)}")

    def _accepted(self, _: bytes) -> bytes:
        self.wants = 0
        if not self._trusted:
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

    def __init__(self, own: Identity, trusted: bool, accepts: Container[str] | None) -> None:
        """``accepts``: the roles that may connect; None for all."""
        super().__init__(own, trusted)
        self._accepts = accepts

    def _identified(self) -> bytes:
        if not self._trusted:
            self._refuse(NOT_KNOWN)
        if fault := self._fault(self.peer):
            self._refuse(fault)
        if self._accepts is not None and self.peer.role not in self._accepts:
            self._refuse(f"a process in the role of {self.peer.role} has no business here")
        self.wants = 0
        return self._own + VERDICT.pack(0, 0)

    def _refuse(self, why: str) -> None:
        raise Unproved(f"refused: {why}", self.refusal(why))


def _described(who: Identity) -> str:
    return f"{who.role} {who.name.decode('utf-8', 'replace')!r}" if who.name else f"a {who.role}"
