"""Tenants' families, read back by prometheus-client's parser."""

from __future__ import annotations

from mainspring.gateway.metrics.tenants import SHOWN, tenants
from mainspring.messages.metrics import TenantStatus
from tests.gateway.metrics.test_series import parsed


def test_what_each_tenant_asked_for_and_had_is_told() -> None:
    one = TenantStatus('a "b"', 2.0, 9, 4, 3, 2, 1_500_000_000, 0.25)
    found = parsed("".join(tenants([one, TenantStatus("", 1.0, 1)])))
    own = (("tenant", 'a "b"'),)
    assert {name.removeprefix("mainspring_tenant_"): values[own] for name, values in found.items()} == {
        "requests_total": 9,
        "executed_total": 4,
        "dropped_total": 3,
        "over_share_total": 2,
        "device_seconds_total": 1.5,
        "share_devices": 0.25,
    }
    assert found["mainspring_tenant_requests_total"][()] == 1


def test_without_tenants_nothing_is_told() -> None:
    assert not [*tenants([])]


def test_very_many_tenants_share_a_series_whatever_they_are_called() -> None:
    many = [TenantStatus(f"t{number}", 1.0, 1, device_ns=10**9) for number in range(SHOWN + 5)]
    found = parsed("".join(tenants([TenantStatus("other", 1.0, 7), *many])))
    counts = found["mainspring_tenant_requests_total"]
    assert len(counts) == SHOWN
    assert counts[(("tenant", "t0"),)] == 1
    assert counts[(("tenant", "other"),)] == 7 + 6
    assert sum(found["mainspring_tenant_device_seconds_total"].values()) == SHOWN + 5
