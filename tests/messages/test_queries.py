"""Into which pieces rows are cut."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.model import ModelSpec, Profile
from mainspring.messages.queries import piece_rows

MODEL = ModelSpec(
    name="m",
    weights_hash="1",
    executable="2",
    batch_sizes=(1, 2, 4, 8),
    weights_bytes=1,
    extents=(1,),
    inputs=(),
    outputs=(),
    profiles={},
)


@pytest.mark.parametrize(
    ("profiles", "rows"),
    [
        ({}, 8),
        ({"cpu": {1: 10, 2: 15, 4: 22, 8: 40}}, 8),
        ({"cpu": {1: 10, 2: 20, 4: 40, 8: 80}}, 8),
        ({"cpu": {1: 37, 2: 76, 4: 170, 8: 459}}, 2),
        ({"cpu": {1: 30, 2: 76, 4: 170, 8: 459}}, 1),
        ({"cpu": {1: 30, 2: 76, 4: 170, 8: 459}, "gpu": {1: 9, 2: 10, 4: 12, 8: 40}}, 4),
    ],
)
def test_pieces_are_the_batches_in_which_a_row_takes_least(
    profiles: dict[str, dict[int, int]], rows: int
) -> None:
    each = {kind: Profile(times, 1) for kind, times in profiles.items()}
    model = msgspec.structs.replace(MODEL, profiles=each)
    assert piece_rows(model) == rows
