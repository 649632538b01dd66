"""A cluster with two gateways that learn together, and one that starts after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import Client
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

APPLICATION = """
name = "sums"
members = ["one", "other"]
output = "sum"
policy = "exp3"
kind = "value"
span = 10.0
context = true
slo_ms = 20000
[options]
eta = 1.0
floor = 0.0
"""
MODELS = [emulated("one", 1_000_000), emulated("other", 1_000_000)]


def weights(client: Client) -> list[float]:
    """Ask once, so that what others learnt is looked for, and return the members' weights."""
    client.infer("sums", {"data": X})
    (found,) = client.applications()
    return [each.weight for each in found.members]


def learn(client: Client, reward: float, context: str = "") -> None:
    learnt = client.infer("sums", {"data": X}, context=context).timing.learnt
    assert learnt is not None
    assert client.observe("sums", learnt.query_id, rewards=[reward] * len(X)).joined == len(X)


def same(one: list[float], other: list[float]) -> bool:
    return one == pytest.approx(other, abs=1e-9)


def test_two_gateways_learn_together_and_a_later_one_goes_on(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'learnt.sqlite'}"
    with real_controller(MODELS) as controller, real_worker("worker", controller):
        with (
            serving(controller, name="a", application_store=store) as first,
            serving(controller, name="b", application_store=store) as second,
            Client(first.zeromq) as one,
            Client(second.zeromq) as other,
        ):
            wait_until(lambda: workers_ready(one, 1, 2), 20)
            one.add_graph(APPLICATION)
            wait_until(lambda: bool(other.graphs()), 20)
            learn(one, 0.6)
            learn(other, 0.7)
            learn(one, 0.0, "ann")
            wait_until(lambda: weights(one) != [0.5, 0.5] and same(weights(one), weights(other)), 20)
            learnt = weights(one)
        with serving(controller, name="c", application_store=store) as third, Client(third.zeromq) as client:
            wait_until(lambda: bool(client.graphs()), 20)
            wait_until(lambda: same(weights(client), learnt), 20)

            def stored() -> bool:
                """Say whether the store has told ann's state: the first answer may be made without it."""
                found = client.infer("sums", {"data": X}, context="ann").timing.learnt
                return found is not None and not found.shared

            wait_until(stored, 20)
