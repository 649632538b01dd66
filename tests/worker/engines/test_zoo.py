"""Architectures of the zoo, compiled and run by the engine: their outputs are stock ONNX Runtime's.

Weights come out of the store into pages, as in a worker. What a cluster adds to it, sockets and rows of
several callers in one batch, `tests/cli/launcher/test_served_zoo.py` has for architectures of each kind.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from mainspring.cli.profiling.lone_device import device_for
from mainspring.compiler.artifact.manifest import ONNXRUNTIME, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build, names
from mainspring.worker.config import WorkerConfig
from tests.worker.engines.zoo import check_outputs, check_that_inputs_matter, random_inputs

SEED = 3
LARGE_BYTES = 120e6
"""Models with more weights than this are compiled for two batch sizes only, and loaded once."""
LIKE_OTHERS = {"vgg19", "zfnet512", "bert-base", "resnet34"}
"""Have the operators of alexnet, bert-small or resnet18 and none besides: these stand for them."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", sorted({*names()} - LIKE_OTHERS))
def test_an_engine_computes_what_stock_onnxruntime_does(architecture: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = build(architecture, SEED)
    small = sum(len(each.raw_data) for each in model.graph.initializer) < LARGE_BYTES
    sizes = (1, 2, 4) if small else (1, 2)
    source = Source("zoo", architecture, seed=SEED)
    spec = compile_model(model, architecture, store, sizes, source, quick=True).manifest.spec()
    stock = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(5)
    config = WorkerConfig(name="lone", engine=ONNXRUNTIME, store=str(tmp_path), pages=1, realtime=False)
    outputs = [tensor.name for tensor in spec.outputs]
    with device_for([spec], config, copies=1 + small) as device:
        device.prepare(spec)
        # The second time, the weights' places in memory are others.
        for first_page in (0, 1) if small else (0,):
            device.load(spec, first_page)
            for rows in sizes:
                inputs = random_inputs(spec, rows, rng)
                arrays = [inputs[tensor.name] for tensor in spec.inputs]
                found = dict(zip(outputs, device.run(spec, rows, arrays), strict=True))
                check_outputs(stock, inputs, found)
        check_that_inputs_matter({n: a[:1] for n, a in found.items()}, {n: a[1:2] for n, a in found.items()})
