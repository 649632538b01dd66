"""Models whose kernels are for the ceilings of buckets, through the worker: unlike requests in one batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mainspring.compiler.artifact.manifest import TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.compiled import Target
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import MIB
from tests.compiler import open_models
from tests.worker.engines.test_symbols import carry_out, drawn
from tests.worker.peers import Cluster, infer

CASES: dict[str, tuple[onnx.ModelProto, dict[str, int], dict[str, float]]] = {
    "encoder": (open_models.encoder(layers=1), {"seq": 48}, {"ids": 0.0, "mask": 0.0}),
    "sounds": (open_models.sounds(), {"time": 100}, {"x": 0.0}),
}
pytestmark = pytest.mark.timeout(600)

BATCH_SIZES = (1, 4)
MEMORY = {"io_bytes": 4 * MIB, "workspace_bytes": 4 * MIB}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each case, and ``store`` with all of them."""
    pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")
    path = tmp_path_factory.mktemp("buckets")
    for name, (model, most, pad) in CASES.items():
        file = open_models.save(model, path / f"{name}.onnx")
        store = Store(path / "store")
        compile_file(file, name, store, BATCH_SIZES, most=most, pad=pad, target=Target(TVM))
    return path


@pytest.fixture
def cluster(start: Callable[..., Cluster], folder: Path) -> Cluster:
    return start(engine=TVM, store=str(folder / "store"), **MEMORY)


def request(model: ModelSpec, size: int, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Return inputs of a request that is not masked as a whole."""
    arrays = drawn(model, (size,), rows, seed)
    if "mask" in arrays:
        arrays["mask"] %= 2
        arrays["mask"][:, 0] = 1
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_requests_of_unlike_sizes_share_a_batch(cluster: Cluster, folder: Path, name: str) -> None:
    model = Store(folder / "store").manifest(name).spec()
    cluster.resident(model, (0,))
    stock = onnxruntime.InferenceSession(folder / f"{name}.onnx")
    (symbol,) = model.symbols
    random = np.random.default_rng(3)
    for ceiling, below in zip(symbol.ceilings, (symbol.least - 1, *symbol.ceilings), strict=False):
        for own in ([below + 1, ceiling], random.integers(below + 1, ceiling + 1, 3).tolist()):
            counts = (1, 2) if len(own) == 2 else (1, 2, 1)
            requests = {
                key: request(model, size, count, key)
                for key, (size, count) in enumerate(zip(own, counts, strict=True))
            }
            action = infer(
                *(cluster.next_id(), tuple(requests), counts),
                batch_size=4,
                model=name,
                sizes=(ceiling,),
                request_sizes=tuple((size,) for size in own),
            )
            carry_out(cluster, action, requests, stock)
        single = {7: request(model, ceiling, 1, 7)}
        action = infer(cluster.next_id(), (7,), (1,), batch_size=1, model=name, sizes=(ceiling,))
        carry_out(cluster, action, single, stock)


@pytest.mark.parametrize("name", CASES)
def test_strangers_change_no_bit_of_an_answer(cluster: Cluster, folder: Path, name: str) -> None:
    """Be they other values, infinite ones, longer, or what a slot held before."""
    model = Store(folder / "store").manifest(name).spec()
    cluster.resident(model, (0,))
    ceiling = model.symbols[0].ceilings[1]
    mine = request(model, ceiling - 9, 1, 100)
    answers = []
    for turn, other in enumerate((ceiling, ceiling - 9, ceiling - 3, ceiling)):
        strange = request(model, other, 3, turn)
        if turn and "x" in strange:
            strange["x"][:] = (np.inf, -np.inf, np.nan)[turn % 3]
        action = infer(
            *(cluster.next_id(), (1, 2), (1, 3)),
            batch_size=4,
            model=name,
            sizes=(ceiling,),
            request_sizes=((ceiling - 9,), (other,)),
        )
        cluster.say(action)
        for key, arrays in ((1, mine), (2, strange)):
            cluster.push(action.action_id, key, *[array.data for array in arrays.values()])
        outputs = {head.request_id: frames for head, frames in (cluster.output(), cluster.output())}
        assert cluster.result(action.action_id).status is Status.OK
        answers.append([bytes(frame) for frame in outputs[1]])
    assert answers.count(answers[0]) == len(answers)


def test_what_no_plan_is_for_is_refused(cluster: Cluster, folder: Path) -> None:
    model = Store(folder / "store").manifest("sounds").spec()
    cluster.resident(model, (0,))
    action = infer(cluster.next_id(), model="sounds", sizes=(20,))
    cluster.say(action)
    result = cluster.result(action.action_id)
    assert result.status is Status.BAD_ACTION
    assert "it runs at the ceilings of its buckets, here (32,), not at (20,)" in result.detail
