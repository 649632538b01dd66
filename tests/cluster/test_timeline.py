from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.timeline import Timeline
from mainspring.messages.actions import Executed, Infer


def infer(action_id: int, begin_ns: int, duration_ns: int, earliest_ns: int = 0) -> Infer:
    return Infer(
        action_id, "w", "m", 1, (action_id,), (1,), (False,), earliest_ns, begin_ns, begin_ns, duration_ns
    )


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40)), min_size=1, max_size=12),
    st.data(),
)
def test_predicted_ends_stay_monotone_whatever_ends_when(
    works: list[tuple[int, int]], data: st.DataObject
) -> None:
    timeline: Timeline[Executed] = Timeline()
    now_ns = 0
    for action_id, (duration_ns, gap_ns) in enumerate(works, start=1):
        begin_ns = timeline.available_ns(now_ns, now_ns + gap_ns)
        timeline.add(infer(action_id, begin_ns, duration_ns, earliest_ns=now_ns))
        timeline.validate("test")
        if data.draw(st.booleans()):
            now_ns += data.draw(st.integers(0, 60))
            outstanding = [action.action_id for action in timeline.actions()]
            ended = data.draw(st.sampled_from(outstanding))
            assert timeline.finish(ended, now_ns) is not None
            timeline.validate("test")
    while timeline:
        now_ns += 1
        timeline.finish(timeline.actions()[0].action_id, now_ns)
    assert timeline.free_ns == now_ns


def test_a_result_re_times_what_is_behind_it() -> None:
    timeline: Timeline[Executed] = Timeline()
    timeline.add(infer(1, 0, 10))
    timeline.add(infer(2, 10, 10))
    timeline.finish(1, 4)
    assert timeline.free_ns == 14
    assert timeline.available_ns(5, 0) == 14


def test_an_overdue_action_pushes_everything_back() -> None:
    timeline: Timeline[Executed] = Timeline()
    timeline.add(infer(1, 0, 10))
    timeline.add(infer(2, 10, 10))
    assert timeline.available_ns(5, 0) == 20
    assert timeline.available_ns(17, 0) == 34, "7 late already, it is expected to take 7 more"


def test_an_action_whose_result_may_be_on_its_way_is_not_overdue() -> None:
    timeline: Timeline[Executed] = Timeline(grace_ns=3)
    timeline.add(infer(1, 0, 10))
    assert timeline.overdue_ns(13) == 0
    assert timeline.available_ns(13, 0) == 13
    assert timeline.overdue_ns(15) == 2
    assert timeline.available_ns(15, 0) == 17


def test_an_unknown_action_changes_nothing() -> None:
    timeline: Timeline[Executed] = Timeline()
    timeline.add(infer(1, 0, 10))
    assert timeline.finish(7, 3) is None
    assert timeline.free_ns == 10
