"""What an answer of a model counts as beside others': set by the configuration, or by an operator."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.cluster.models import Model
from mainspring.messages.actions import Infer
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import SetGoodputWeight
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.notes import model_note
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from mainspring.traces.arrival import Arrival
from mainspring.traces.source import OpenSource
from tests.scheduler.hand import MS, Hand, spec

LENGTH_MS = 2_000


def answers(weight: float, by_operator: bool = False, **options: object) -> dict[str, int]:
    """Play tiny models that fill a device one and a half times beside a giant; return who is answered."""
    models = [spec("giant", single_ms=40), *(spec(f"tiny{number}", single_ms=2) for number in range(3))]
    told = {} if by_operator else {"goodput_weights": {"giant": weight}}
    arrivals = [Arrival(at * MS, f"tiny{at % 3}", slo_ns=40 * MS) for at in range(LENGTH_MS)]
    arrivals += [Arrival(at * MS + 1, "giant", slo_ns=250 * MS) for at in range(0, LENGTH_MS, 100)]
    found = dict.fromkeys([each.name for each in models], 0)

    def record(now_ns: int, message: object) -> None:
        if isinstance(message, Infer):
            found[message.model] += len(message.request_ids)

    simulation = Simulation(
        msgspec.convert({"policy": "mainspring", **told, **options}, SchedulerConfig),
        models,
        [("w0", "gpu", 40)],
        seed=1,
        preloaded={"w0": Preloaded(models, models)},
        source=OpenSource(iter(sorted(arrivals, key=lambda each: each.time_ns))),
        record=record,
        keep=True,
        validate_every=20,
    )
    if by_operator:
        simulation.scheduler.handle(0, OperatorAsked("me", SetGoodputWeight("giant", weight)))
    while simulation.now_ns < LENGTH_MS * MS or not simulation.finished():
        simulation.run(simulation.now_ns + 50 * MS)
    simulation.validate()
    return found


@pytest.mark.parametrize("by_operator", [True, False])
def test_a_giant_gets_what_its_answers_count_for(by_operator: bool) -> None:
    usual, weighed = answers(1.0), answers(50.0, by_operator)
    assert weighed["giant"] > 2 * usual["giant"]
    assert sum(weighed.values()) < sum(usual.values()), "each of its answers takes the time of many others"


def test_a_weight_below_one_leaves_others_more() -> None:
    assert answers(0.01)["giant"] <= answers(1.0)["giant"]


def weight_of(hand: Hand, name: str) -> float:
    """Return the weight of a model as the policy knows it, once a request has come."""
    assert isinstance(hand.scheduler._policy, Mainspring)
    model = hand.scheduler._state.cluster.models[name]
    assert isinstance(model, Model)
    return model_note(model).weight


def test_an_operator_weighs_a_model_at_once_and_takes_that_back() -> None:
    hand = Hand(spec("m"), spec("other"), policy="mainspring", goodput_weights={"m": 3.0})  # type: ignore[arg-type]
    hand.warm("m")
    hand.request(100, 1, "m", 100)
    assert weight_of(hand, "m") == 3.0
    hand.feed(101, OperatorAsked("me", SetGoodputWeight("m", 20.0)))
    assert weight_of(hand, "m") == 20.0
    hand.feed(102, OperatorAsked("me", SetGoodputWeight("m")))
    assert weight_of(hand, "m") == 3.0
    assert weight_of(hand, "other") == 1.0
    hand.scheduler.validate()


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e4, float("nan")])
def test_a_weight_that_can_not_be_is_refused_with_what_can(weight: float) -> None:
    with pytest.raises(ValueError, match=r"'m': a goodput_weight of .* can't be; give 0.001 to 1,000"):
        SchedulerConfig(goodput_weights={"m": weight})
