"""Models with ``max_batch_size: 0`` in a cluster: their shapes are whole, over every protocol."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.gateway.grpc.messages import INFERENCE, methods
from tests.repository.nets import configure, put

QUICKSTART = """
name: "densenet"
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 8, 8 ]
    reshape { shape: [ 1, 3, 8, 8 ] }
  }
]
output [
  {
    name: "fc6_1"
    data_type: TYPE_FP32
    dims: [ 10 ]
    reshape { shape: [ 1, 10, 1, 1 ] }
    label_filename: "densenet_labels.txt"
  }
]
"""
"""Triton's own first model, but for its sizes."""
LABELS = [f"CLASS {index}" for index in range(10)]


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    **weights: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def densenet() -> onnx.ModelProto:
    kernel = np.random.default_rng(1).standard_normal((10, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["data_0", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["fc6_1"]),
    ]
    return made(nodes, {"data_0": [1, 3, 8, 8]}, {"fc6_1": [1, 10, 1, 1]}, w=kernel)


def no_batch() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return made(nodes, {"x": [3, 4]}, {"y": [3, 4]})


def recurrent() -> onnx.ModelProto:
    """A fixed batch of one, a state whose first axis is another, and an output without either."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["total"], keepdims=0),
        helper.make_node("Add", ["state", "total"], ["next"]),
    ]
    return made(
        nodes, {"x": [1, 4], "state": [2, 1, 3]}, {"total": [], "next": [2, 1, 3]}, b=np.ones(4, np.float32)
    )


def relative() -> onnx.ModelProto:
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"]), helper.make_node("Div", ["x", "m"], ["y"])]
    return made(nodes, {"x": ["n"]}, {"y": ["n"]})


def scalar() -> onnx.ModelProto:
    return made([helper.make_node("Neg", ["x"], ["y"])], {"x": []}, {"y": []})


class Site:
    """A cluster on a repository of such models."""

    def __init__(self, client: Client, http: str, channel: grpc.Channel) -> None:
        self.client = client
        self.http = http
        self.channel = channel

    def get(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.http}/v2/models/{path}", data, timeout=60) as reply:
            return json.loads(reply.read())

    def ask(self, method: str, **fields: Any) -> Any:
        found = methods(INFERENCE)[method]
        call = self.channel.unary_unary(
            f"/{INFERENCE}/{method}", lambda each: each.SerializeToString(), found.response.FromString
        )
        return call(found.request(**fields), timeout=60)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "repository"
    path.mkdir()
    for name, model, text in (
        ("densenet", densenet(), QUICKSTART),
        (
            "matrix",
            no_batch(),
            'max_batch_size: 0 input { name: "x" dims: [3, 4] } output { name: "y" dims: [3, 4] }',
        ),
        ("recurrent", recurrent(), "max_batch_size: 0"),
        ("relative", relative(), 'input { name: "x" dims: [-1] } output { name: "y" dims: [-1] }'),
        (
            "scalar",
            scalar(),
            'max_batch_size: 0 input { name: "x" dims: [1] } output { name: "y" dims: [1] }',
        ),
    ):
        configure(path, name, text)
        put(path, name, 1, model)
    (path / "densenet" / "densenet_labels.txt").write_text("\n".join(LABELS) + "\n")
    gateway, controller, control, http, rpc = free_ports(5)
    config = read_config(
        {
            "cluster": {"run_dir": str(folder / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 4},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http}",
                "grpc_address": f"grpc://127.0.0.1:{rpc}",
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
            "repository": {"path": str(path), "address": f"tcp://127.0.0.1:{control}", "settle_ms": 50.0},
        },
        "the test",
    )
    said: list[str] = []
    with (
        LocalCluster(make_plan(config), said.append) as cluster,
        Client(cluster.address) as client,
        grpc.insecure_channel(f"127.0.0.1:{rpc}") as channel,
    ):
        yield Site(client, f"http://127.0.0.1:{http}", channel)


def stock(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs))


def random(*shape: int) -> Any:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def test_the_quickstart_of_triton(site: Site) -> None:
    image = random(3, 8, 8)
    (expected,) = stock(densenet(), data_0=image[None])
    (found,) = site.client.infer("densenet", {"data_0": image}).values()
    np.testing.assert_allclose(found, expected.reshape(10), rtol=1e-4)
    metadata = site.get("densenet")
    assert [each["shape"] for each in (*metadata["inputs"], *metadata["outputs"])] == [[3, 8, 8], [10]]
    config = site.get("densenet/config")
    assert config["max_batch_size"] == 0
    (given,), (named,) = config["input"], config["output"]
    assert (given["dims"], given["format"]) == ([3, 8, 8], "FORMAT_NCHW")
    assert given["reshape"] == {"shape": [1, 3, 8, 8]}
    assert (named["dims"], named["label_filename"]) == ([10], "densenet_labels.txt")


def test_classes_of_a_whole_output(site: Site) -> None:
    image = random(3, 8, 8)
    (expected,) = stock(densenet(), data_0=image[None])
    order = [int(index) for index in np.argsort(-expected.reshape(10))[:3]]
    asked = {"name": "data_0", "datatype": "FP32", "shape": [3, 8, 8], "data": image.reshape(-1).tolist()}
    body = {"inputs": [asked], "outputs": [{"name": "fc6_1", "parameters": {"classification": 3}}]}
    (output,) = site.get("densenet/infer", body)["outputs"]
    assert output["shape"] == [3]
    assert [int(text.split(":")[1]) for text in output["data"]] == order
    assert [text.split(":")[2] for text in output["data"]] == [LABELS[index] for index in order]
    answer = site.ask(
        "ModelInfer",
        model_name="densenet",
        inputs=[{"name": "data_0", "datatype": "FP32", "shape": [3, 8, 8]}],
        outputs=[{"name": "fc6_1", "parameters": {"classification": {"int64_param": 2}}}],
        raw_input_contents=[image.tobytes()],
    )
    for index in order[:2]:
        assert f":{index}:{LABELS[index]}".encode() in answer.raw_output_contents[0]


def test_the_same_over_grpc(site: Site) -> None:
    image = random(3, 8, 8)
    (expected,) = stock(densenet(), data_0=image[None])
    metadata = site.ask("ModelMetadata", name="densenet")
    assert [*metadata.inputs[0].shape] == [3, 8, 8]
    config = site.ask("ModelConfig", name="densenet").config
    assert (config.max_batch_size, [*config.input[0].dims], config.input[0].format) == (0, [3, 8, 8], 2)
    assert config.output[0].label_filename == "densenet_labels.txt"
    answer = site.ask(
        "ModelInfer",
        model_name="densenet",
        inputs=[{"name": "data_0", "datatype": "FP32", "shape": [3, 8, 8]}],
        raw_input_contents=[image.tobytes()],
    )
    assert [*answer.outputs[0].shape] == [10]
    found = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(found, expected.reshape(10), rtol=1e-4)


def test_a_model_without_a_batch_takes_just_its_shape(site: Site) -> None:
    x = random(3, 4)
    (found,) = site.client.infer("matrix", {"x": x}).values()
    np.testing.assert_allclose(found, stock(no_batch(), x=x)[0], rtol=1e-6)
    metadata = site.get("matrix")
    assert metadata["inputs"][0]["shape"] == metadata["outputs"][0]["shape"] == [3, 4]
    with pytest.raises(MainspringError, match=r"takes just \[3, 4\]"):
        site.client.infer("matrix", {"x": x[:1]})
    with pytest.raises(MainspringError, match=r"takes just \[3, 4\]"):
        site.client.infer("matrix", {"x": x[None]})


def test_a_model_without_a_batch_takes_every_length_of_an_open_first_axis(site: Site) -> None:
    for size in (1, 2, 17, 500):
        x = np.linspace(1, 4, size, dtype=np.float32)
        (found,) = site.client.infer("relative", {"x": x}).values()
        np.testing.assert_allclose(found, stock(relative(), x=x)[0], rtol=1e-6)
    assert site.get("relative")["inputs"][0]["shape"] == [-1]


def test_a_fixed_batch_and_outputs_without_one(site: Site) -> None:
    x, state = random(1, 4), random(2, 1, 3)
    result = site.client.infer("recurrent", {"x": x, "state": state})
    total, after = stock(recurrent(), x=x, state=state)
    np.testing.assert_allclose(result["total"], total, rtol=1e-6)
    np.testing.assert_allclose(result["next"], after, rtol=1e-6)
    assert result["total"].shape == ()
    assert [each["shape"] for each in site.get("recurrent")["inputs"]] == [[1, 4], [2, 1, 3]]


def test_a_scalar_is_one_dimension_of_one(site: Site) -> None:
    (found,) = site.client.infer("scalar", {"x": np.array([3], np.float32)}).values()
    assert found.tolist() == [-3]
    assert site.get("scalar")["inputs"][0]["shape"] == [1]
