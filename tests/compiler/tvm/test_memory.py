"""Places in the workspace: nothing that lives at the same time overlaps, and little is wasted."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.plan import WORKSPACE_ALIGNMENT_BYTES
from mainspring.compiler.tvm.assembly import Lifetime, place

LIFETIMES = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=40,
)


def aligned(size_bytes: int) -> int:
    return max(1, -(-size_bytes // WORKSPACE_ALIGNMENT_BYTES)) * WORKSPACE_ALIGNMENT_BYTES


@given(LIFETIMES)
def test_what_lives_together_never_overlaps(lifetimes: list[Lifetime]) -> None:
    offsets, total_bytes = place(lifetimes)
    spans = [
        (offset, offset + aligned(life.size_bytes)) for offset, life in zip(offsets, lifetimes, strict=True)
    ]
    assert total_bytes == max((end for _, end in spans), default=0)
    for one, (begin, end) in enumerate(spans):
        assert begin % WORKSPACE_ALIGNMENT_BYTES == 0
        for other in range(one):
            together = max(lifetimes[one].first, lifetimes[other].first) <= min(
                lifetimes[one].last, lifetimes[other].last
            )
            assert not together or max(begin, spans[other][0]) >= min(end, spans[other][1])


def test_a_chain_takes_no_more_than_its_two_largest_neighbours() -> None:
    sizes = [1024, 4096, 2048, 512, 8192, 256]
    lifetimes = [Lifetime(size, step, step + 1) for step, size in enumerate(sizes)]
    assert place(lifetimes)[1] == max(a + b for a, b in pairwise(sizes))


def test_a_result_that_is_read_late_keeps_its_place() -> None:
    lifetimes = [Lifetime(256, 0, 4), Lifetime(256, 1, 2), Lifetime(256, 3, 4)]
    offsets, total_bytes = place(lifetimes)
    assert offsets[1] == offsets[2] != offsets[0]
    assert total_bytes == 512


def test_the_same_lifetimes_have_the_same_places() -> None:
    lifetimes = [Lifetime(300 * (index % 5), index, index + index % 3) for index in range(30)]
    assert place(lifetimes) == place(list(lifetimes))
