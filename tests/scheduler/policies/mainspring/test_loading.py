"""Which model `mainspring` loads, and whom it evicts."""

from __future__ import annotations

from mainspring.cluster.placements import Model
from mainspring.messages.actions import Infer, Load, Unload
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.mainspring.constants import (
    POPULARITY_DECAY_NS,
    RENEWED_AFTER,
    UTILISATION_WINDOW_NS,
)
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.mainspring.popularity import Popularity
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState
from tests.scheduler.hand import MS, Hand, spec


def loads(commands: list[Command]) -> list[str]:
    return [command.model for command in commands if isinstance(command, Load)]


def make_exec_short(hand: Hand, now_ms: float) -> None:
    """As if EXEC had run batches of a row, 4 ms each, without a pause, and about half had been dropped."""
    policy = hand.scheduler._policy
    assert isinstance(policy, Mainspring)
    for worker in hand.scheduler._state.cluster.workers.values():
        policy._utilisation.gave(int(now_ms * MS), worker, 2 * UTILISATION_WINDOW_NS)
    for _ in range(400):
        policy._price.ran(1, 4 * MS)
        policy._fairness.missed(Model(spec("other"), 99))


def test_requests_for_each_millisecond_of_load_decide() -> None:
    """The large model has more unfulfilled work and needs twenty times as long to be loaded."""
    specs = spec("large", pages=4, single_ms=8, load_ms=40), spec("small", load_ms=2)
    hand = Hand(*specs, policy="mainspring")  # type: ignore[arg-type]
    hand.scheduler.handle(0, RequestArrived(1, "large", 1, 100 * MS))
    hand.scheduler.handle(0, RequestArrived(2, "large", 1, 100 * MS))
    hand.scheduler.handle(0, RequestArrived(3, "small", 1, 100 * MS))
    assert loads(hand.scheduler.schedule(0))[0] == "small"


def test_the_least_asked_for_goes_first_and_not_the_least_recently_used() -> None:
    hand = Hand(spec("often"), spec("once"), spec("new"), pages=2, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("often")
    for number in range(5):
        (infer,) = hand.request(20 + 10 * number, 10 + number, "often", 100)
        hand.ok(25 + 10 * number, infer)
    hand.warm("once", 100)
    commands = hand.request(150, 99, "new", 100)
    assert [command.model for command in commands if isinstance(command, Unload)] == ["once"]


def test_who_waits_for_more_than_it_is_worth_goes_before_one_whose_requests_are_quick() -> None:
    specs = spec("running", single_ms=60), spec("long", single_ms=40), spec("quick"), spec("new")
    hand = Hand(*specs, pages=3, policy="mainspring")  # type: ignore[arg-type]
    for number, name in enumerate(("quick", "long", "running")):
        (load,) = hand.request(100 * number, 10 + number, name, 500)
        (infer,) = (each for each in hand.ok(100 * number + 8, load) if isinstance(each, Infer))
        if name != "running":
            hand.ok(100 * number + 8 + infer.predicted_duration_ns / MS, infer)
    make_exec_short(hand, 210)
    assert loads(hand.request(210, 20, "long", 200)) == []
    commands = hand.request(211, 21, "new", 200)
    assert loads(commands) == ["new"]
    assert [command.model for command in commands if isinstance(command, Unload)] == ["long"]


def test_a_model_that_would_displace_more_than_it_serves_is_loaded_once_exec_has_time() -> None:
    hand = Hand(spec("long", single_ms=20), spec("quick"), policy="mainspring")  # type: ignore[arg-type]
    make_exec_short(hand, 0)
    assert loads(hand.request(0, 1, "long", 10_000)) == []
    (load,) = hand.request(1, 2, "quick", 10_000)
    assert isinstance(load, Load)
    assert load.model == "quick"
    (infer,) = (each for each in hand.ok(9, load) if isinstance(each, Infer))
    assert loads(hand.ok(13, infer)) == []
    sent: list[str] = []
    while not sent:
        wakeup_ns = hand.scheduler.next_wakeup_ns()
        assert wakeup_ns is not None
        commands = hand.scheduler.schedule(wakeup_ns)
        assert not [command for command in commands if isinstance(command, Reject)]
        sent = loads(commands)
    assert sent == ["long"]


def test_counts_decay_and_can_be_compared_as_they_are() -> None:
    state = SchedulerState(SchedulerConfig())
    early, late = (Model(spec(name), number) for number, name in enumerate(("early", "late")))
    state.cluster.models = {"early": early, "late": late}
    popularity = Popularity(state)
    for _ in range(3):
        popularity.asked(0, early)
    popularity.asked(2 * POPULARITY_DECAY_NS, late)
    assert model_note(late).popularity > model_note(early).popularity
    popularity.asked(int((RENEWED_AFTER + 3) * POPULARITY_DECAY_NS), early)
    assert model_note(early).popularity > model_note(late).popularity
    assert model_note(early).popularity < 2.0


def test_a_missed_model_is_loaded_over_others_that_are_asked_for_much_less() -> None:
    """Its LOAD takes longer than its deadline: it is loaded for those that come later, or not at all."""
    specs = spec("held", pages=2), spec("slow", load_ms=30)
    hand = Hand(*specs, pages=2, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("held")
    assert loads(hand.request(20, 10, "slow", 20)) == []
    assert loads(hand.request(25, 11, "slow", 20)) == ["slow"]
