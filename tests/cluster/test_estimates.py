import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.device_kinds import Estimates
from mainspring.cluster.estimates import InferTimes, Raised
from mainspring.cluster.models import Model
from mainspring.cluster.rolling import SOONEST_NS, STALE_NS, Rolling
from mainspring.messages.model import ModelSpec, Profile

MS = 1_000_000


def spec(profiles: dict[str, Profile], name: str = "m", weights_bytes: int = 1000) -> ModelSpec:
    return ModelSpec(name, name, "graph", (1, 2, 4), weights_bytes, (1,), (), (), profiles)


PROFILE = Profile({1: 10, 2: 16, 4: 30}, 500)


@given(st.lists(st.integers(1000, 1100), min_size=1, max_size=40))
def test_of_even_durations_an_estimate_is_the_maximum_of_the_last_ten(durations: list[int]) -> None:
    times = InferTimes((1,), [1077])
    for duration_ns in durations:
        times.add(0, 0, duration_ns)
    assert times.ns[0] == max(([1077, *durations])[-10:])


@given(st.lists(st.integers(1, 1000), min_size=9, max_size=40), st.integers(1, 5))
def test_where_durations_spread_it_is_the_so_many_largest(durations: list[int], rank: int) -> None:
    times = InferTimes((1,), [77], rank)
    for duration_ns in durations:
        times.add(0, 0, duration_ns)
    last = sorted(([77, *durations])[-10:])
    upper, most = last[-rank], last[-1]
    assert times.ns[0] == (most if 10 * most <= 11 * upper else upper)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_of_few_it_is_no_less_than_their_median(durations: list[int]) -> None:
    times = InferTimes((1,), [77])
    for duration_ns in durations:
        times.add(0, 0, duration_ns)
    assert times.ns[0] >= statistics.median([77, *durations])
    if len(durations) == 1:
        assert times.ns[0] == max(77, *durations), "which of two is the exception is not known"


def test_an_outlier_or_two_among_ten_turn_nobody_away() -> None:
    rolling = measured(*[10] * 9)
    assert rolling.add(500 * MS, 500 * MS) == 10 * MS
    assert rolling.add(900 * MS, 400 * MS) == 10 * MS
    assert rolling.add(1_400 * MS, 450 * MS) == 400 * MS, "a third says that the device is slow now"


def test_an_input_s_way_is_as_long_as_its_longest() -> None:
    times = InferTimes((1,), [MS])
    for transfer_ns in (MS, MS, 3 * MS, MS, MS):
        times.add_transfer(0, 0, transfer_ns)
    assert times.transfer_ns == [3 * MS]


@given(st.lists(st.integers(1000, 2000), min_size=10, max_size=20))
def test_a_stale_estimate_that_turns_requests_away_falls_back_to_the_median(durations: list[int]) -> None:
    times = InferTimes((1,), [1077])
    for duration_ns in durations:
        times.add(5, 0, duration_ns)
    [before] = times.ns
    times.doubt(5 + STALE_NS - 1)
    assert times.ns == [before], "within twice the median nothing is an outlier"
    times.doubt(5 + STALE_NS)
    last = sorted(durations[-10:])
    [doubted] = times.ns
    assert doubted == last[4] if last[4] < before else last[0] <= doubted <= before
    times.add(5 + STALE_NS, 0, doubted)
    if doubted < before:
        assert times.ns[0] <= doubted, "what was forgotten stays forgotten"


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_a_device_that_became_slower_in_a_quiet_second_is_tried_in_vain_once(rank: int) -> None:
    times = InferTimes((1,), [11 * MS], rank)
    for duration_ms in (6, 6, 6, 6, 6, 11, 11, 11, 11, 11):
        times.add(0, 0, duration_ms * MS)
    assert times.ns == [11 * MS] or rank > 4
    times.doubt(2 * STALE_NS)
    assert times.ns == [6 * MS]
    times.add(2 * STALE_NS, 0, 11 * MS)
    assert times.ns == [11 * MS], "one execution says that the doubt was wrong"


def test_no_estimate_is_below_the_median_of_what_it_forgot() -> None:
    for rank in (1, 3, 5):
        times = InferTimes((1,), [10 * MS], rank)
        for duration_ms in range(11, 20):
            times.add(0, 0, duration_ms * MS)
        times.doubt(2 * STALE_NS)
        assert times.ns == [14 * MS]


def test_after_a_doubt_that_proved_wrong_an_outlier_is_none_the_more_believed() -> None:
    rolling = Rolling(5 * MS)
    for duration_ms in (5, 5, 5, 12, 12, 12):
        rolling.add(0, duration_ms * MS)
    rolling.doubt(STALE_NS)
    for _ in range(10):
        rolling.add(STALE_NS, 12 * MS)
    assert rolling.add(STALE_NS, 60 * MS) == 12 * MS


def measured(*durations_ms: int) -> Rolling:
    """Samples that were measured one after the other, the last at the instant 0, and nothing but them."""
    rolling = Rolling(durations_ms[0] * MS)
    now_ms = -sum(durations_ms[1:])
    for duration_ms in durations_ms[1:]:
        now_ms += duration_ms
        rolling.add(now_ms * MS, duration_ms * MS)
    return rolling


@pytest.mark.parametrize(("outlier_ms", "wait_ns"), [(3, SOONEST_NS), (50, 50 * MS), (3000, STALE_NS)])
def test_an_outlier_is_doubted_after_as_long_as_it_took(outlier_ms: int, wait_ns: int) -> None:
    rolling = measured(1, 1, 1, outlier_ms, outlier_ms, outlier_ms)
    assert rolling.doubt(wait_ns - 1) == outlier_ms * MS
    assert rolling.doubt(wait_ns) == MS


def test_a_device_that_has_become_slow_is_tried_in_vain_ever_more_rarely() -> None:
    rolling = measured(*[1] * 7, *[50] * 3)
    now_ns, waits_ms = 0, []
    for _ in range(8):
        tried_ns = now_ns
        while rolling.doubt(tried_ns) == 50 * MS:
            tried_ns += MS
        waits_ms.append((tried_ns - now_ns) // MS)
        now_ns = tried_ns + 50 * MS
        rolling.add(now_ns, 50 * MS)
    assert waits_ms == [50, 100, 200, 400, 800, 1000, 1000, 1000]
    rolling.doubt(now_ns + STALE_NS)
    rolling.add(now_ns + STALE_NS, MS)
    rolling.add(now_ns + STALE_NS, 50 * MS)
    assert rolling.doubt(now_ns + STALE_NS + 50 * MS) == MS, "borne out: the next outlier is a lone one"


def test_without_a_measurement_between_a_second_doubt_takes_a_second() -> None:
    rolling = measured(4, 4, 5, 5, 5, 6, 7, 50, 50, 50)
    doubted_ns = 50 * MS
    for now_ns in range(doubted_ns, doubted_ns + STALE_NS, MS):
        assert rolling.doubt(now_ns) == 5 * MS
    assert rolling.doubt(doubted_ns + STALE_NS) == 4 * MS


def test_where_outliers_are_the_most_patience_still_gets_to_the_others() -> None:
    rolling = measured(1, 2, *[50] * 8)
    assert rolling.doubt(STALE_NS - 1) == 50 * MS, "the median is not an outlier"
    assert rolling.doubt(STALE_NS) == 2 * MS


def test_what_always_took_as_long_is_believed() -> None:
    rolling = measured(*[50] * 10)
    assert [rolling.doubt(second * STALE_NS) for second in range(20)] == [50 * MS] * 20


def test_what_two_workers_were_waited_for_in_vain_is_tried_again() -> None:
    times = InferTimes((1,), [MS])
    for now_ms, waited_ms in ((-7_000, 3_000), (-3_400, 3_400), (0, 3_400), (0, 3_400)):
        times.give_up(now_ms * MS, 0, waited_ms * MS)
    assert times.ns == [3_400 * MS]
    for second in range(1, 4):
        times.doubt(second * STALE_NS)
    assert times.ns == [MS], "nothing was measured that says it takes as long"


def test_shorter_measurements_do_not_put_off_the_doubt_of_an_outlier() -> None:
    rolling = measured(1, 1, 50, 50, 50)
    for at_ms in (20, 40):
        rolling.add(at_ms * MS, MS)
    assert rolling.doubt(50 * MS - 1) == 50 * MS
    assert rolling.doubt(50 * MS) == MS


def test_as_long_a_measurement_puts_it_off() -> None:
    rolling = measured(1, 1, 1, 1, 50, 50, 50)
    rolling.add(40 * MS, 30 * MS)
    assert rolling.doubt(90 * MS - 1) == 50 * MS
    assert rolling.doubt(90 * MS) == MS


def test_of_two_samples_none_is_an_outlier() -> None:
    rolling = Rolling(MS)
    rolling.add(0, 50 * MS)
    assert rolling.doubt(STALE_NS - 1) == 50 * MS
    assert rolling.doubt(STALE_NS) == MS


def test_a_transfer_is_an_outlier_beside_those_that_took_nothing() -> None:
    times = InferTimes((1,), [MS])
    for _ in range(5):
        times.add_transfer(0, 0, 0)
        times.add(0, 0, MS)
    times.add_transfer(0, 0, 20 * MS)
    assert times.transfer_ns == [20 * MS]
    times.doubt(20 * MS)
    assert times.transfer_ns == [0]


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
    estimates.loaded("gpu", spec({"gpu": PROFILE}).weights_bytes, 800)
    assert estimates.load_time("gpu", spec({"gpu": PROFILE}, "other")).ns == 800
    assert estimates.load_time("gpu", spec({}, "big", weights_bytes=2000)).ns == 1600


def test_estimates_go_with_the_last_model_that_shares_them() -> None:
    estimates = Estimates()
    first, second = spec({"gpu": PROFILE}, "a"), spec({"gpu": PROFILE}, "b", weights_bytes=2000)
    models = [Model(first, 1), Model(second, 2)]
    for model in models:
        estimates.hold(model)
    estimates.infer_times("gpu", first).add(0, 1, 99)
    estimates.load_time("gpu", first).add(0, 888)
    estimates.release(models[0])
    assert estimates.infer_times("gpu", second).ns == [10, 99, 30], "b has the same executable"
    assert estimates.load_time("gpu", first).ns == 500, "nothing else has weights of that size"
    estimates.release(models[1])
    assert estimates.infer_times("gpu", first).ns == [10, 16, 30]


def test_rows_need_the_smallest_batch_that_holds_them() -> None:
    times = InferTimes((2, 4), [10, 20])
    assert [times.for_rows(rows) for rows in (1, 2, 3, 4)] == [10, 10, 20, 20]
    with pytest.raises(ValueError, match="5 rows do not fit"):
        times.for_rows(5)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "give up", "doubt", "restore"]), st.integers(0, 1), st.integers(1, 50)),
    max_size=40,
)


@given(steps)
def test_an_estimate_rises_beyond_its_ceiling_only_where_that_is_counted(
    history: list[tuple[str, int, int]],
) -> None:
    raised = Raised()
    times = InferTimes((1, 2), [10 * MS, 20 * MS], raised=raised)
    former = InferTimes((1, 2), [4 * MS, 90 * MS]).state("gpu", "x")
    seen: dict[int, list[int]] = {0: list(times.ceilings_ns)}
    for now_s, (what, index, ms) in enumerate(history):
        now_ns = 100_000 * now_s * MS
        if what == "add":
            times.add(now_ns, index, ms * MS)
        elif what == "give up":
            times.give_up(now_ns, index, ms * MS)
        elif what == "doubt":
            times.doubt(now_ns)
        else:
            times.restore(former)
        assert all(ns <= ceiling for ns, ceiling in zip(times.ns, times.ceilings_ns, strict=True))
        # What was derived from ceilings at any moment since the count last changed holds yet.
        least = seen.setdefault(raised.count, list(times.ceilings_ns))
        for place, ceiling_ns in enumerate(times.ceilings_ns):
            assert times.ns[place] <= least[place]
            least[place] = min(least[place], ceiling_ns)


def test_estimates_of_a_cluster_count_together_what_rises() -> None:
    estimates = Estimates()
    for kind in ("gpu", "cpu"):
        estimates.infer_times(kind, spec({"gpu": PROFILE})).add(0, 0, 40 * MS)
    assert estimates.raised.count == 2
