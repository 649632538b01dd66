"""Metric families of what tenants asked for and had. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from mainspring.gateway.metrics.series import family, labels
from mainspring.messages.metrics import TenantStatus
from mainspring.telemetry.bounded import OTHER

SHOWN = 100
"""Tenants that have series of their own, the first that came; what the others had is added up."""
_REQUESTS = {
    "requests": "Requests and queries of a tenant that reached the scheduler.",
    "executed": "Requests, and pieces of queries, of a tenant that were executed.",
    "dropped": "Requests of a tenant that were not served for want of devices' time.",
    "over_share": "Requests and queries of a tenant that was ahead of its share, refused for that.",
}


def tenants(found: Sequence[TenantStatus]) -> Iterator[str]:
    """Yield what each tenant asked for and had; nothing where there is none."""
    shown = [(labels(tenant=each.tenant), each) for each in found[:SHOWN] if each.tenant != OTHER]
    if rest := [each for number, each in enumerate(found) if number >= SHOWN or each.tenant == OTHER]:
        shown.append((labels(tenant=OTHER), reduce(TenantStatus.plus, rest)))
    for name, meaning in _REQUESTS.items():
        values = [(own, getattr(each, name)) for own, each in shown]
        yield from family(f"mainspring_tenant_{name}_total", "counter", meaning, values)
    yield from family(
        "mainspring_tenant_device_seconds_total",
        "counter",
        "Time of EXEC and LOAD that a tenant was charged.",
        [(own, each.device_ns / 1e9) for own, each in shown],
    )
    yield from family(
        "mainspring_tenant_share_devices",
        "gauge",
        "Devices that a tenant may use now; 0 while it is not held back.",
        [(own, each.share) for own, each in shown],
    )
