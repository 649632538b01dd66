"""Every protocol's reply says where the request's time went, in parts that add up to the total."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tritonclient.grpc

from mainspring import Client
from tests.gateway.fakes import serving, wait_until
from tests.gateway.http.raw import Peer, infer_body
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready

PARTS = ("receive_ns", "queue_ns", "input_ns", "load_ns", "wait_ns", "execute_ns", "output_ns")
X = np.ones((1, 4), np.float32)


def server_timing(text: str) -> dict[str, float]:
    """Return what the header says, in milliseconds."""
    return {name: float(spent_ms) for name, spent_ms in re.findall(r"(\w+);dur=([\d.]+)", text)}


def test_the_parts_of_a_cold_and_a_warm_request_add_up_to_the_total() -> None:
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        serving(
            controller, http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:0"
        ) as addresses,
        Client(addresses.zeromq) as client,
        Peer(addresses.http.removeprefix("http://")) as peer,
        tritonclient.grpc.InferenceServerClient(addresses.grpc.removeprefix("grpc://")) as triton,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), 30)
        cold = client.infer("a", {"data": X}, slo_ms=20_000).timing
        assert sum(getattr(cold, part) for part in PARTS) == cold.total_ns
        # How the way there and back share what is left is a guess, so a part may seem to be from before.
        assert cold.load_ns > 0, "the emulated LOAD takes a millisecond"
        assert cold.load_ns + cold.execute_ns < cold.total_ns <= cold.elapsed_ns

        reply = peer.ask("POST", "/v2/models/a/infer", infer_body())
        warm = reply.json["parameters"]
        assert sum(warm[part] for part in PARTS) == warm["total_ns"]
        assert warm["load_ns"] == 0
        assert min(warm["receive_ns"], warm["queue_ns"], warm["execute_ns"]) > 0
        said = server_timing(reply.headers["server-timing"])
        total_ms = said.pop("total")
        assert sum(said.values()) == pytest.approx(total_ms, abs=0.01)
        assert total_ms == pytest.approx(warm["total_ns"] / 1e6 + said["render"], abs=0.01)
        assert said["exec"] == pytest.approx(warm["execute_ns"] / 1e6, abs=0.001)

        data = tritonclient.grpc.InferInput("data", [1, 4], "FP32")
        data.set_data_from_numpy(X)
        parameters = triton.infer("a", [data]).get_response().parameters
        times = {name: each.int64_param for name, each in parameters.items() if name.endswith("_ns")}
        assert sum(times[part] for part in PARTS) == times["total_ns"] > 0
