"""The application of ``examples/ray_serve.py`` on a real Ray Serve, before a gateway with a fake cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mainspring
import mainspring.ray
from tests.gateway.fakes import fake_cluster, gateway, wait_until

ROOT = Path(__file__).resolve().parents[2]
X = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_an_application_answers_refuses_and_hands_errors_on() -> None:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install '.[cluster]'")
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        with mainspring.Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        # In a process of its own: threads of Serve end the one that they are in when Ray is shut down.
        program = "import sys; from tests.examples.test_ray_serve import play; play(sys.argv[1])"
        command = [sys.executable, "-c", program, address]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.stdout.endswith("played\n"), done.stdout + done.stderr


def play(address: str) -> None:
    """Run applications on a Ray that is started for them, ask them, and end this process."""
    from ray import serve

    from examples import ray_serve
    from mainspring.cli.launcher.addresses import free_ports
    from mainspring.simulator.ray_address import LOCAL, connect

    (port,) = free_ports(1)
    ray = connect(LOCAL, include_dashboard=False, object_store_memory=80 << 20, num_cpus=4)
    serve.start(http_options={"port": port})
    for model, slo_ms in (("double", 20_000), ("reject", 50)):
        application = ray_serve.application(model, slo_ms, address)
        serve.run(application, name=model, route_prefix=f"/{model}")
    check_replies(port)
    check_what_is_passed_on(serve, address)
    serve.shutdown()
    ray.shutdown()
    print("played", flush=True)
    os._exit(0)


def check_replies(port: int) -> None:
    assert post(port, "double", {"data": X.tolist()}) == (200, {"twice": [[0, 2, 4, 6]], "sum": [6.0]})
    assert post(port, "double", {"dada": X.tolist()})[0] == 400
    status, said = post(port, "reject", {"data": X.tolist()})
    assert status == 503
    assert "earliest possible finish: 70.0 ms" in said["error"]


def post(port: int, path: str, body: object) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Passes:
    """A deployment that asks what it is told to, and passes on what comes of it."""

    async def __call__(self, model: mainspring.ray.Handle, x: np.ndarray) -> Any:
        return await model.options(outputs=["twice"]).remote({"data": x})


def check_what_is_passed_on(serve: Any, address: str) -> None:
    passes = serve.run(serve.deployment(Passes).bind(), name="passes", route_prefix=None)
    double, reject = (
        mainspring.ray.handle(model, slo_ms=20_000, address=address) for model in ("double", "reject")
    )
    result = passes.remote(double, X).result(timeout_s=60)
    assert list(result) == ["twice"]
    assert np.array_equal(result["twice"], 2 * X)
    assert result.timing.batch_size == 2
    with pytest.raises(mainspring.DeadlineUnreachable) as caught:
        passes.remote(reject, X).result(timeout_s=60)
    assert caught.value.earliest_finish_ms == 70.0
