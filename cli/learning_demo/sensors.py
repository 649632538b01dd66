"""Three sensors that look at the same thing, and for each a model that says what it sees.

The readings of a sensor are those of the thing's class, blurred. A broken sensor reads those of another
class: its model is as sure as ever, and wrong. The models are linear, so that nothing has to be trained. Each
takes its readings to be as sharp as the best sensor's: those of blurred ones are surer than they should be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file

BLUR: Final = {"near": 1.0, "far": 1.8, "side": 2.6}
"""Standard deviation of each sensor's readings; those of the classes lie about 1 apart."""
BEST: Final = "near"
CLASSES: Final = 6
READINGS: Final = 16
MOST: Final = 16
"""Rows of the largest batch."""
LEARNT, EQUAL, FIXED = "learnt", "equal", "fixed"
APPLICATIONS: Final = {
    LEARNT: 'policy = "exp4"\noptions = { eta = 0.2, floor = 0.05 }',
    EQUAL: 'policy = "majority"',
    FIXED: f'policy = "static"\noptions = {{ member = "{BEST}" }}',
}
"""The applications of the three models, by name, with the policy of each."""


class Sensors:
    """Readings of things, drawn one after the other."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def thing(self, broken: str = "") -> tuple[dict[str, npt.NDArray[np.float32]], int]:
        """Return what the sensors read of a thing, ``(1, READINGS)`` each, and its class."""
        seen = int(self._generator.integers(CLASSES))
        found = {}
        for sensor, blur in BLUR.items():
            read = seen
            if sensor == broken:
                read = (seen + int(self._generator.integers(1, CLASSES))) % CLASSES
            noise = self._generator.normal(0, blur, (1, READINGS))
            found[sensor] = (_centres(sensor)[read] + noise).astype(np.float32)
        return found, seen


def application(name: str, slo_ms: float) -> str:
    """Return the text of an application's file."""
    members = ", ".join([f'"{sensor}"' for sensor in BLUR])
    head = f'name = "{name}"\nmembers = [{members}]\noutput = "scores"\nslo_ms = {slo_ms:g}'
    return f"{head}\n{APPLICATIONS[name]}\n"


def make_models(folder: Path, say: Callable[[str], None]) -> None:
    """Compile into the store in ``folder`` what it does not hold yet; ``say`` gets a line for each model.

    Raises `CompileError` or `StoreError`.
    """
    store = Store(folder)
    held = store.names() if folder.is_dir() else []
    for sensor in BLUR:
        if sensor in held:
            say(f"{sensor:5} kept")
            continue
        with TemporaryDirectory(prefix="mainspring-") as work:
            path = Path(work, f"{sensor}.onnx")
            onnx.save(_model(sensor), str(path))
            made = compile_file(path, sensor, store, [1, 4, MOST]).manifest.spec()
        say(f"{sensor:5} {made.profiles['cpu'].infer_ns[1] / 1e6:.2f} ms for one row")


def _centres(sensor: str) -> npt.NDArray[Any]:
    """Return the mean readings of each class, ``(CLASSES, READINGS)``."""
    return np.random.default_rng([*BLUR].index(sensor)).normal(0, 1, (CLASSES, READINGS))


def _model(sensor: str) -> onnx.ModelProto:
    """Return the classes' probabilities by Bayes' rule, of readings with normal noise."""
    centres, variance = _centres(sensor), BLUR[BEST] ** 2
    weights = {
        "weights": (centres.T / variance).astype(np.float32),
        "offsets": (-(centres**2).sum(1) / (2 * variance)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", [sensor, "weights", "offsets"], ["evidence"]),
            helper.make_node("Softmax", ["evidence"], ["scores"], axis=1),
        ],
        sensor,
        [helper.make_tensor_value_info(sensor, TensorProto.FLOAT, ["rows", READINGS])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
