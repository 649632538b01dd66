"""The order of evictions is that of a sort, however many are taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.mainspring.victims import least_first
from tests.scheduler.hand import spec


def placements(count: int) -> list[Placement]:
    cluster, worker = Cluster(), Worker("w0", 1, "gpu", 64)
    return [cluster.place(Model(spec(f"m{number}"), number), worker) for number in range(1, count + 1)]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.25]), max_size=20), st.randoms(use_true_random=False))
def test_they_come_by_their_losses_and_equal_ones_by_their_models_numbers(losses: list[float], rng) -> None:  # type: ignore[no-untyped-def]
    pairs = list(zip(losses, placements(len(losses)), strict=True))
    rng.shuffle(pairs)
    expected = [each for _, each in sorted(pairs, key=lambda pair: (pair[0], pair[1].model.number))]
    found = least_first([loss for loss, _ in pairs], [placement for _, placement in pairs])
    assert list(found) == expected
