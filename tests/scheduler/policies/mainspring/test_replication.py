"""Further devices for models that others keep waiting."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Load
from mainspring.messages.commands import Command
from mainspring.messages.events import WorkerJoined
from tests.scheduler.hand import Hand, spec

BATCHES = 8


def loads(commands: list[Command]) -> list[tuple[str, str]]:
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
    assert loads(hand.request(now_ms, 1, "rare", 100)) == [("rare", "w1")]


def test_a_model_on_an_idle_device_stays_where_it_is() -> None:
    hand = pair()
    now_ms = serve(hand, "busy", 100)
    assert loads(hand.request(now_ms + 500, 1, "rare", 100)) == []


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
    assert loads(hand.request(now_ms, 2, "rare", 100)) == []


def test_where_all_devices_are_as_busy_nothing_is_loaded() -> None:
    hand = pair()
    now_ms = serve(hand, "busy", 100)
    worker = hand.scheduler._state.cluster.workers["w1"]
    policy = hand.scheduler._policy
    policy._utilisation.gave(round(now_ms * 1e6), worker, 80_000_000)  # type: ignore[attr-defined]
    assert loads(hand.request(now_ms, 1, "rare", 100)) == []
