"""Triton's dynamic batching: what is said of it, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mainspring.messages.actions import Command, Infer, Load, Unload
from mainspring.messages.codes import Reason
from mainspring.messages.events import Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from tests.scheduler.hand import MS, Hand, reasons, spec

FOR_EVER = {"timeout_share": 0.0}


def hand(*models: str, **options: Any) -> Hand:
    """Return a scheduler whose only worker holds these models; "slow" takes ten times as long as others."""
    specs = [spec(name, single_ms=40 if name == "slow" else 4) for name in models]
    made = Hand(*specs, policy="fifo", policy_options=options)  # type: ignore[arg-type]
    for index, name in enumerate(models):
        made.warm(name, 20 * index)
    return made


def infers(commands: list[Command]) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return each INFER's model, size and requests."""
    return [(c.model, c.batch_size, c.request_ids) for c in commands if isinstance(c, Infer)]


def test_a_batch_is_held_until_it_is_full() -> None:
    made = hand("a", max_queue_delay_ms=5.0)
    for id_ in (1, 2, 3):
        assert made.request(100, id_, "a", 50) == []
    assert infers(made.request(101, 4, "a", 50)) == [("a", 4, (1, 2, 3, 4))]


def test_a_batch_that_is_not_full_is_held_until_its_oldest_request_has_waited_for_the_delay() -> None:
    made = hand("a", max_queue_delay_ms=5.0)
    made.request(100, 1, "a", 50)
    made.request(103, 2, "a", 50)
    made.request(104, 3, "a", 50)
    assert made.scheduler.next_wakeup_ns() == 105 * MS
    assert infers(made.feed(105, Wakeup())) == [("a", 4, (1, 2, 3))], "three rows are padded to four"


def test_a_preferred_size_goes_at_once_and_the_rest_waits() -> None:
    made = hand("a", max_queue_delay_ms=5.0, preferred_batch_sizes="2")
    assert made.request(100, 1, "a", 50) == []
    assert infers(made.request(101, 2, "a", 50)) == [("a", 2, (1, 2))]
    assert made.request(102, 3, "a", 50) == []


def test_no_batch_is_larger_than_it_may_be() -> None:
    made = hand("a", max_batch_size=2, max_queue_delay_ms=5.0)
    assert made.request(100, 1, "a", 50) == []
    (infer,) = made.request(100, 2, "a", 50)
    assert infers([infer]) == [("a", 2, (1, 2))]


def test_models_take_turns_in_the_order_in_which_their_batches_became_ready() -> None:
    made = hand("a", "b", "c")
    (first,) = made.request(100, 1, "c", 100)
    made.request(101, 2, "b", 100)
    made.request(102, 3, "a", 30)
    made.request(103, 4, "b", 100)
    (second,) = made.ok(104.5, first)
    assert infers([second]) == [("b", 2, (2, 4))], "no deadline is looked at"
    assert infers(made.ok(110.5, second)) == [("a", 1, (3,))]


def test_what_is_late_is_run_all_the_same() -> None:
    made = hand("a", **FOR_EVER)
    (first,) = made.request(100, 1, "a", 100)
    assert reasons(made.request(100, 2, "a", 3)) == [], "no plan could meet it, and it is not refused"
    (second,) = made.ok(130, first)
    assert infers([second]) == [("a", 1, (2,))]


def test_a_request_that_waited_for_too_long_is_rejected() -> None:
    made = hand("slow", queue_timeout_ms=20.0, timeout_share=0.0)
    (first,) = made.request(100, 1, "slow", 1000)
    made.request(101, 2, "slow", 1000)
    assert reasons(made.feed(120.9, Wakeup())) == []
    assert reasons(made.feed(121.1, Wakeup())) == [Reason.DEADLINE_PASSED]
    assert made.ok(140, first) == []


def test_the_shorter_of_two_timeouts_counts() -> None:
    made = hand("slow", "a", queue_timeout_ms=30.0, timeout_share=0.5)
    made.request(100, 1, "slow", 1000)
    made.request(101, 2, "a", 41)
    made.request(101, 3, "a", 1000)
    assert reasons(made.feed(115.9, Wakeup())) == []
    commands = made.feed(116.1, Wakeup())
    assert reasons(commands) == [Reason.DEADLINE_PASSED], "half of 40 ms less the 10 that a batch of 4 takes"
    assert reasons(made.feed(130.9, Wakeup())) == []
    assert reasons(made.feed(131.1, Wakeup())) == [Reason.DEADLINE_PASSED]


@pytest.mark.parametrize(("slo_ms", "waits_ms"), [(41, 30), (10.5, 3.5), (6.5, 1.5), (4, 0)])
def test_a_request_may_wait_until_the_largest_batch_that_fits_its_time_must_begin(
    slo_ms: float, waits_ms: float
) -> None:
    """Less the margin of 1 ms, and batches of 4, 2 and 1 take 10, 6 and 4 ms."""
    made = hand("slow", "a")
    made.request(100, 1, "slow", 1000)
    assert reasons(made.request(101, 2, "a", slo_ms)) == []
    assert reasons(made.feed(101 + waits_ms, Wakeup())) == []
    assert reasons(made.feed(101.1 + waits_ms, Wakeup())) == [Reason.DEADLINE_PASSED]


def simulated(requests: Sequence[tuple[float, str]], pages: int = 8, **options: Any) -> list[Command]:
    """Return the commands for requests with ample time, on one worker that holds what fits of a, b, c."""
    models = [spec(name, single_ms=10, load_ms=3) for name in "abc"]
    config = SchedulerConfig(policy="fifo", policy_options=options)
    held = {"w0": Preloaded(models, models[:pages])}
    simulation = Simulation(config, models, [("w0", "gpu", pages)], preloaded=held)
    for id_, (when_ms, model) in enumerate(requests, start=1):
        simulation.request(round(when_ms * MS), id_, model, slo_ns=1000 * MS)
    simulation.run(1000 * MS)
    return [command for _, command in simulation.commands]


def test_a_request_that_waited_for_too_long_may_be_put_behind_all_others() -> None:
    options: dict[str, Any] = {"queue_timeout_ms": 14.0, "timeout_share": 0.0, "max_batch_size": 1}
    requests = [(100, "a"), (101, "a"), (102, "a"), (103, "a"), (119, "b"), (124, "a")]
    for action, order in (("reject", [1, 2, 5, 6]), ("delay", [1, 2, 5, 6, 3, 4])):
        commands = simulated(requests, timeout_action=action, **options)
        assert [ids[0] for _, _, ids in infers(commands)] == order


def test_models_are_loaded_in_the_order_of_arrival_over_the_least_recently_used() -> None:
    commands = simulated([(100, "b"), (120, "a"), (140, "c"), (141, "b")], pages=2)
    moved = [(type(c).__name__, c.model) for c in commands if isinstance(c, Load | Unload)]
    assert moved == [("Unload", "b"), ("Load", "c"), ("Unload", "a"), ("Load", "b")]
    assert [model for model, _, _ in infers(commands)] == ["b", "a", "c", "b"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_queue_delay_ms": -1.0}, "max_queue_delay_ms is -1.0; it must be at least 0"),
        ({"preferred_batch_sizes": "4;8"}, "must be whole numbers greater than 0 with commas"),
        ({"preferred_batch_sizes": "0"}, "must be whole numbers greater than 0 with commas"),
        ({"timeout_action": "drop"}, "timeout_action"),
        ({"max_queue_delay": 1.0}, "did you mean 'max_queue_delay_ms'"),
    ],
)
def test_options_that_can_not_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Scheduler(SchedulerConfig(policy="fifo", policy_options=options))
