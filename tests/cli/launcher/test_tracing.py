"""A cluster that could not send its traces is not started."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from mainspring import extras
from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.gateway.config import GatewayConfig
from mainspring.messages.tables import ConfigError


def traced(emulated: Callable[..., Config], address: str) -> Config:
    return msgspec.structs.replace(emulated(), gateway=GatewayConfig(trace_address=address))


def test_a_collector_is_named_by_an_address_of_http(emulated: Callable[..., Config]) -> None:
    make_plan(traced(emulated, "http://127.0.0.1:4318"))
    with pytest.raises(ConfigError, match="is not an address of an OpenTelemetry collector"):
        make_plan(traced(emulated, "grpc://127.0.0.1:4317"))


def test_what_is_missing_is_said_before_anything_starts(
    emulated: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.gateway.otlp.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(extras.command("tracing"))):
        make_plan(traced(emulated, "http://127.0.0.1:4318"))
    make_plan(emulated())
