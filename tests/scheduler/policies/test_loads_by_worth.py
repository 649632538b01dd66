"""Which model `mainspring` loads, and whom it evicts."""

from __future__ import annotations

from mainspring.messages.actions import Load, Unload
from mainspring.messages.commands import Command
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.books import Books
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.mirror import Model
from mainspring.scheduler.policies.popularity import DECAY_NS, RENEWED, Popularity
from tests.scheduler.hand import MS, Hand, spec


def loads(commands: list[Command]) -> list[str]:
    return [command.model for command in commands if isinstance(command, Load)]


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


def test_counts_decay_and_can_be_compared_as_they_are() -> None:
    books = Books(SchedulerConfig())
    early, late = (Model(spec(name), number) for number, name in enumerate(("early", "late")))
    books.cluster.models = {"early": early, "late": late}
    popularity = Popularity(books)
    for _ in range(3):
        popularity.asked(0, early)
    popularity.asked(2 * DECAY_NS, late)
    assert late.asked > early.asked
    popularity.asked(int((RENEWED + 3) * DECAY_NS), early)
    assert early.asked > late.asked
    assert early.asked < 2.0


def test_a_missed_model_is_loaded_over_others_that_are_asked_for_much_less() -> None:
    """Its LOAD takes longer than its deadline: it is loaded for those that come later, or not at all."""
    specs = spec("held", pages=2), spec("slow", load_ms=30)
    hand = Hand(*specs, pages=2, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("held")
    assert loads(hand.request(20, 10, "slow", 20)) == []
    assert loads(hand.request(25, 11, "slow", 20)) == ["slow"]
