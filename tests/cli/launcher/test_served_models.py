"""Real models through the whole system: what clients get is what stock ONNX Runtime computes."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.result import InferResult
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.model import ModelSpec
from mainspring.traces.inputs import random_tensor

ARCHITECTURES = ("bert-tiny", "digits", "resnet20")
COPIES = 2
BATCH_SIZES = (1, 2, 4)
ROUNDS = 8
SLO_MS = 20_000

Arrays = dict[str, npt.NDArray[Any]]


@functools.cache
def stock(architecture: str, copy: int) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(build(architecture, copy).SerializeToString())


def inputs_for(spec: ModelSpec, rows: int, rng: np.random.Generator) -> Arrays:
    return {tensor.name: random_tensor(tensor.dtype, (rows, *tensor.shape), rng) for tensor in spec.inputs}


def test_clients_get_what_stock_onnxruntime_computes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    list(compile_zoo(ARCHITECTURES, Store(store), COPIES, 0, BATCH_SIZES))
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 3},  # fewer than the models need together: some have to go for others
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    rng = np.random.default_rng(7)
    sent: list[tuple[str, int, Arrays, Future[InferResult]]] = []
    with (
        LocalCluster(make_plan(config), lambda _: None) as cluster,
        Client(cluster.address) as one,
        Client(cluster.address) as other,
    ):
        specs = {spec.name: spec for spec in one.models()}
        for number in range(ROUNDS):
            for architecture in ARCHITECTURES:
                for copy in range(COPIES):
                    name = f"{architecture}-{copy + 1}"
                    inputs = inputs_for(specs[name], BATCH_SIZES[number % len(BATCH_SIZES)], rng)
                    client = (one, other)[number % 2]
                    sent.append((architecture, copy, inputs, client.submit(name, inputs, slo_ms=SLO_MS)))
        results = [future.result(timeout=60) for *_, future in sent]
        clean = inputs_for(specs["digits-1"], 1, rng)
        spoilt = {name: np.full_like(array, np.nan) for name, array in clean.items()}
        (nothing,) = one.infer("digits-1", spoilt, slo_ms=SLO_MS).values()
        assert np.isnan(nothing).all(), "NaN is a number like any other"
        sent.append(("digits", 0, clean, other.submit("digits-1", clean, slo_ms=SLO_MS)))
        results.append(sent[-1][-1].result(timeout=60))
        status = one.status()
    for (architecture, copy, inputs, _), result in zip(sent, results, strict=True):
        expected = stock(architecture, copy).run(list(result), inputs)
        for output, right in zip(result.values(), expected, strict=True):
            np.testing.assert_allclose(output, right, rtol=1e-3, atol=1e-4, err_msg=architecture)
    assert max(result.timing.batch_size for result in results) == max(BATCH_SIZES)
    assert sum(len(model.resident_on) for model in status.models) < len(specs)
