"""Real models through the worker: what comes back is what a stock ONNX Runtime session returns."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.store import Store
from mainspring.messages.actions import Prepare, Release, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.config import MIB
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.integrity import Integrity
from tests.worker.peers import Cluster, infer, load

Start = Callable[..., Cluster]
WIDTH = 1100
"""A square matrix of floats as wide as this, times four, spans pages."""


def dense(path: Path, seed: int) -> None:
    """Save a model with a tensor that spans pages, an integer input and two outputs."""
    random = np.random.default_rng(seed)
    wide = random.standard_normal((WIDTH, 4 * WIDTH), np.float32) / WIDTH
    bias = random.standard_normal(4 * WIDTH, np.float32)
    nodes = [
        helper.make_node("Cast", ["k"], ["kf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "kf"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "wide"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["mean"], axes=[1], keepdims=1),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH]),
            helper.make_tensor_value_info("k", TensorProto.INT64, ["N", 1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4 * WIDTH]),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["N", 1]),
        ],
        [numpy_helper.from_array(wide, "wide"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a.onnx`` and ``b.onnx``, one graph with other weights, and ``store`` with both compiled."""
    path = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        dense(path / f"{name}.onnx", seed)
        compile_file(path / f"{name}.onnx", name, Store(path / "store"), (1, 2, 4))
    return path


def model(folder: Path, name: str) -> ModelSpec:
    return Store(folder / "store").manifest(name).spec()


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, WIDTH), np.float32), random.integers(1, 9, (count, 1))


def check(cluster: Cluster, folder: Path, name: str, counts: tuple[int, ...], batch_size: int) -> None:
    """Run one batch of several requests and compare each one's outputs with the stock session's."""
    stock = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    requests = {key: rows(count, 100 + key) for key, count in enumerate(counts)}
    action = infer(cluster.next_id(), tuple(requests), counts, batch_size=batch_size, model=name)
    cluster.say(action)
    for key, (x, k) in requests.items():
        cluster.push(action.action_id, key, x.data, k.data)
    for _ in requests:
        head, frames = cluster.output()
        x, k = requests[head.request_id]
        expected = stock.run(["y", "mean"], {"x": x, "k": k})
        for frame, wanted in zip(frames, expected, strict=True):
            found = np.frombuffer(frame, np.float32).reshape(wanted.shape)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    result = cluster.result(action.action_id)
    assert result.status is Status.OK, result
    assert 0 < result.device_ns <= result.end_ns - result.begin_ns


def test_outputs_are_those_of_a_stock_session(start: Start, folder: Path) -> None:
    cluster = start(engine="onnxruntime", store=str(folder / "store"), io_bytes=4 * MIB)
    a, b = model(folder, "a"), model(folder, "b")
    assert a.executable == b.executable
    assert a.extents == (2,), "the test needs a tensor that spans pages"
    cluster.resident(a, (6, 7))
    cluster.resident(b, (2, 3))
    for counts, batch_size in [((1,), 1), ((1, 1), 2), ((2, 1), 4), ((1, 2, 1), 4), ((3,), 4)]:
        for name in ("a", "b"):
            check(cluster, folder, name, counts, batch_size)
    assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
    assert cluster.do(load(cluster.next_id(), (4, 5), "a")).status is Status.OK
    check(cluster, folder, "a", (1, 1), 2)
    check(cluster, folder, "b", (1,), 1)


def test_models_take_turns_in_the_same_pages(start: Start, folder: Path) -> None:
    """The second and every later model finds the weights bound there, and must run on its own."""
    cluster = start(engine="onnxruntime", store=str(folder / "store"), io_bytes=4 * MIB)
    for name in ("a", "b"):
        assert cluster.do(Prepare(cluster.next_id(), "w", model(folder, name))).status is Status.OK
    for name in ("a", "b", "a", "b"):
        assert cluster.do(load(cluster.next_id(), (2, 3), name)).status is Status.OK
        for counts, batch_size in [((1,), 1), ((2, 1), 4)]:
            check(cluster, folder, name, counts, batch_size)
        assert cluster.do(Unload(cluster.next_id(), "w", name)).status is Status.OK


def test_released_model_can_be_prepared_again(start: Start, folder: Path) -> None:
    cluster = start(engine="onnxruntime", store=str(folder / "store"), io_bytes=4 * MIB)
    cluster.resident(model(folder, "a"), (0, 1))
    for action in (Unload(cluster.next_id(), "w", "a"), Release(cluster.next_id(), "w", "a")):
        assert cluster.do(action).status is Status.OK
    cluster.resident(model(folder, "a"), (1, 2))
    check(cluster, folder, "a", (1,), 1)


def test_artifact_other_than_the_controllers_is_refused(start: Start, folder: Path) -> None:
    cluster = start(engine="onnxruntime", store=str(folder / "store"))
    for wrong in (
        msgspec.structs.replace(model(folder, "a"), name="nobody"),
        msgspec.structs.replace(model(folder, "a"), name="../a"),
        msgspec.structs.replace(model(folder, "a"), name="b"),
        msgspec.structs.replace(model(folder, "a"), batch_sizes=(1, 8)),
    ):
        result = cluster.do(Prepare(cluster.next_id(), "w", wrong))
        assert result.status is Status.ENGINE_ERROR
        assert result.detail
    cluster.resident(model(folder, "a"), (0, 1))
    check(cluster, folder, "a", (1,), 1)


@pytest.fixture
def own_store(folder: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may damage."""
    shutil.copytree(folder / "store", tmp_path / "store")
    return tmp_path / "store"


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_weights_cut_short_fail_the_load_and_nothing_else(
    start: Start, folder: Path, own_store: Path
) -> None:
    cluster = start(engine="onnxruntime", store=str(own_store))
    a = model(folder, "a")
    assert cluster.do(Prepare(cluster.next_id(), "w", a)).status is Status.OK
    with (own_store / "weights" / f"{a.weights_hash}.bin").open("r+b") as file:
        file.truncate(PAGE_BYTES + 5)
    result = cluster.do(load(cluster.next_id(), (0, 1), "a"))
    assert result.status is Status.ENGINE_ERROR
    assert "was altered" in result.detail
    cluster.resident(model(folder, "b"), (0, 1))
    check(cluster, folder, "b", (1,), 1)


@pytest.mark.parametrize("victim", ["weights", "executable"])
def test_an_altered_file_is_refused_at_prepare_with_its_remedy(
    start: Start, folder: Path, own_store: Path, victim: str
) -> None:
    a = model(folder, "a")
    weights = own_store / "weights" / f"{a.weights_hash}.bin"
    graph = own_store / "executables" / a.executable / "graph.onnx"
    altered = weights if victim == "weights" else graph
    flip(altered)
    cluster = start(engine="onnxruntime", store=str(own_store))
    result = cluster.do(Prepare(cluster.next_id(), "w", a))
    assert result.status is Status.ENGINE_ERROR
    assert f"{altered} was altered after it was compiled; `mainspring compile" in result.detail
    flip(altered)
    cluster.resident(a, (0, 1))
    check(cluster, folder, "a", (1,), 1)


def test_weights_altered_after_prepare_fail_the_next_load(
    start: Start, folder: Path, own_store: Path
) -> None:
    a = model(folder, "a")
    cluster = start(engine="onnxruntime", store=str(own_store))
    cluster.resident(a, (0, 1))
    flip(own_store / "weights" / f"{a.weights_hash}.bin")
    check(cluster, folder, "a", (1,), 1)
    assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
    result = cluster.do(load(cluster.next_id(), (0, 1), "a"))
    assert result.status is Status.ENGINE_ERROR
    assert "was altered" in result.detail


def test_a_file_is_hashed_once_for_each_state_of_it(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"right")
    integrity = Integrity()
    descriptor = os.open(path, os.O_RDWR)
    try:
        expected = hashlib.sha256(b"right").hexdigest()
        integrity.check(descriptor, expected, path, "compile it again")
        as_it_was = path.stat()
        os.pwrite(descriptor, b"wrong", 0)
        os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
        # Length and time are as before: it is not read again.
        integrity.check(descriptor, expected, path, "compile it again")
        os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns + 1))
        with pytest.raises(EngineError, match=r"weights.bin was altered .*compile it again"):
            integrity.check(descriptor, expected, path, "compile it again")
    finally:
        os.close(descriptor)
