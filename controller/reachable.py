"""The check that gateways can reach the address that a worker says it listens at, as far as addresses tell.
Pure.

A worker may listen where only its own host can connect: at a socket in a folder, or at a loopback address.
That is right while every gateway runs on this host, and is found out at the hello otherwise; without that
each request for the worker would fail.
"""

from __future__ import annotations

from mainspring.transport import addresses
from mainspring.transport.addresses import Address
from mainspring.transport.local import Local

REMEDY = (
    "start the worker with --data-address tcp://HOST:*, an address of its host that gateways reach, or with "
    "--data-host HOST beside it if they know that host by another name"
)


def address_fault(address: str) -> str | None:
    """Return what is wrong with an address that a worker tells others, wherever they are, or None."""
    try:
        found = addresses.parse(address)
    except ValueError as error:
        return f"its data address can't be used: {error}"
    if isinstance(found, Address) and addresses.is_unspecified(found.host):
        return f"its data address {address} names no host, so that nobody can connect there; {REMEDY}"
    if isinstance(found, Address | Local):
        return None
    return f"its data address {address} is none of a worker; {REMEDY}"


def unreachable(address: str, worker_host: str, gateway_host: str) -> bool:
    """Say whether a worker's address is of use on the worker's host only, and the gateway is on another.

    Hosts are numeric addresses as the controller sees them, empty for its own.
    """
    if worker_host == gateway_host:
        return False
    found = addresses.parse(address)
    return isinstance(found, Local) or addresses.is_loopback(found.host)


def cut_off(worker: str, address: str, gateway: str) -> str:
    """Return the refusal for a worker and a gateway of which `unreachable` is true."""
    return f"gateway {gateway!r} is on another host and can't reach worker {worker!r} at {address}: {REMEDY}"
