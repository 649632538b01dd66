"""Which deadline counts, and what a refusal is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.errors import STATUSES, error_body, grpc_code, http_status
from mainspring.gateway.oip.parameters import default_slo_ns, slo_ns
from mainspring.messages.codes import Reason
from mainspring.messages.durations import LONGEST_NS
from mainspring.messages.served import ServedModel

MS = 1_000_000
MICROSECONDS = st.none() | st.integers(0, 10**12)
MILLISECONDS = st.none() | st.integers(1, 10**9)


@given(MICROSECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS)
def test_the_nearest_that_a_client_gives_counts(
    timeout_us: int | None, slo_ms: int | None, header: int | None, left: int | None, default: int | None
) -> None:
    given_ns = [each * MS for each in (slo_ms, header, left) if each is not None]
    if timeout_us:
        given_ns.append(timeout_us * 1_000)
    default_ns = None if default is None else default * MS
    found = slo_ns(
        timeout_us=timeout_us,
        slo_ms=slo_ms,
        header=None if header is None else str(header),
        left_ns=None if left is None else left * MS,
        default_ns=default_ns,
    )
    assert found == (min(given_ns) if given_ns else default_ns)


def test_durations_are_taken_in_each_form_that_clients_send() -> None:
    assert slo_ns(timeout_us="2500") == 2_500_000
    assert slo_ns(slo_ms=2.5) == slo_ns(slo_ms="2.5") == slo_ns(header="2.5") == 2_500_000
    assert slo_ns(header="1e-9") == 1


@pytest.mark.parametrize(
    "given",
    [
        *({"timeout_us": each} for each in (1 << 70, 1e30, "9" * 30, "9" * 399)),
        *({"slo_ms": each} for each in (1 << 70, 1e30, 1e308, "1e300", 10**400, "9" * 50)),
        {"header": "9" * 300},
    ],
)
def test_a_duration_however_long_is_one_that_is_too_long(given: dict[str, Any]) -> None:
    assert slo_ns(**given) == LONGEST_NS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timeout_us": -1}, "timeout is -1"),
        ({"timeout_us": 2.5}, "whole number of microseconds"),
        ({"timeout_us": True}, "timeout is True"),
        ({"timeout_us": "soon"}, "timeout is 'soon'"),
        ({"timeout_us": [1] * 1000}, "..."),
        ({"slo_ms": 0}, "slo_ms is 0"),
        ({"slo_ms": -3.5}, "greater than 0"),
        ({"slo_ms": float("nan")}, "slo_ms is nan"),
        ({"slo_ms": float("inf")}, "slo_ms is inf"),
        ({"slo_ms": {}}, "slo_ms is {}"),
        ({"slo_ms": False}, "slo_ms is False"),
        ({"header": "soon"}, "x-mainspring-slo-ms is 'soon'"),
        ({"header": ""}, "number of milliseconds"),
        ({"header": "9" * 400}, "..."),
    ],
)
def test_what_is_no_duration_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Unfit) as caught:
        slo_ns(**given)
    assert caught.value.reason is Reason.BAD_SLO
    assert said in caught.value.detail


def test_a_models_default_goes_before_the_servers() -> None:
    config = GatewayConfig(default_slo_ms=100.0, model_slo_ms={"a": 20.0, "b": 30.0})
    assert default_slo_ns(config, ServedModel("other", {})) == 100 * MS
    assert default_slo_ns(config, ServedModel("a", {})) == 20 * MS
    assert default_slo_ns(config, ServedModel("b", {}, slo_ns=5)) == 5
    by_priority = ServedModel(
        "b", {}, slo_ns=5, priority_levels=3, default_priority=2, priority_slos_ns={1: 3, 2: 4, 3: 0}
    )
    found = [default_slo_ns(config, by_priority, priority) for priority in (0, 1, 2, 3, 9)]
    assert found == [4, 3, 4, 30 * MS, 4], "0 is the server's default, as without a time-out"
    fewer = msgspec.structs.replace(by_priority, priority_slos_ns={1: 3})
    assert [default_slo_ns(config, fewer, priority) for priority in (1, 2)] == [3, 5]
    assert default_slo_ns(GatewayConfig(), ServedModel("a", {})) is None
    assert default_slo_ns(GatewayConfig(max_slo_ms=10), ServedModel("a", {}, slo_ns=20 * MS)) == 10 * MS
    with pytest.raises(ValueError, match=r"model_slo_ms is 0\.0 for 'a'"):
        GatewayConfig(model_slo_ms={"a": 0.0})


def test_every_reason_has_a_status_and_a_code() -> None:
    assert STATUSES.keys() == set(Reason)
    assert (http_status(Reason.UNKNOWN_MODEL), grpc_code(Reason.UNKNOWN_MODEL)) == (404, "NOT_FOUND")
    for reason in (Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.TIMED_OUT):
        assert (http_status(reason), grpc_code(reason)) == (503, "DEADLINE_EXCEEDED")


def test_an_error_says_its_code_and_when_an_answer_was_possible() -> None:
    assert "come again in 0.1 s" in error_body(Reason.OVERLOADED, "2 requests wait", 1).error
    body = msgspec.to_builtins(error_body(Reason.DEADLINE_UNREACHABLE, "too soon", 12_345_678))
    assert body["reason"] == "deadline_unreachable"
    assert body["earliest_finish_ms"] == 12.346
    assert "deadline_unreachable: too soon; the earliest finish" in body["error"]
    assert "12.3 ms" in body["error"]
    assert msgspec.to_builtins(error_body(Reason.BAD_INPUT, "no")) == {
        "error": "bad_input: no",
        "reason": "bad_input",
    }
