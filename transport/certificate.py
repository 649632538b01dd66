"""The names that a certificate gives a process, and the certificates that a list revokes. Pure.

A process's certificate names it by an address in its ``subjectAltName``: ``mainspring://CLUSTER/ROLE/NAME``,
of which it may have several. The other end lets a process say only what one of these allows: its role, and
the name that others know it by. A `*` in the place of the name stands for any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mainspring.transport.handshake import Identity

SCHEME = "mainspring://"
ANY = "*"
UNNAMED = frozenset({"observer", "operator"})
"""Roles of programs that a person uses, which call themselves what they are: their certificates name that
person."""
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
_INTEGER, _SEQUENCE, _TIMES = 0x02, 0x30, (0x17, 0x18)


class BadCertificate(ValueError):
    """A certificate or a list is of no use here; the text says why."""


class Named(NamedTuple):
    """The process that one address in a certificate allows."""

    cluster: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.cluster}/{self.role}/{self.name}"


class Certificate(NamedTuple):
    """The part of the other end's certificate that counts, once its signatures are checked."""

    names: tuple[Named, ...]
    serial: int
    expires: str
    """End of its validity, as OpenSSL writes it."""

    def fault(self, cluster: str, claimed: Identity) -> str:
        """Return why it does not allow a process of this cluster to be who it says; empty if it does."""
        here = [each for each in self.names if each.cluster == cluster]
        if not here:
            return f"its certificate is of the cluster {self._of('cluster')}, and this process of {cluster!r}"
        if not any(_covers(each.role, claimed.role) for each in here):
            return f"its certificate is for the role {self._of('role')}, and it comes as {claimed.role}"
        return self.name_fault(claimed.role, claimed.name)

    def name_fault(self, role: str, name: bytes) -> str:
        """Return why it does not allow a process of this role to have a name; empty if it does."""
        if any(_covers(each.role, role) and _allows(each, name) for each in self.names):
            return ""
        claimed = name.decode("utf-8", "replace")
        return f"its certificate is for the {role} {self._of('name')}, and it calls itself {claimed!r}"

    def _of(self, part: str) -> str:
        return " or ".join(sorted({repr(getattr(each, part)) for each in self.names}))


def _covers(known: str, claimed: str) -> bool:
    """Say whether a certificate for a role allows another: an operator watches as well."""
    return known == claimed or (known, claimed) == ("operator", "observer")


def _allows(known: Named, claimed: bytes) -> bool:
    """Say whether a process may have a name: ``NAME``, or what it adds to that for one connection."""
    if not claimed or known.name == ANY or known.role in UNNAMED:
        return True
    name = known.name.encode()
    bare = claimed.removeprefix(known.role.encode() + b":")
    return name in (claimed, bare, bare.rpartition(b":")[0])


def parse_named(address: str) -> Named:
    """Return what an address like ``mainspring://CLUSTER/ROLE/NAME`` says; raise `BadCertificate`."""
    parts = address.removeprefix(SCHEME).split("/")
    named = Named(*parts) if address.startswith(SCHEME) and len(parts) == 3 else None
    if named is None or not all(_PART.fullmatch(part) for part in named[:2]):
        raise BadCertificate(f"{address!a} names no process; write it like {SCHEME}CLUSTER/ROLE/NAME")
    if named.name != ANY and not _PART.fullmatch(named.name):
        raise BadCertificate(
            f"{address!a} has no name of a process; it begins with a letter or digit and has letters, digits "
            "and . _ - : @ + only"
        )
    return named


def read_certificate(found: Mapping[str, Any]) -> Certificate:
    """Return what counts of a certificate as ``getpeercert`` tells it; raise `BadCertificate` if nothing."""
    addresses = [value for kind, value in found.get("subjectAltName", ()) if kind == "URI"]
    names = tuple(parse_named(each) for each in addresses if each.startswith(SCHEME))
    if not names:
        raise BadCertificate(f"its certificate names no process of Mainspring ({SCHEME}CLUSTER/ROLE/NAME)")
    return Certificate(names, int(found["serialNumber"], 16), str(found["notAfter"]))


def revoked(der: bytes) -> frozenset[int]:
    """Return the serial numbers in a list of revoked certificates (RFC 5280, section 5.1).

    Its signature is OpenSSL's to check. Raises `BadCertificate` if it is no such list.
    """
    try:
        ((_, whole),) = _elements(der)
        signed = list(_elements(next(_elements(whole))[1]))
        if signed[0][0] == _INTEGER:
            del signed[0]
        # Algorithm, issuer and instant; an instant of the next list need not be there, nor need an entry.
        rest = [each for each in signed[3:] if each[0] not in _TIMES]
        if signed[2][0] not in _TIMES:
            raise ValueError("no instant")
        entries = rest[0][1] if rest and rest[0][0] == _SEQUENCE else b""
        return frozenset(
            int.from_bytes(next(_elements(entry))[1], "big", signed=True) for _, entry in _elements(entries)
        )
    except (IndexError, ValueError, StopIteration) as error:
        raise BadCertificate("it is no list of revoked certificates (CRL)") from error


def serial_of(der: bytes) -> int:
    """Return the serial number of a certificate (RFC 5280, section 4.1); raise `BadCertificate`."""
    try:
        signed = list(_elements(next(_elements(next(_elements(der))[1]))[1]))
        # A version may come before it.
        number = next(content for tag, content in signed if tag == _INTEGER)
        return int.from_bytes(number, "big", signed=True)
    except (IndexError, ValueError, StopIteration) as error:
        raise BadCertificate("it is no certificate") from error


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element of DER; raise ValueError or IndexError where it is none."""
    place = 0
    while place < len(data):
        tag, length, place = data[place], data[place + 1], place + 2
        if length >= 0x80:
            size = length & 0x7F
            length, place = int.from_bytes(data[place : place + size], "big"), place + size
        if place + length > len(data):
            raise ValueError("an element ends after the data")
        yield tag, data[place : place + length]
        place += length
