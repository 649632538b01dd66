"""Models with open dimensions through the worker: any sizes, outputs as a stock session's on the file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mainspring.compiler.artifact.manifest import ONNXRUNTIME
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.messages.actions import Infer
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec, bucket_name
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engines.cpu import CpuEngine, _StagedRun
from tests.compiler import open_models
from tests.worker.peers import Cluster, infer

CASES: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "lengths": (open_models.lengths(), {"seq": 100}),
    "images": (open_models.images(), {"h": 40, "w": 64}),
    "flattened": (open_models.images(flat=True), {"h": 40, "w": 64}),
    "longer": (open_models.with_class_token(), {"seq": 64}),
    "positions": (open_models.positions(), {}),
    "two": (open_models.two_inputs(), {"a.1": 50}),
    "whole": (open_models.whole(), {"seq": 70}),
    "masked": (open_models.attention(), {"seq": 60}),
}
PADS = {"masked": {"mask": 0.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each case, and ``store`` with all of them."""
    path = tmp_path_factory.mktemp("open")
    for name, (model, most) in CASES.items():
        file = open_models.save(model, path / f"{name}.onnx")
        compile_file(file, name, Store(path / "store"), (1, 2, 4), most=most, pad=PADS.get(name))
    return path


def drawn(model: ModelSpec, sizes: tuple[int, ...], rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        each.name: random.integers(0, 40, model.client_shape(each.at(sizes), rows)).astype(each.dtype)
        for each in model.inputs
    }


def carry_out(
    cluster: Cluster,
    action: Infer,
    requests: dict[int, dict[str, np.ndarray]],
    stock: onnxruntime.InferenceSession,
) -> None:
    """Run a batch of these requests, and compare each one's outputs with the stock's."""
    cluster.say(action)
    for key, arrays in requests.items():
        cluster.push(action.action_id, key, *[array.data for array in arrays.values()])
    for _ in requests:
        head, frames = cluster.output()
        for frame, expected in zip(frames, stock.run(None, requests[head.request_id]), strict=True):
            found = np.frombuffer(frame, expected.dtype).reshape(expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert cluster.result(action.action_id).status is Status.OK


def check(
    cluster: Cluster, folder: Path, model: ModelSpec, sizes: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    """Run a batch of requests of one shape, by the name of its bucket, and compare each one's outputs."""
    stock = onnxruntime.InferenceSession(folder / f"{model.name}.onnx")
    requests = {key: drawn(model, sizes, count, key) for key, count in enumerate(counts)}
    size = min(each for each in model.batch_sizes if each >= sum(counts))
    name = f"{model.name}@{bucket_name(model.bucket_of(sizes))}"
    action = infer(cluster.next_id(), tuple(requests), counts, batch_size=size, model=name, sizes=sizes)
    carry_out(cluster, action, requests, stock)


@pytest.mark.parametrize("name", CASES)
def test_any_sizes_are_served(start: Callable[..., Cluster], folder: Path, name: str) -> None:
    cluster = start(engine=ONNXRUNTIME, store=str(folder / "store"), io_bytes=4 * MIB)
    model = Store(folder / "store").manifest(name).spec()
    cluster.resident(model, (0,))
    random = np.random.default_rng(7)
    corners = [tuple(each.least for each in model.symbols), tuple(each.limit for each in model.symbols)]
    others = [
        tuple(int(random.integers(each.least, each.limit + 1)) for each in model.symbols) for _ in range(5)
    ]
    for sizes in (*corners, *others, corners[0]):
        for counts in ((1,),) if model.whole else ((1,), (2, 1), (1, 1, 2)):
            check(cluster, folder, model, sizes, counts)


def test_staged_batches_have_sizes_of_their_own(
    start: Callable[..., Cluster], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[_StagedRun] = []
    run = _StagedRun.run

    def counted(each: _StagedRun) -> int:
        staged.append(each)
        return run(each)

    monkeypatch.setattr(_StagedRun, "run", counted)
    execute = CpuEngine.execute

    def slow(engine: CpuEngine, action: Infer, io: Reservation) -> int:
        """So that others come while this one runs."""
        time.sleep(0.01)
        return execute(engine, action, io)

    monkeypatch.setattr(CpuEngine, "execute", slow)
    cluster = start(engine=ONNXRUNTIME, store=str(folder / "store"), io_bytes=4 * MIB)
    model = Store(folder / "store").manifest("lengths").spec()
    cluster.resident(model, (0,))
    stock = onnxruntime.InferenceSession(folder / "lengths.onnx")
    for attempt in range(50):
        actions = [
            infer(cluster.next_id(), model="lengths", sizes=(5 + (attempt + step) % 60,))
            for step in range(16)
        ]
        arrays = {each.action_id: drawn(model, each.sizes, 1, each.action_id) for each in actions}
        for each in actions:
            cluster.say(each)
            cluster.push(each.action_id, 1, *[array.data for array in arrays[each.action_id].values()])
        for _ in actions:
            head, frames = cluster.output()
            for frame, expected in zip(frames, stock.run(None, arrays[head.action_id]), strict=True):
                found = np.frombuffer(frame, expected.dtype).reshape(expected.shape)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert all(cluster.result(each.action_id).status is Status.OK for each in actions)
        if len(staged) > 4:
            return
    pytest.fail("no batch was staged")


def test_inputs_of_other_sizes_are_refused(start: Callable[..., Cluster], folder: Path) -> None:
    cluster = start(engine=ONNXRUNTIME, store=str(folder / "store"), io_bytes=4 * MIB)
    model = Store(folder / "store").manifest("lengths").spec()
    cluster.resident(model, (0,))
    action = infer(cluster.next_id(), model="lengths", sizes=(9,))
    cluster.say(action)
    cluster.push(action.action_id, 1, np.zeros((1, 10, 8), np.float32).data)
    result = cluster.result(action.action_id)
    assert result.status is Status.INPUT_MISSING
    assert "x has 320 bytes, 1 rows have 288" in result.detail
    check(cluster, folder, model, (9,), (1,))


@pytest.mark.parametrize("name", ["lengths", "masked"])
def test_padded_requests_get_their_own_answers(
    start: Callable[..., Cluster], folder: Path, name: str
) -> None:
    cluster = start(engine=ONNXRUNTIME, store=str(folder / "store"), io_bytes=4 * MIB)
    model = Store(folder / "store").manifest(name).spec()
    cluster.resident(model, (0,))
    stock = onnxruntime.InferenceSession(folder / f"{name}.onnx")
    random = np.random.default_rng(11)
    for ceiling, below in zip(model.symbols[0].ceilings[1:], model.symbols[0].ceilings, strict=False):
        own = tuple((int(size),) for size in random.integers(below + 1, ceiling + 1, size=3))
        requests = {key: drawn(model, sizes, 1 + key % 2, key) for key, sizes in enumerate(own)}
        for arrays in requests.values():
            if "mask" in arrays:
                arrays["mask"] %= 2
                arrays["mask"][:, 0] = 1
        most = max(own)
        different = () if len({*own}) == 1 else own
        action = infer(
            *(cluster.next_id(), (0, 1, 2), (1, 2, 1)),
            batch_size=4,
            model=name,
            sizes=most,
            request_sizes=different,
        )
        carry_out(cluster, action, requests, stock)
