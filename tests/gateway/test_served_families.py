"""A family of models through a controller, a gateway and a worker with an emulated device."""

from __future__ import annotations

from collections import Counter

import pytest

import mainspring
from mainspring import Client
from tests.gateway.fakes import gateway, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

FAMILY = """
name = "classify"
members = ["best", "small"]
score = [0.8, 0.7]
"""
MODELS = [emulated("best", 60_000_000), emulated("small", 1_000_000)]


def test_the_best_member_in_time_answers_and_a_crowd_gets_smaller_answers() -> None:
    with (
        real_controller(MODELS) as controller,
        real_worker("one", controller),
        gateway(controller) as address,
        Client(address) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 20)
        for name in ("best", "small"):
            client.infer(name, {"data": X}, slo_ms=20_000)
        client.add_graph(FAMILY)
        found = client.infer("classify", {"data": X}, slo_ms=5_000)
        assert [(each.model, each.rows) for each in found.timing.steps] == [("best", 2)]
        assert client.infer("classify", {"data": X}, slo_ms=40).timing.steps[0].model == "small"
        assert client.infer("classify", {"data": X}, slo_ms=5_000, at_least=0.8)["sum"].shape == (2,)
        with pytest.raises(mainspring.DeadlineUnreachable, match=r"'small' of 0\.7 could"):
            client.infer("classify", {"data": X}, slo_ms=40, at_least=0.8)
        with pytest.raises(mainspring.InvalidRequest, match=r"answers of up to 0\.8"):
            client.infer("classify", {"data": X}, slo_ms=40, at_least=0.9)
        crowd = [client.submit("classify", {"data": X}, slo_ms=1_000) for _ in range(300)]
        members = Counter(each.result(PATIENCE_S).timing.steps[0].model for each in crowd)
        assert set(members) == {"best", "small"}
