"""A gateway that has just started, as after its crash: clients wait for it to learn what is served."""

from __future__ import annotations

import time

import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.messages import PROTOCOL_VERSION, peers
from tests.gateway.fakes import fake_cluster, gateway, make_spec, wait_until
from tests.patience import PATIENCE_S

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
                np.testing.assert_array_equal(future.result(PATIENCE_S)["twice"], X * 2)


@pytest.mark.timing("the first request waits 0.4 s for a controller, the second less than 0.3 s")
def test_without_a_controller_clients_are_told_after_a_while() -> None:
    with gateway("tcp://127.0.0.1:1", controller_timeout_ms=400.0) as address, Client(address) as client:
        with pytest.raises(mainspring.ControllerUnreachable, match="has not reached its controller"):
            client.infer("double", {"data": X}, slo_ms=5_000)
        began = time.monotonic()
        with pytest.raises(mainspring.ControllerUnreachable):
            client.infer("double", {"data": X}, slo_ms=5_000)
        assert time.monotonic() - began < 0.3, "only the first ones wait"


def test_a_controller_of_another_protocol_is_no_controller_and_clients_are_told_why() -> None:
    with fake_cluster() as cluster:
        # Before the gateway's first hello, which would be welcomed otherwise.
        cluster.refuse_code = "unknown_session"
        with gateway(cluster.address, controller_timeout_ms=400.0) as address, Client(address) as client:
            wait_until(lambda: cluster.hellos)
            hellos = len(cluster.hellos)
            complaint = "the controller speaks protocol 2, this gateway 1; install the same release"

            def told() -> bool:
                with pytest.raises(mainspring.ControllerUnreachable) as caught:
                    client.infer("double", {"data": X}, slo_ms=5_000)
                return complaint in str(caught.value)

            cluster.do(lambda: setattr(cluster, "silent", True))
            cluster.tell(peers.Welcome(PROTOCOL_VERSION + 1, 3))
            wait_until(told)
            cluster.do(lambda: setattr(cluster, "silent", False))
            wait_until(lambda: len(cluster.hellos) > hellos)
