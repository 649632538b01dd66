"""Requests with odd shapes, texts, classes and sequences at a real cluster, by each way in.

Each is refused with what is wrong and what would be right, and right requests are served afterwards.
"""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from mainspring import Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.sample_forms import described
from mainspring.worker.config import MIB
from tests.gateway.fakes import wait_until
from tests.made_models import Made, save
from tests.patience import PATIENCE_S

PAIR = "g (float[N,S,2] a, float[N,S,2] b) => (float[N,S,2] y) { y = Add(a, b) }"
PICK = f"""g (int64[N] i) => (float[N,3] y) <float[7,3] w = {{{", ".join(map(str, range(21)))}}}> {{
    y = Gather(w, i)
}}"""
TEXTS = "g (string[N] x, string[N] z) => (string[N] y) { y = StringConcat(x, z) }"
STREAM = "g (float[N,2] x, float[N,2] h) => (float[N,2] y, float[N,2] o) { y = Add(x, h) o = Add(x, h) }"
LOOP = """g (float[2,2] x, int64 steps) => (float[2,2] y) {
    y = Loop(steps, go, x) <body = b (int64 i, bool c, float[2,2] h) => (bool o, float[2,2] r) {
        o = Identity(c) r = Tanh(h) }>
}"""
MOST_SEQUENCES = 3
DTYPES = {"FP32": np.float32, "INT64": np.int64}
WAYS = ("json", "binary", "grpc")
LONGEST_TEXT = 1_024


class Tensor(NamedTuple):
    """An input as it is sent, whether its shape and values belong together or not."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]

    @property
    def raw(self) -> bytes:
        """The values as bytes."""
        if self.datatype == "BYTES":
            texts = [text.encode() for text in self.values]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return np.array(self.values, DTYPES[self.datatype]).tobytes()


class Reply(NamedTuple):
    """An answer, or why there is none."""

    status: str
    """``ok``, ``refused`` (400, INVALID_ARGUMENT), or what else the server said."""
    detail: str
    shapes: dict[str, list[int]]


class Doors:
    """The two addresses of a cluster, and what is asked there."""

    def __init__(self, http_host: str, grpc_host: str) -> None:
        self._http, self._channel = http_host, grpc.insecure_channel(grpc_host)
        self._call = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            lambda message: message.SerializeToString(),
            service_pb2.ModelInferResponse.FromString,
        )

    def close(self) -> None:
        self._channel.close()

    def ask(
        self, way: str, model: str, inputs: Sequence[Tensor], classes: int | None = None, **given: Any
    ) -> Reply:
        """Send a request as it is; ``given`` are its parameters, ``classes`` are wanted of the output y."""
        asked = self._by_grpc if way == "grpc" else self._by_http
        return asked(model, inputs, classes, given, binary=way == "binary")

    def _by_grpc(
        self,
        model: str,
        inputs: Sequence[Tensor],
        classes: int | None,
        given: dict[str, Any],
        *,
        binary: bool,
    ) -> Reply:
        del binary
        message = service_pb2.ModelInferRequest(model_name=model)
        for tensor in inputs:
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(tensor.raw)
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
        for name, value in given.items():
            setattr(message.parameters[name], kinds[type(value)], value)
        if classes is not None:
            message.outputs.add(name="y").parameters["classification"].int64_param = classes
        try:
            response = self._call(message, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            code = error.code().name
            return Reply("refused" if code == "INVALID_ARGUMENT" else code, error.details() or "", {})
        return Reply("ok", "", {each.name: list(each.shape) for each in response.outputs})

    def _by_http(
        self,
        model: str,
        inputs: Sequence[Tensor],
        classes: int | None,
        given: dict[str, Any],
        *,
        binary: bool,
    ) -> Reply:
        body: dict[str, Any] = {"inputs": [], "parameters": given}
        for each in inputs:
            content = {"parameters": {"binary_data_size": len(each.raw)}} if binary else {"data": each.values}
            body["inputs"].append(
                {"name": each.name, "datatype": each.datatype, "shape": each.shape, **content}
            )
        if classes is not None:
            body["outputs"] = [{"name": "y", "parameters": {"classification": classes}}]
        head = json.dumps(body).encode()
        tail = b"".join(each.raw for each in inputs) if binary else b""
        headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
        line = http.client.HTTPConnection(self._http, timeout=PATIENCE_S)
        try:
            line.request("POST", f"/v2/models/{model}/infer", head + tail, headers)
            reply = line.getresponse()
            said = json.loads(reply.read())
        finally:
            line.close()
        if reply.status == http.client.OK:
            return Reply("ok", "", {each["name"]: each["shape"] for each in said["outputs"]})
        return Reply(
            "refused" if reply.status == http.client.BAD_REQUEST else str(reply.status), said["error"], {}
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("odd")
    store = Store(made / "store")

    def compiled(name: str, graph: str, opset: int = 17, **more: Any) -> None:
        save(
            Made(name, graph, {"go": np.array(True)} if name == "loop" else {}, opset, 9),
            made / f"{name}.onnx",
        )
        compile_file(made / f"{name}.onnx", name, store, (1,) if name == "loop" else (1, 2), **more)

    (made / "brief.toml").write_text("[sequence]\nidle_s = 0.2\n")
    compiled("pair", PAIR, most={"S": 16})
    compiled("pick", PICK)
    compiled("texts", TEXTS, 20)
    compiled("loop", LOOP)
    compiled("stream", STREAM, described=described(None, ["h=o"]))
    compiled("brief", STREAM, described=described(made / "brief.toml", ["h=o"]))
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    gateway, controller, http_port, grpc_port = free_ports(4)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(folder / "run"),
                "ready_timeout_s": 90,
            },
            "worker": {"pages": 8, "io_bytes": 64 * MIB, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http_port}",
                "grpc_address": f"grpc://127.0.0.1:{grpc_port}",
                "max_sequences": MOST_SEQUENCES,
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    (folder / "http").write_text(f"127.0.0.1:{http_port}")
    (folder / "grpc").write_text(f"127.0.0.1:{grpc_port}")
    with LocalCluster(make_plan(config), lambda _: None) as each:
        yield each


@pytest.fixture(scope="module")
def doors(cluster: LocalCluster, folder: Path) -> Iterator[Doors]:
    each = Doors((folder / "http").read_text(), (folder / "grpc").read_text())
    yield each
    each.close()


def pair(a: Sequence[int], b: Sequence[int] | None = None, values: int = 4) -> list[Tensor]:
    return [
        Tensor("a", "FP32", a, [1.0] * values),
        Tensor("b", "FP32", a if b is None else b, [1.0] * values),
    ]


def picked(index: int) -> list[Tensor]:
    return [Tensor("i", "INT64", [1], [index])]


def text(x: str, z: str = "z") -> list[Tensor]:
    return [Tensor("x", "BYTES", [1], [x]), Tensor("z", "BYTES", [1], [z])]


def chunk(rows: int = 1) -> list[Tensor]:
    return [Tensor("x", "FP32", [rows, 2], [1.0, 2.0] * rows)]


def check_served(doors: Doors, way: str) -> None:
    assert doors.ask(way, "pair", pair([1, 2, 2])) == Reply("ok", "", {"y": [1, 2, 2]})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (pair([1, 17, 2], values=34), "S is 17; the model takes S from 1 to 16"),
        (pair([1, 0, 2], values=0), "S is 0; the model takes S from 1 to 16"),
        (pair([0, 2, 2], values=0), "takes [rows, 2, 2] with at least one row"),
        (pair([1, 2, 2], [2, 1, 2]), "S is 1 in input 'b' and 2 in input 'a'; it has one size in a request"),
        (pair([2]), "input 'a' has shape [2]; model 'pair' takes [rows, S, 2]"),
        (pair([]), "input 'a' has shape []; model 'pair' takes [rows, S, 2]"),
        (pair([1, 2, 2, 1]), "input 'a' has shape [1, 2, 2, 1]; model 'pair' takes [rows, 2, 2]"),
        (pair([1, -2, 2]), "S is -2; the model takes S from 1 to 16"),
        (pair([-1, -2, -2]), "S is -2; the model takes S from 1 to 16"),
        (pair([-1, 2, 2]), "input 'a' has shape [-1, 2, 2]; model 'pair' takes"),
        (pair([1, 1 << 31, 2]), "S is 2147483648; the model takes S from 1 to 16"),
        (pair([4, (1 << 63) - 1, 2]), "S is 9223372036854775807; the model takes S from 1 to 16"),
        (pair([1 << 40, 2, 2]), "1099511627776 rows are more than model 'pair' takes at once (4096)"),
        (pair([4097, 1, 2], values=8194), "4097 rows are more than model 'pair' takes at once (4096)"),
        (pair([1, 2, 2], values=3), "shape"),
        (pair([1, 2, 2], values=5), "shape"),
    ],
    ids=lambda each: str([list(tensor.shape) for tensor in each]) if isinstance(each, list) else "",
)
def test_shapes_that_no_model_has(doors: Doors, way: str, inputs: list[Tensor], says: str) -> None:
    found = doors.ask(way, "pair", inputs)
    assert found.status == "refused", found
    assert says in found.detail
    check_served(doors, way)


@pytest.mark.parametrize("way", WAYS)
def test_texts_beyond_their_bound(doors: Doors, way: str) -> None:
    assert doors.ask(way, "texts", text("x" * (LONGEST_TEXT - 1))).status == "ok"
    for longer in ("x" * (LONGEST_TEXT + 1), "ü" * (LONGEST_TEXT // 2 + 1)):
        found = doors.ask(way, "texts", text(longer))
        assert found.status == "refused"
        assert f"element 0 of input 'x' has {len(longer.encode()):,} bytes; at most 1,024 fit" in found.detail
    # What the model makes longer is known only after its run.
    found = doors.ask(way, "texts", text("x" * 600, "z" * 600))
    assert found.status == "refused"
    assert "element 0 of output 0 has 1,200 bytes; at most 1,024 fit" in found.detail
    check_served(doors, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", [7, -8, 1 << 62])
def test_values_that_a_model_fails_on(doors: Doors, way: str, index: int) -> None:
    found = doors.ask(way, "pick", picked(index))
    assert found.status == "refused"
    assert "bad_values: the model's node Gather" in found.detail
    assert f"idx={index} must be within the inclusive range [-7,6]" in found.detail
    assert doors.ask(way, "pick", picked(6)) == Reply("ok", "", {"y": [1, 3]})


@pytest.mark.parametrize("way", WAYS)
def test_values_that_a_model_fails_on_beside_others(doors: Doors, way: str) -> None:
    """Those of a batch that fails are run again alone."""
    indices = [7 if turn % 4 == 3 else turn % 7 for turn in range(48)]
    with ThreadPoolExecutor(16) as clients:
        replies = list(clients.map(lambda index: doors.ask(way, "pick", picked(index)), indices))
    assert [each.status == "ok" for each in replies] == [index < 7 for index in indices]


@pytest.mark.parametrize("way", WAYS)
def test_more_classes_than_there_are(doors: Doors, way: str) -> None:
    for classes in (5, 1 << 62):
        assert doors.ask(way, "pair", pair([1, 2, 2]), classes=classes).shapes == {"y": [1, 4]}
    found = doors.ask(way, "pair", pair([1, 2, 2]), classes=-1)
    assert found.status == "refused"
    assert "output 'y' has classification -1; it is a number of classes" in found.detail


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scalar", [[], [1]])
def test_a_loop_of_fewer_than_no_steps(doors: Doors, way: str, scalar: list[int]) -> None:
    inputs = [Tensor("x", "FP32", [2, 2], [1.0] * 4), Tensor("steps", "INT64", scalar, [-5])]
    assert doors.ask(way, "loop", inputs) == Reply("ok", "", {"y": [2, 2]})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sequence", "says"),
    [
        (0, "must specify a non-zero or non-empty correlation ID"),
        ("", "must specify a non-zero or non-empty correlation ID"),
        (-3, "sequence_id is -3; a number is from 1 to"),
        ("x" * 129, "the sequence_id has 129 bytes; it may have 128"),
        (True, "sequence_id is True; it is a number or a text"),
        (99, "sequence 99 to model 'stream' must specify the START flag"),
    ],
)
def test_sequences_that_are_none(doors: Doors, way: str, sequence: int | str, says: str) -> None:
    found = doors.ask(way, "stream", chunk(), sequence_id=sequence, sequence_start=sequence != 99)
    assert found.status == "refused", found
    assert says in found.detail


@pytest.mark.parametrize("way", WAYS)
def test_a_sequence_that_begins_and_ends_twice(doors: Doors, way: str) -> None:
    for _ in range(2):
        assert doors.ask(way, "stream", chunk(), sequence_id=7, sequence_start=True).status == "ok"
    found = doors.ask(way, "stream", chunk(2), sequence_id=7)
    assert found.status == "refused"
    assert "sequence 7 has 1 rows and this request 2" in found.detail
    assert doors.ask(way, "stream", chunk(), sequence_id=7, sequence_end=True).status == "ok"
    found = doors.ask(way, "stream", chunk(), sequence_id=7, sequence_end=True)
    assert found.status == "refused"
    assert "must specify the START flag" in found.detail


@pytest.mark.parametrize("way", WAYS)
def test_more_sequences_than_the_bound(doors: Doors, way: str) -> None:
    ids = range(1, MOST_SEQUENCES + 1)
    assert {
        doors.ask(way, "stream", chunk(), sequence_id=each, sequence_start=True).status for each in ids
    } == {"ok"}
    found = doors.ask(way, "stream", chunk(), sequence_id=50, sequence_start=True)
    assert found.status in ("503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED"), found
    assert "overloaded" in found.detail
    assert str(MOST_SEQUENCES) in found.detail
    assert {
        doors.ask(way, "stream", chunk(), sequence_id=each, sequence_end=True).status for each in ids
    } == {"ok"}
    assert (
        doors.ask(way, "stream", chunk(), sequence_id=50, sequence_start=True, sequence_end=True).status
        == "ok"
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_sequence_that_never_ends_is_dropped(cluster: LocalCluster, doors: Doors, way: str) -> None:
    with Client(cluster.address) as client:

        def dropped() -> int:
            return client.status().dropped_messages.get("sequences_idle", 0)

        before = dropped()
        assert doors.ask(way, "brief", chunk(), sequence_id=4, sequence_start=True).status == "ok"
        wait_until(lambda: dropped() == before + 1, PATIENCE_S)
    found = doors.ask(way, "brief", chunk(), sequence_id=4)
    assert found.status == "refused"
    assert "was idle for too long" in found.detail
