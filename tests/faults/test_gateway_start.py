"""A gateway that has just started, as after its crash: clients wait for it to learn what is served."""

from __future__ import annotations

import time

import numpy as np
import pytest

import mainspring
from mainspring import Client
from tests.gateway.fakes import fake_cluster, gateway, make_spec

X = np.ones((1, 4), np.float32)
MODELS = 1_500


def test_no_model_is_unknown_while_the_controller_is_still_telling_them() -> None:
    with fake_cluster() as cluster:
        cluster.specs |= {f"m{number}": make_spec(f"m{number}") for number in range(MODELS)}
        cluster.silent = True
        with gateway(cluster.address, controller_timeout_ms=10_000.0) as address, Client(address) as client:
            futures = [client.submit(f"m{MODELS - 1}", {"data": X}, slo_ms=5_000) for _ in range(10)]
            time.sleep(0.2)
            assert not any(future.done() for future in futures)
            cluster.silent = False
            for future in futures:
                np.testing.assert_array_equal(future.result(10)["twice"], X * 2)


def test_without_a_controller_clients_are_told_after_a_while() -> None:
    with gateway("tcp://127.0.0.1:1", controller_timeout_ms=400.0) as address, Client(address) as client:
        with pytest.raises(mainspring.ControllerUnreachable, match="has not reached its controller"):
            client.infer("double", {"data": X}, slo_ms=5_000)
        began = time.monotonic()
        with pytest.raises(mainspring.ControllerUnreachable):
            client.infer("double", {"data": X}, slo_ms=5_000)
        assert time.monotonic() - began < 0.3, "only the first ones wait"
