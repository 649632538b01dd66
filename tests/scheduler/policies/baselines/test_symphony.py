"""Deferred batches: when they go, which goes first, and to whom."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Infer
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.baselines.symphony import SWEPT_FROM, Symphony
from tests.scheduler.hand import spec
from tests.scheduler.policies.warm import Warm

AHEAD_MS = 0.6
"""Dispatch takes 0.5 ms, and the guard is 0.1 ms. Batches of 1, 2 and 4 take 4, 6 and 10 ms."""


def warm(models: int = 1, workers: int = 1, **config: object) -> Warm:
    given = SchedulerConfig(policy="symphony", response_margin_ms=0.0, **config)  # type: ignore[arg-type]
    return Warm(given, [spec(f"m{index}") for index in range(models)], workers)


def told(sent: list[tuple[float, Infer]]) -> list[tuple[float, str, str, int]]:
    return [(round(at_ms, 3), infer.worker, infer.model, len(infer.request_ids)) for at_ms, infer in sent]


def test_a_batch_goes_when_it_can_grow_no_more() -> None:
    """A second request would be in time until 6 ms before the deadline."""
    bench = warm()
    assert bench.ask(0, "m0", 50) == []
    assert told(bench.until(60)) == [(50 - 6 - AHEAD_MS, "w0", "m0", 1)]


def test_company_opens_the_window_earlier() -> None:
    """With two waiting a batch of 4 is the next larger one; a full one goes at once."""
    bench = warm()
    assert bench.ask(0, "m0", 50, count=2) == []
    assert told(bench.until(45)) == [(50 - 10 - AHEAD_MS, "w0", "m0", 2)]
    bench = warm()
    assert told(bench.ask(0, "m0", 50, count=4)) == [(0, "w0", "m0", 4)]


@pytest.mark.parametrize(("pads", "expected"), [(True, 3), (False, 2)])
def test_three_are_padded_to_four_if_that_is_asked_for(pads: bool, expected: int) -> None:
    """A batch of 4 takes as long as one of 2 and one of 1, so that padding must not be worse than that."""
    model = spec("m0")
    profile = model.profiles["gpu"]
    profile.infer_ns[4] -= 1
    config = SchedulerConfig(policy="symphony", response_margin_ms=0.0, pad_batches=pads)
    bench = Warm(config, [model])
    assert bench.ask(0, "m0", 50, count=3) == []
    (at_ms, infer), *_ = bench.until(60)
    assert at_ms == pytest.approx(50 - 10 - AHEAD_MS, abs=0.01)
    assert len(infer.request_ids) == expected


def test_of_two_open_windows_the_one_that_closes_first_goes_first() -> None:
    bench = warm(3)
    ((_, running),) = bench.ask(0, "m0", 60, count=4)
    assert bench.ask(0, "m1", 16) == []
    assert bench.ask(0, "m2", 15) == []
    (_, first), *_ = bench.until(10.5) + bench.end(10.5, running)
    assert first.model == "m2"


def test_the_lowest_of_the_idle_workers_does_it() -> None:
    bench = warm(2, workers=3)
    assert bench.ask(0, "m0", 50) == []
    assert bench.ask(0.1, "m1", 50) == []
    assert [worker for _, worker, *_ in told(bench.until(60))] == ["w0", "w1"]


def test_what_is_late_is_passed_over() -> None:
    """The first request could be in time only alone: the four behind it go as one batch."""
    bench = warm(2)
    ((_, running),) = bench.ask(0, "m1", 60, count=4)
    assert bench.ask(0.2, "m0", 17) == []
    assert bench.ask(0.3, "m0", 50, count=4) == []
    sent = bench.until(10.5) + bench.end(10.5, running)
    assert [infer.request_ids for _, infer in sent] == [(6, 7, 8, 9)]


def test_what_is_kept_of_windows_is_bounded_by_the_models_that_wait() -> None:
    """Deadlines are minutes away: without sweeping, each batch would leave entries until then."""
    bench = warm(1)
    policy = bench.scheduler._policy
    assert isinstance(policy, Symphony)
    for number in range(700):
        sent = bench.ask(20 * number, "m0", 600_000, count=4)
        assert len(sent) == 1
        bench.end(20 * number + 11, sent[0][1])
    assert len(policy._opening) <= SWEPT_FROM + 1
    assert not policy._deferrals


def test_the_timer_rings_about_once_a_batch() -> None:
    """Windows that move set new alarms; what an older one was for is not done twice."""
    bench = warm(30)
    for index in range(30):
        for step in range(3):
            bench.ask(index * 0.1 + step * 0.01, f"m{index}", 200)
    rings = 0
    while (wakeup_ns := bench.scheduler.next_wakeup_ns()) is not None and wakeup_ns < 185_000_000:
        bench.scheduler.schedule(wakeup_ns)
        rings += 1
    assert rings < 100
