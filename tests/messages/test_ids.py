"""The ids of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.ids import epoch_of, first_action_id, gateway_of, request_id

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


@given(st.integers(0, (1 << 22) - 1), st.integers(1, (1 << 40) - 1))
def test_an_action_id_holds_its_epoch(epoch: int, counter: int) -> None:
    action_id = first_action_id(epoch) + counter
    assert epoch_of(action_id) == epoch
    assert action_id < 1 << 63
