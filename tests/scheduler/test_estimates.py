import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.estimates import STALE_NS, Estimates, InferTimes


def spec(profiles: dict[str, Profile], name: str = "m", weights_bytes: int = 1000) -> ModelSpec:
    return ModelSpec(name, name, "graph", (1, 2, 4), weights_bytes, (1,), (), (), profiles)


PROFILE = Profile({1: 10, 2: 16, 4: 30}, 500)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_an_estimate_is_the_maximum_of_the_last_ten(durations: list[int]) -> None:
    times = InferTimes((1,), [77])
    for duration_ns in durations:
        times.add(0, 0, duration_ns)
    assert times.ns[0] == max(([77, *durations])[-10:])


@given(st.lists(st.integers(1, 1000), min_size=10, max_size=20))
def test_a_stale_estimate_that_turns_requests_away_falls_back_to_the_median(durations: list[int]) -> None:
    times = InferTimes((1,), [77])
    for duration_ns in durations:
        times.add(5, 0, duration_ns)
    times.doubt(5 + STALE_NS - 1)
    assert times.ns[0] == max(durations[-10:])
    times.doubt(5 + STALE_NS)
    median = sorted(durations[-10:])[4]
    assert times.ns[0] == median
    times.add(5 + STALE_NS, 0, 1)
    assert times.ns[0] == median, "what was forgotten stays forgotten"
    times.add(5 + STALE_NS, 0, 2000)
    assert times.ns[0] == 2000


def test_copies_of_an_executable_share_their_estimates() -> None:
    estimates = Estimates()
    first = estimates.infer_times("gpu", spec({"gpu": PROFILE}, "a"))
    second = estimates.infer_times("gpu", spec({"gpu": PROFILE}, "b"))
    first.add(0, 1, 99)
    assert second.ns == [10, 99, 30]
    assert estimates.infer_times("cpu", spec({"cpu": PROFILE})).ns == [10, 16, 30]


def test_an_unprofiled_size_is_seeded_from_the_nearest() -> None:
    times = Estimates().infer_times("gpu", spec({"gpu": Profile({1: 10, 2: 16}, 500)}))
    assert times.ns == [10, 16, 32]


def test_an_unprofiled_kind_takes_the_slowest_profile_there_is() -> None:
    slow = Profile({1: 100, 2: 160, 4: 300}, 500)
    assert Estimates().infer_times("new", spec({"gpu": PROFILE, "cpu": slow})).ns == [100, 160, 300]


def test_loads_are_estimated_from_bytes() -> None:
    estimates = Estimates()
    estimates.load_time("gpu", spec({"gpu": PROFILE})).add(0, 800)
    estimates.loaded("gpu", spec({"gpu": PROFILE}), 800)
    assert estimates.load_time("gpu", spec({"gpu": PROFILE}, "other")).ns == 800
    assert estimates.load_time("gpu", spec({}, "big", weights_bytes=2000)).ns == 1600


def test_estimates_go_with_the_last_model_that_shares_them() -> None:
    estimates = Estimates()
    first, second = spec({"gpu": PROFILE}, "a"), spec({"gpu": PROFILE}, "b", weights_bytes=2000)
    for model in (first, second):
        estimates.hold(model)
    estimates.infer_times("gpu", first).add(0, 1, 99)
    estimates.load_time("gpu", first).add(0, 888)
    estimates.release(first)
    assert estimates.infer_times("gpu", second).ns == [10, 99, 30], "b has the same executable"
    assert estimates.load_time("gpu", first).ns == 500, "nothing else has weights of that size"
    estimates.release(second)
    assert estimates.infer_times("gpu", first).ns == [10, 16, 30]


def test_rows_need_the_smallest_batch_that_holds_them() -> None:
    times = InferTimes((2, 4), [10, 20])
    assert [times.for_rows(rows) for rows in (1, 2, 3, 4)] == [10, 10, 20, 20]
    with pytest.raises(ValueError, match="5 rows do not fit"):
        times.for_rows(5)
