"""A build's progress in words."""

from __future__ import annotations

import pytest

from mainspring.repository.builds import Build, Stage
from mainspring.repository.recipe import Recipe


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (1, "behind 1 other"),
        (99, "behind 99 others"),
        (120, "behind 120 others"),
        (129, "behind at least 120 others"),
        (1_729, "behind at least 1,700 others"),
    ],
)
def test_the_number_ahead_is_round_where_many_wait(ahead: int, said: str) -> None:
    build = Build("m", "m", 1, "", Recipe(None), "model.onnx", Stage.QUEUED, ahead=ahead)
    assert build.progress == f"it waits to be compiled, {said}"
