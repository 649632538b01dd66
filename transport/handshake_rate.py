"""The rate at which a listener begins handshakes of TLS: it bounds what a stranger may cost it.

A handshake costs a server about a millisecond of its core before it knows who asks, and a stranger next to
nothing. So each host may begin a number at once and then another number a second, and so may all hosts
together (`transport.config`): the processes and clients of a cluster that has just started come within the
first number. A connection beyond that is closed before anything is read of it, which is counted; who belongs
here tries again. Pure: instants are arguments.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import ClassVar, Final

from mainspring.transport.config import TransportConfig

MOST_HOSTS: Final = 4096
"""Hosts that are remembered; the one that came longest ago is forgotten for another."""
_SECOND_NS: Final = 1_000_000_000
_PREFIX_V6: Final = 64
"""Bits of an address of IPv6 that count as one host: anyone has all addresses of such a network."""


class _Bucket:
    """A number of handshakes that grows with time up to the most."""

    __slots__ = ("_at_ns", "_left", "_most", "_per_s")

    def __init__(self, now_ns: int, most: int, per_s: int) -> None:
        self._at_ns, self._left = now_ns, float(most)
        self._most, self._per_s = most, per_s

    def look(self, now_ns: int) -> bool:
        """Return whether one may begin."""
        grown = (now_ns - self._at_ns) * self._per_s / _SECOND_NS
        self._left, self._at_ns = min(float(self._most), self._left + max(0.0, grown)), now_ns
        return self._left >= 1.0

    def take(self) -> None:
        """Have one begin."""
        self._left -= 1.0


class HandshakeRate:
    """Says of each new connection whether its handshake may begin."""

    limits: ClassVar[TransportConfig] = TransportConfig()
    """Limits of listeners that are made from now on: a process sets its configuration before it makes any."""

    def __init__(self, now_ns: int) -> None:
        self.refused = 0
        """Connections that were closed for it."""
        limits = self._limits = HandshakeRate.limits
        self._all = _Bucket(now_ns, limits.all_handshakes_at_once, limits.all_handshakes_per_s)
        self._hosts: OrderedDict[str, _Bucket] = OrderedDict()

    def allows(self, now_ns: int, address: str) -> bool:
        """Count a connection from a numeric address; return whether its handshake may begin."""
        host = _host(address)
        own = self._hosts.get(host)
        if own is None:
            own = self._hosts[host] = _Bucket(
                now_ns, self._limits.handshakes_at_once, self._limits.handshakes_per_s
            )
            if len(self._hosts) > MOST_HOSTS:
                self._hosts.popitem(last=False)
        else:
            self._hosts.move_to_end(host)
        # One host that asks too often takes nothing of what the others have.
        if not own.look(now_ns) or not self._all.look(now_ns):
            self.refused += 1
            return False
        own.take()
        self._all.take()
        return True


def _host(address: str) -> str:
    """Return what counts as one host: an address of IPv4, a network of 64 bits of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found) >> _PREFIX_V6 << _PREFIX_V6, _PREFIX_V6)))
    return str(found)
