"""What the parameters of sequences say, over HTTP and gRPC alike."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.parameters import NOWHERE, Place, place_of
from tests.gateway.core.stateful import adding
from tests.gateway.fakes import make_spec


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ((None, None, None), NOWHERE),
        ((5, True, None), Place(5, True)),
        (("call", False, True), Place("call", False, True)),
        (((1 << 64) - 1, None, True), Place((1 << 64) - 1, False, True)),
    ],
)
def test_places(given: tuple[Any, Any, Any], place: Place) -> None:
    assert place_of(adding(), *given) == place
    assert place_of(make_spec("m"), *given) == NOWHERE


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((1.5, None, None), "sequence_id is 1.5; it is a number or a text"),
        ((True, None, None), "sequence_id is True"),
        ((-1, None, None), "sequence_id is -1; a number is from 1"),
        ((1 << 64, None, None), "a number is from 1"),
        ((1, "yes", None), "sequence_start is 'yes'; it is true or false"),
        ((1, None, 1), "sequence_end is 1; it is true or false"),
    ],
)
def test_what_a_place_can_not_be(given: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(Unfit, match=says):
        place_of(adding(), *given)
