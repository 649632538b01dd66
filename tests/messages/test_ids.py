"""The ids of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.ids import gateway_of, request_id

COUNTERS = st.integers(0, 2**40 - 1)
NUMBERS = st.integers(0, 2**23)


@given(NUMBERS, COUNTERS, NUMBERS, COUNTERS)
def test_an_id_names_its_gateway_and_no_two_requests_share_one(
    gateway: int, counter: int, other: int, its_counter: int
) -> None:
    made = request_id(gateway, counter)
    assert gateway_of(made) == gateway
    assert (made == request_id(other, its_counter)) == ((gateway, counter) == (other, its_counter))


@pytest.mark.parametrize(("gateway", "counter", "made"), [(0, 7, 7), (1, 0, 2**40), (5, 3, 5 * 2**40 + 3)])
def test_ids_of_recorded_logs_keep_their_meaning(gateway: int, counter: int, made: int) -> None:
    assert request_id(gateway, counter) == made
    assert gateway_of(made) == gateway
