"""Models with operators of onnxruntime-extensions, in the repository of a whole cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_extensions
from onnx import helper

from mainspring.messages.repository import ModelState
from tests.cli.launcher.test_repository import SLO_MS, Site, wait_for
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
