"""Models with kernels for each bucket, through a whole cluster: unlike lengths, many callers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import InvalidInput
from mainspring.compiler.artifact.manifest import TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.compiled import Target
from tests.compiler import open_models

pytestmark = pytest.mark.timeout(600)

REQUESTS = 120
WAIT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")
    path = tmp_path_factory.mktemp("padded")
    models = (
        ("encoder", open_models.encoder(layers=1), {"seq": 32}, {"ids": 0.0, "mask": 0.0}),
        ("sounds", open_models.sounds(), {"time": 100}, {"x": 0.0}),
    )
    for name, model, most, pad in models:
        file = open_models.save(model, path / f"{name}.onnx")
        compile_file(file, name, Store(path / "store"), (1, 4), most=most, pad=pad, target=Target(TVM))
    return path


def drawn(random: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Return a request of one of the models, of any length."""
    rows = int(random.integers(1, 3))
    if random.integers(2):
        time = int(random.integers(1, 101))
        return "sounds", {"x": random.standard_normal((rows, 3, time), np.float32)}
    length = int(random.integers(1, 33))
    mask = np.ones((rows, length), np.int64)
    mask[:, max(1, length - int(random.integers(0, 4))) :] = 0
    return "encoder", {"ids": random.integers(0, 40, (rows, length)), "mask": mask}


def test_answers_are_onnx_runtimes_whatever_shares_a_batch(folder: Path, tmp_path: Path) -> None:
    stock = {name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "sounds")}
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(tmp_path / "run"),
                "ready_timeout_s": 90,
                "engine": TVM,
            },
            "worker": {"pages": 4, "workspace_bytes": 16 << 20},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    random = np.random.default_rng(9)
    with (
        LocalCluster(make_plan(config), lambda _: None) as cluster,
        Client(cluster.address) as one,
        Client(cluster.address) as other,
    ):
        specs = {spec.name: spec for spec in one.models()}
        assert all(spec.at_ceilings for spec in specs.values())
        asked = [drawn(random) for _ in range(REQUESTS)]
        futures = [
            (one, other)[turn % 2].submit(name, inputs, slo_ms=30_000)
            for turn, (name, inputs) in enumerate(asked)
        ]
        for (name, inputs), future in zip(asked, futures, strict=True):
            (expected,) = stock[name].run(None, inputs)
            np.testing.assert_allclose(future.result(timeout=WAIT_S)["y"], expected, rtol=1e-3, atol=1e-4)
        with pytest.raises(InvalidInput, match="time is 101; the model takes time from 1 to 100"):
            one.infer("sounds", {"x": np.zeros((1, 3, 101), np.float32)})
