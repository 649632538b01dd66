"""Architectures of the zoo, compiled, added live and served to two clients at once.

What they get, at every batch size and with their rows mixed in batches, is what stock ONNX Runtime computes
of the original model. `tests/worker/engines/test_zoo.py` has all architectures, in the engine alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from tests.worker.engines.zoo import check_outputs, check_that_inputs_matter, random_inputs

SERVED = ("bert-mini", "mobilenet", "squeezenet")
"""Integers and images, weights of one page and of several, slow enough for rows to be mixed."""
SEED = 3
PAGES = 16
SLO_MS = 60_000
PREPARED_S = 120.0
SLOW_NS = 3_000_000
"""While a model this slow runs a batch, single requests come that share the next one."""
MIXING_TRIALS = 5
"""On a busy machine they come one by one at times."""

Cluster = tuple[Store, Client, Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("zoo")
    store = Store(folder / "store")
    compile_model(build("digits", 0), "first", store, (1,), Source("zoo", "digits", seed=0), quick=True)
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(folder / "run"),
                "ready_timeout_s": 90,
            },
            "worker": {"pages": PAGES},
            # The default policy mixes rows only where that serves more, and on a CPU it may not.
            "scheduler": {"policy": "clockwork"},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with (
        LocalCluster(make_plan(config), lambda _: None) as local,
        Client(local.address) as one,
        Client(local.address) as other,
    ):
        yield store, one, other


@pytest.mark.parametrize("architecture", SERVED)
def test_it_is_served_as_stock_onnxruntime_runs_it(cluster: Cluster, architecture: str) -> None:
    store, one, other = cluster
    model = build(architecture, SEED)
    sizes = (1, 2, 4)
    source = Source("zoo", architecture, seed=SEED)
    compiled = compile_model(model, architecture, store, sizes, source, quick=True)
    stock = onnxruntime.InferenceSession(model.SerializeToString())
    spec = compiled.manifest.spec()
    one.add_model(spec)
    _wait_until_prepared(one, architecture)
    rng = np.random.default_rng(5)
    whole = [random_inputs(spec, rows, rng) for rows in sizes]
    results = [one.infer(architecture, inputs, slo_ms=SLO_MS) for inputs in whole]
    assert [result.timing.batch_size for result in results] == list(sizes)
    mixed = [random_inputs(spec, 1, rng) for _ in range(7)]
    slow = compiled.manifest.profiles["cpu"].infer_ns[1] > SLOW_NS
    for _ in range(MIXING_TRIALS):
        calls = [
            (one, other)[number % 2].submit(architecture, inputs, slo_ms=SLO_MS)
            for number, inputs in enumerate([whole[-1], *mixed])
        ]
        _, *shared = [call.result(timeout=120) for call in calls]
        if not slow or max(result.timing.batch_size for result in shared) == sizes[-1]:
            break
    else:
        pytest.fail("rows were never mixed")
    one.remove_model(architecture)
    requests, results = whole + mixed, results + shared
    for inputs, result in zip(requests, results, strict=True):
        check_outputs(stock, inputs, result)
    check_that_inputs_matter(results[-1], results[-2])


def _wait_until_prepared(client: Client, name: str) -> None:
    deadline_s = time.monotonic() + PREPARED_S
    while True:
        status = client.status()
        model = next(each for each in status.models if each.name == name)
        assert not model.failed_on
        if model.prepared_on:
            return
        assert time.monotonic() < deadline_s, f"not prepared: {model}, workers {status.workers}"
        time.sleep(0.05)
