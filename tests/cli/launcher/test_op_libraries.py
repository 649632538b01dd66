"""Models with operators of onnxruntime-extensions, in the repository of a whole cluster."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_extensions
from onnx import helper

from mainspring.client.errors import MainspringError
from mainspring.cluster.membership import FATAL
from mainspring.messages.repository import ModelState
from tests.cli.launcher.test_repository import SLO_MS, Site, factor, wait_for
from tests.repository.nets import configure, put

CONTRIB, MICROSOFT = "ai.onnx.contrib", "com.microsoft.extensions"
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world")


def model(
    node: onnx.NodeProto, given: tuple[int, str | int], found: tuple[int, str | int]
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", given[0], [given[1]])], [value("y", found[0], [found[1]])]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(node.domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def tokenizer() -> onnx.ModelProto:
    node = helper.make_node(
        "BertTokenizer", ["x"], ["y", "types", "mask"], domain=CONTRIB, vocab_file="\n".join(WORDS)
    )
    return model(node, (onnx.TensorProto.STRING, 1), (onnx.TensorProto.INT64, "L"))


def decoder(node: onnx.NodeProto) -> onnx.ModelProto:
    found = model(node, (onnx.TensorProto.UINT8, "L"), (onnx.TensorProto.UINT8, "H"))
    found.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, ["H", "W", 3]))
    return found


def upper() -> onnx.ModelProto:
    node = helper.make_node("StringUpper", ["x"], ["y"], name="up", domain=CONTRIB)
    return model(node, (onnx.TensorProto.STRING, "N"), (onnx.TensorProto.STRING, "N"))


def test_what_the_operator_allows_is_served_and_nothing_else_is_loaded(tmp_path: Path) -> None:
    site = Site(tmp_path)
    put(site.path, "tokens", 1, tokenizer().SerializeToString())
    with site.cluster() as (_, client):
        (entry,) = site.index("tokens").values()
        assert entry.state is ModelState.UNAVAILABLE
        assert "BertTokenizer of the domain 'ai.onnx.contrib'" in entry.reason
        assert 'op_libraries = ["onnxruntime-extensions"]' in entry.reason
    with site.cluster(op_libraries=("onnxruntime-extensions",)) as (_, client):
        for words, ids in (("hello world", [2, 5, 6, 3]), ("world hello world", [2, 6, 5, 6, 3])):
            result = client.infer("tokens", {"x": np.array([words])}, slo_ms=SLO_MS)
            assert result["y"].tolist() == ids


def test_a_configuration_may_name_libraries_of_a_folder_that_is_allowed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    put(site.path, "upper", 1, upper().SerializeToString())
    shutil.copy(onnxruntime_extensions.get_library_path(), site.path / "upper" / "1" / "mine.so")
    with site.cluster(op_libraries=(str(site.path),)) as (_, client):
        assert "op_libraries" in site.index("upper")["1"].reason, "no configuration names it"
        configure(site.path, "upper", 'model_operations { op_library_filename: "mine.so" }')
        wait_for(lambda: bool(client.models()), "the model")
        assert client.infer("upper", {"x": np.array(["abc"])}, slo_ms=SLO_MS)["y"].tolist() == [b"ABC"]


def test_a_model_that_ends_its_workers_is_given_up_and_another_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    node = helper.make_node("DecodeImage", ["x"], ["y"], domain=MICROSOFT)
    put(site.path, "decode", 1, decoder(node).SerializeToString())
    put(site.path, "net", 1, 2.0)
    nonsense = np.arange(200, dtype=np.uint8)
    with site.cluster(op_libraries=("onnxruntime-extensions",)) as (_, client):
        said: list[str] = []

        def given_up() -> bool:
            try:
                client.infer("decode", {"x": nonsense}, slo_ms=SLO_MS)
            except MainspringError as error:
                said.append(str(error))
            return FATAL in said[-1]

        wait_for(given_up, "the model to be given up", 120)

        def why_not_ready(model: str) -> str:
            try:
                with urllib.request.urlopen(f"{site.http}/v2/models/{model}/ready", timeout=60):
                    return ""
            except urllib.error.HTTPError as error:
                return error.read().decode()

        wait_for(lambda: FATAL in why_not_ready("decode"), "readiness to say why")
        entries = {entry["name"]: entry for entry in site.post("/v2/repository/index")}
        assert FATAL in entries["decode"]["reason"]
        wait_for(lambda: not why_not_ready("net"), "the last worker to be back")
        assert factor(client) == 2.0
