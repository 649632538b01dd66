"""Trace settings: what is set counts, what a model has not is everybody's, what is not served is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.oip.datatypes import Unfit, Unserved
from mainspring.gateway.oip.settings import TraceSettings


def served(**options: Any) -> TraceSettings:
    return TraceSettings(GatewayConfig(trace_address="http://127.0.0.1:4318", **options))


def test_the_beginning_is_the_configurations() -> None:
    assert served(trace_sample_ratio=0.02).shown() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "50",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }
    assert TraceSettings(GatewayConfig()).shown()["trace_level"] == ["OFF"]


def test_what_a_model_has_not_is_everybodys_and_both_can_be_taken_back() -> None:
    settings = served()
    settings.change("m", {"trace_rate": "12"})
    settings.change(None, {"trace_rate": 56, "trace_count": ["78"], "trace_level": "OFF"})
    assert settings.shown("m")["trace_rate"] == "12"
    assert settings.shown("m")["trace_count"] == "78"
    assert settings.shown("other") == settings.shown() != settings.shown("m")
    settings.change(None, {"trace_rate": None, "trace_count": []})
    assert settings.shown()["trace_rate"] == "100"
    assert settings.shown()["trace_level"] == ["OFF"]
    settings.change("m", {"trace_rate": None})
    assert settings.shown("m") == settings.shown()


def test_level_and_rate_decide_which_requests_are_traced() -> None:
    settings = served(trace_sample_ratio=0.3)
    assert settings.takes("m", None, 0.29), "the configured share, to the digit"
    assert not settings.takes("m", None, 0.31)
    settings.change("m", {"trace_rate": "2"})
    assert settings.takes("m", None, 0.49)
    assert not settings.takes("other", None, 0.49)
    settings.change("m", {"trace_level": ["OFF"]})
    assert not settings.takes("m", True, 0.0), "not even one whose client asks for it"
    assert settings.takes("other", True, 0.9)
    assert not settings.takes("other", False, 0.0)


def test_a_count_runs_out_for_those_that_share_it() -> None:
    settings = served()
    settings.change(None, {"trace_count": "2"})
    settings.change("own", {"trace_count": "1"})
    for model in ("a", "own", "b"):
        assert settings.takes(model, True, 0.0)
        settings.took(model)
    assert [settings.takes(model, True, 0.0) for model in ("a", "b", "own")] == [False] * 3
    assert settings.shown()["trace_count"] == settings.shown("own")["trace_count"] == "0"
    settings.change("own", {"trace_count": "-1"})
    settings.took("own")
    assert settings.shown("own")["trace_count"] == "-1"


@pytest.mark.parametrize(
    ("wanted", "kind", "said"),
    [
        ({"rate": "1"}, Unfit, "no trace setting 'rate'; there are trace_level"),
        ({"trace_level": ["LOUD"]}, Unfit, "it is OFF or TIMESTAMPS"),
        ({"trace_level": ["TIMESTAMPS", "TENSORS"]}, Unserved, "tensors are not written"),
        ({"trace_rate": "0"}, Unfit, "from 1 to"),
        ({"trace_rate": "many"}, Unfit, "whole number"),
        ({"trace_rate": ["1", "2"]}, Unfit, "whole number"),
        ({"trace_rate": {"a": 1}}, Unfit, "a text, or a list"),
        ({"trace_count": "-2"}, Unfit, "from -1 to"),
        ({"trace_count": "9" * 50}, Unfit, "from -1 to"),
        ({"trace_file": "/tmp/x"}, Unserved, "trace_address"),
        ({"trace_rate": "5", "log_frequency": "7"}, Unserved, "not written to files"),
        ({"trace_mode": "triton"}, Unserved, "OpenTelemetry's"),
    ],
)
def test_what_is_wrong_or_not_served_is_refused_and_sets_nothing(
    wanted: dict[str, Any], kind: type[Exception], said: str
) -> None:
    settings = served()
    before = settings.shown()
    with pytest.raises(kind, match=said):
        settings.change(None, wanted)
    assert settings.shown() == before


def test_without_a_collector_a_level_is_refused_that_would_send_traces() -> None:
    settings = TraceSettings(GatewayConfig())
    settings.change("m", {"trace_level": ["OFF"], "trace_file": ""})
    with pytest.raises(Unserved, match="set trace_address"):
        settings.change("m", {"trace_level": ["TIMESTAMPS"]})


def test_models_with_settings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.gateway.oip.settings._MOST_MODELS", 2)
    settings = served()
    for model in "ab":
        settings.change(model, {"trace_rate": "5"})
    with pytest.raises(Unfit, match="take some back"):
        settings.change("c", {"trace_rate": "5"})
    settings.change("a", {"trace_rate": None})
    settings.change("c", {"trace_rate": "5"})
