"""Which model `mainspring` loads, and whom it evicts."""

from __future__ import annotations

import pytest

from mainspring.cluster.models import Model
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Infer, Load, Reject, Unload
from mainspring.messages.events import RequestArrived, WorkerJoined
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.mainspring.constants import (
    POPULARITY_DECAY_NS,
    RENEWED_AFTER,
    UTILISATION_WINDOW_NS,
)
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.mainspring.usage import ExecPrice, Popularity, Utilisation
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
        policy._fairness.missed(int(now_ms * MS), Model(spec("other"), 99))


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


def model(name: str, single_ms: int) -> Model:
    made = Model(spec(name, single_ms=single_ms), 1)
    estimates = SchedulerState(SchedulerConfig()).cluster.estimates
    made.infer_times["gpu"] = estimates.infer_times("gpu", made.spec)
    return made


def price(busy: float, dropped: float) -> ExecPrice:
    """After batches of a row that took 4 ms."""
    utilisation = Utilisation(SchedulerState(SchedulerConfig()))
    utilisation.gave(0, Worker("w0", 0, "gpu", 8), int(busy * UTILISATION_WINDOW_NS))
    found = ExecPrice(utilisation)
    for _ in range(10):
        found.ran(1, 4 * MS)
    found.look(0, dropped)
    return found


@pytest.mark.parametrize(("busy", "dropped"), [(0.7, 0.5), (1.0, 0.0)])
def test_nothing_is_paid_while_exec_has_time_or_nothing_is_dropped(busy: float, dropped: float) -> None:
    found = price(busy, dropped)
    assert found.per_ns == 0.0
    assert found.worth(model("long", 40), 3.0) == 3.0
    assert found.worth_each(model("long", 40), 1.0) == 1.0


def test_what_takes_longer_is_worth_less_and_in_the_end_nothing() -> None:
    found = price(1.0, 0.5)
    worths = [found.worth(model("any", single_ms), 1.0) for single_ms in (1, 4, 20)]
    assert 1.0 > worths[0] > worths[1] > 0.0
    assert worths[2] == 0.0
    assert found.worth_each(model("any", 1), 1.0) > found.worth_each(model("any", 4), 1.0) > 0.0
    assert found.worth_each(model("any", 20), 1.0) == 0.0


def test_full_batches_are_worth_more_than_as_many_single_rows() -> None:
    found, any_ = price(1.0, 0.5), model("any", 4)
    assert found.worth(any_, 4.0) > 4 * found.worth(any_, 1.0)
    assert found.worth(any_, 8.0) == pytest.approx(2 * found.worth(any_, 4.0))


def test_a_model_that_was_dropped_too_often_is_worth_its_time_again() -> None:
    found, long = price(1.0, 0.5), model("long", 20)
    assert found.worth(long, 1.0) == 0.0
    model_note(long).boost = 2.0
    assert found.worth(long, 1.0) > 0.0


BATCHES = 8


def loads_by_worker(commands: list[Command]) -> list[tuple[str, str]]:
    return [(command.model, command.worker) for command in commands if isinstance(command, Load)]


def serve(hand: Hand, model: str, since_ms: float) -> float:
    """Keep worker w0 busy with batches of a model for 10 ms each; return when the last one ends."""
    now_ms, id_ = since_ms, round(1000 * since_ms)
    for _ in range(BATCHES):
        commands = [c for number in range(4) for c in hand.request(now_ms, id_ + number, model, 60)]
        infers = [c for c in commands if isinstance(c, Infer)]
        while infers:
            now_ms += infers[0].predicted_duration_ns / 1e6
            infers = [c for c in hand.ok(now_ms, infers[0]) if isinstance(c, Infer)] + infers[1:]
        id_ += 4
    return now_ms


def join(hand: Hand, now_ms: float) -> None:
    """Let a second worker come, which has room for one page."""
    hand.prepare(hand.feed(now_ms, WorkerJoined("w1", "gpu", 1)), now_ms)


def pair() -> Hand:
    """Return a cluster whose models "busy" and "rare" are on w0 alone; w1 has room for "rare" only."""
    specs = spec("busy", pages=2), spec("rare")
    hand = Hand(*specs, workers=1, pages=8, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("busy")
    hand.warm("rare", 50)
    join(hand, 90)
    return hand


def test_a_model_beside_a_busy_one_is_given_an_idle_device() -> None:
    hand = pair()
    now_ms = serve(hand, "busy", 100)
    assert loads_by_worker(hand.request(now_ms, 1, "rare", 100)) == [("rare", "w1")]


def test_a_model_on_an_idle_device_stays_where_it_is() -> None:
    hand = pair()
    now_ms = serve(hand, "busy", 100)
    assert loads_by_worker(hand.request(now_ms + 500, 1, "rare", 100)) == []


def test_nobody_goes_for_it_who_is_asked_for_as_often() -> None:
    specs = spec("other"), spec("busy", pages=2), spec("rare")
    hand = Hand(*specs, pages=1, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("other")
    hand.prepare(hand.feed(30, WorkerJoined("w1", "gpu", 3)), 30)
    hand.warm("busy", 40)
    (infer,) = [c for c in hand.request(70, 1, "other", 100) if isinstance(c, Infer)]
    hand.warm("rare", 70)
    hand.ok(90, infer)
    rare = hand.scheduler._state.cluster.models["rare"]
    assert list(rare.usable) == ["w1"]
    now_ms = serve(hand, "busy", 100)
    assert loads_by_worker(hand.request(now_ms, 2, "rare", 100)) == []


def test_where_all_devices_are_as_busy_nothing_is_loaded() -> None:
    hand = pair()
    now_ms = serve(hand, "busy", 100)
    worker = hand.scheduler._state.cluster.workers["w1"]
    policy = hand.scheduler._policy
    policy._utilisation.gave(round(now_ms * 1e6), worker, 80_000_000)  # type: ignore[attr-defined]
    assert loads_by_worker(hand.request(now_ms, 1, "rare", 100)) == []
