"""What each listener may have of the process's descriptors."""

from __future__ import annotations

import pytest

from mainspring.gateway import descriptors
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.descriptors import METRICS_CONNECTIONS, local_share, share_of, shortage


@pytest.mark.parametrize("files", [256, 1_024, 20_000, 1 << 20])
@pytest.mark.parametrize("listeners", [1, 2, 3])
def test_no_listener_can_take_anothers_descriptors(files: int, listeners: int) -> None:
    taken = share_of(files, listeners) * listeners + METRICS_CONNECTIONS + 2 * local_share(files)
    assert taken <= files * 3 // 4 or taken <= files - 512
    assert share_of(files, listeners) > files // listeners // 2


def test_a_few_clients_are_taken_whatever_the_limit() -> None:
    assert share_of(64, 3) == 32


def test_a_low_limit_is_worth_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 1_024)
    said = shortage(GatewayConfig(http_address="http://127.0.0.1:0"))
    assert said is not None
    assert "may open 1,024 files" in said
    assert "nofile" in said
    monkeypatch.setattr(descriptors, "file_limit", lambda: 20_000)
    assert shortage(GatewayConfig(http_address="http://127.0.0.1:0")) is None


def test_what_is_configured_is_what_should_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 20_000)
    http = "http://127.0.0.1:0"
    said = shortage(GatewayConfig(http_address=http, http_max_connections=15_000))
    assert said is not None
    assert "[gateway] http_max_connections is 15,000" in said
    assert shortage(GatewayConfig(http_address=http, http_max_connections=9_000)) is None
    assert shortage(GatewayConfig(http_max_connections=15_000)) is None, "HTTP is not served"
    monkeypatch.setattr(descriptors, "file_limit", lambda: 1_024)
    assert shortage(GatewayConfig(max_connections=100)) is None
