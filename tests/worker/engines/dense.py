"""A small real model for the tests of engines, and batches of it through a worker."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.store import Store
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from tests.worker.peers import Cluster, infer

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


def model(folder: Path, name: str) -> ModelSpec:
    """Return a model of the folder's store as the controller would tell of it."""
    return Store(folder / "store").manifest(name).spec()


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both inputs of so many rows."""
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


def check_many(cluster: Cluster, folder: Path, batches: list[tuple[str, int]]) -> None:
    """Run batches of one request each, by model and rows, all at once, and compare as `check` does."""
    stock = {
        name: onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name, _ in batches
    }
    expected, inputs = {}, {}
    for name, count in batches:
        action_id = cluster.next_id()
        x, k = rows(count, action_id)
        expected[action_id] = stock[name].run(["y", "mean"], {"x": x, "k": k})
        inputs[action_id] = infer(action_id, (1,), (count,), model=name), x, k
    for action_id, (action, x, k) in inputs.items():
        cluster.say(action)
        cluster.push(action_id, 1, x.data, k.data)
    for _ in batches:
        head, frames = cluster.output()
        for frame, wanted in zip(frames, expected[head.action_id], strict=True):
            found = np.frombuffer(frame, np.float32).reshape(wanted.shape)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    results = [cluster.result(action_id) for action_id in inputs]
    assert [result.status for result in results] == [Status.OK] * len(batches)
    for before, after in itertools.pairwise(results):
        assert before.end_ns <= after.begin_ns, "strictly in the order of their windows"


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
