"""Answers of a model whose rows influence each other, while strangers ask for it too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from tests.compiler.test_sharing import small_vocabulary

ROUNDS = 60
STRANGERS = 8


def test_strangers_do_not_change_an_answer(tmp_path: Path) -> None:
    model = small_vocabulary()
    store = Store(tmp_path / "store")
    compile_model(model, "words", store, (1, 2, 4, 8, 16), Source("onnx", "words.onnx"))
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store.root), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 2},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    random = np.random.default_rng(5)
    mine = random.integers(0, 2, (1, 8))
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": mine})
    with (
        LocalCluster(make_plan(config), lambda _: None) as cluster,
        Client(cluster.address) as me,
        Client(cluster.address) as other,
    ):
        (spec,) = me.models()
        answers = []
        for _ in range(ROUNDS):
            strange = [
                other.submit("words", {"ids": random.integers(2, 32, (1, 8))}) for _ in range(STRANGERS)
            ]
            answers.append(me.submit("words", {"ids": mine}))
            for future in strange:
                future.result(timeout=60)
        found = [future.result(timeout=60)["y"] for future in answers]
    assert "DynamicQuantizeLinear" in spec.unshared
    for answer in found:
        np.testing.assert_array_equal(answer, expected)
