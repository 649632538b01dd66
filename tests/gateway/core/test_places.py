"""The places of a request in the gateway: a table, checked where a place is entered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainspring.gateway.core.effects import Accepted, Connection, Dispatched
from mainspring.gateway.core.requests import TRANSITIONS, Pending, Place
from mainspring.gateway.core.validation import Signature
from tests.cluster.test_placements import documented
from tests.gateway.fakes import make_spec

ACCEPTED = Accepted("m", 2, None, (0,), (0,), Signature(make_spec("m")))
METHODS: dict[Place, list[Callable[[Pending], None]]] = {
    Place.WAITING: [Pending.lead, Pending.recall],
    Place.FOLLOWING: [Pending.follow],
    Place.SUBMITTED: [lambda request: request.submit(7)],
    Place.DISPATCHED: [lambda request: request.dispatch(Dispatched(1, "w0", 1, False, 5))],
    Place.ENDED: [Pending.end],
}
"""The methods that enter each place."""
ALLOWED: dict[Callable[[Pending], None], list[Place]] = {
    Pending.lead: [Place.FOLLOWING],
    Pending.recall: [Place.SUBMITTED, Place.DISPATCHED],
}
"""Where those come from that share the place they enter."""


@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("entered", Place)
def test_a_request_enters_only_a_place_that_may_follow_its_own(place: Place, entered: Place) -> None:
    for enter in METHODS[entered]:
        request = Pending(3, Connection("zeromq", b"c"), 9, ACCEPTED, (), 0, None, None, 100)
        request.place = place
        if place in ALLOWED.get(enter, [each for each in Place if entered in TRANSITIONS[each]]):
            enter(request)
            assert request.place is entered
        else:
            with pytest.raises(AssertionError, match=r"request 3 \(key 9"):
                enter(request)
            assert request.place is place


def test_the_methods_enter_each_place_from_wherever_the_table_says() -> None:
    submitted = [each for each in Place if Place.WAITING in TRANSITIONS[each]]
    assert sorted([*ALLOWED[Pending.lead], *ALLOWED[Pending.recall]], key=str) == sorted(submitted, key=str)


def test_the_documentation_has_the_table_of_places() -> None:
    told = documented("Places of a request in the gateway")
    assert told == {place.value: tuple(each.value for each in TRANSITIONS[place]) for place in TRANSITIONS}
