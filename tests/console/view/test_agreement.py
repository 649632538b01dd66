"""The view of a stream and the scheduler that it came out of say the same, at any moment."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mainspring.console.view.view import View
from tests.console.view.streams import EVERYTHING, Watched, check, counted, feed, never_removed, tallied


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["mainspring", "clockwork", "fifo", "edf"]),
    step_ms=st.floats(0.3, 60),
)
def test_the_view_holds_what_the_scheduler_holds(seed: int, policy: str, step_ms: float) -> None:
    watched, view = Watched(seed, policy), View(EVERYTHING)
    state = watched.scheduler._state
    now_ms = 0.0
    while now_ms < 1_300:
        now_ms += step_ms
        feed(view, watched.run_ms(now_ms))
        check(view, state)
    feed(view, watched.everything())
    check(view, state)
    for name in never_removed(state):
        assert counted(view, name) == tallied(state, name), name
