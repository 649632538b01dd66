from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.model_file import read_model

MakeModel = Callable[..., onnx.ModelProto]


def save_external(model: onnx.ModelProto, path: Path) -> None:
    onnx.save_model(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)


def relocate(path: Path, key: str, value: str) -> None:
    """Change one entry of all external data in the file."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value
    path.write_bytes(model.SerializeToString())


def test_external_data_is_read_and_hashed(tmp_path: Path, make_mlp: MakeModel) -> None:
    save_external(make_mlp(1), tmp_path / "m.onnx")
    model, digest = read_model(tmp_path / "m.onnx")
    assert {t.name: t.raw_data for t in model.graph.initializer} == {
        t.name: t.raw_data for t in make_mlp(1).graph.initializer
    }
    data = bytearray((tmp_path / "weights.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.data").write_bytes(data)
    assert read_model(tmp_path / "m.onnx")[1] != digest


def test_missing_external_data_is_named(tmp_path: Path, make_mlp: MakeModel) -> None:
    save_external(make_mlp(1), tmp_path / "m.onnx")
    (tmp_path / "weights.data").unlink()
    with pytest.raises(CompileError, match=r"external data of tensor 'a' is missing: .*weights\.data"):
        read_model(tmp_path / "m.onnx")


def test_external_data_may_be_in_several_files_and_parts_of_files(
    tmp_path: Path, make_mlp: MakeModel
) -> None:
    model = make_mlp(1)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    shared, begin = bytearray(b"before"), {}
    for index, tensor in enumerate(reversed(model.graph.initializer)):
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        if index == 0:
            (tmp_path / "own.bin").write_bytes(content)
            tensor.external_data.add(key="location", value="own.bin")
            continue
        begin[tensor.name] = len(shared)
        shared += content + bytes(index)
        for key, value in (("location", "./deep/er/shared.bin"), ("length", len(content))):
            tensor.external_data.add(key=key, value=str(value))
        tensor.external_data.add(key="offset", value=str(begin[tensor.name]))
    assert len(begin) > 1
    (tmp_path / "deep" / "er" / "shared.bin").write_bytes(shared)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    read, _ = read_model(tmp_path / "m.onnx")
    assert {t.name: t.raw_data for t in read.graph.initializer} == {
        t.name: t.raw_data for t in make_mlp(1).graph.initializer
    }


def test_a_model_and_its_data_may_be_links_into_one_folder(tmp_path: Path, make_mlp: MakeModel) -> None:
    """As `huggingface_hub` keeps what it fetches: links of one snapshot to files named by their hashes."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_external(make_mlp(1), blobs / "m.onnx")
    (blobs / "weights.data").rename(blobs / "4f2c")
    (blobs / "m.onnx").rename(blobs / "8a31")
    (snapshot / "weights.data").symlink_to("../../blobs/4f2c")
    (snapshot / "m.onnx").symlink_to("../../blobs/8a31")
    model, _ = read_model(snapshot / "m.onnx")
    assert len(model.graph.initializer[0].raw_data) > 0
    (tmp_path / "secret").write_bytes(bytes(10_000))
    (snapshot / "weights.data").unlink()
    (snapshot / "weights.data").symlink_to("../../secret")
    with pytest.raises(CompileError, match="outside the model's folder"):
        read_model(snapshot / "m.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "a/../../secret", "\0", ""])
def test_external_data_can_not_escape_the_folder(tmp_path: Path, make_mlp: MakeModel, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(10_000))
    (folder / "link").symlink_to(tmp_path / "secret")
    save_external(make_mlp(1), folder / "m.onnx")
    relocate(folder / "m.onnx", "location", location)
    with pytest.raises(CompileError, match="external data of tensor 'a'"):
        read_model(folder / "m.onnx")


def sparse_constant(model: onnx.ModelProto, hidden: onnx.TensorProto) -> None:
    attribute = model.graph.node.add(op_type="Constant", output=["c"]).attribute.add(name="sparse_value")
    attribute.type = onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.values.CopyFrom(hidden)


def default_of_a_function(model: onnx.ModelProto, hidden: onnx.TensorProto) -> None:
    attribute = model.functions.add(name="f", domain="mine").attribute_proto.add(name="weights")
    attribute.type = onnx.AttributeProto.TENSOR
    attribute.t.CopyFrom(hidden)


def training(model: onnx.ModelProto, hidden: onnx.TensorProto) -> None:
    model.training_info.add().algorithm.initializer.append(hidden)


@pytest.mark.parametrize("hide", [sparse_constant, default_of_a_function, training])
def test_no_tensor_can_escape_the_folder(
    tmp_path: Path, make_mlp: MakeModel, hide: Callable[[onnx.ModelProto, onnx.TensorProto], None]
) -> None:
    model = make_mlp(1)
    hidden = onnx.TensorProto(name="hidden", data_type=onnx.TensorProto.FLOAT, dims=[4])
    hidden.data_location = onnx.TensorProto.EXTERNAL
    hidden.external_data.add(key="location", value="../secret")
    hide(model, hidden)
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CompileError, match="external data of tensor 'hidden'"):
        read_model(tmp_path / "model" / "m.onnx")


@pytest.mark.parametrize(
    ("key", "value"),
    [("offset", "999999"), ("length", "999999"), ("offset", "-5"), ("length", "x")],
)
def test_external_data_that_is_too_short_is_named(
    tmp_path: Path, make_mlp: MakeModel, key: str, value: str
) -> None:
    save_external(make_mlp(1), tmp_path / "m.onnx")
    relocate(tmp_path / "m.onnx", key, value)
    with pytest.raises(CompileError, match="external data of tensor 'a'"):
        read_model(tmp_path / "m.onnx")


def test_no_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"can't read .*none\.onnx: No such file"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(CompileError, match="Is a directory"):
        read_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x89PNG\r\n\x1a\n" * 10])
def test_what_is_not_onnx_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(CompileError, match="is not an ONNX model"):
        read_model(path)


def test_a_graph_whose_name_is_no_text_compiles(tmp_path: Path, make_mlp: MakeModel) -> None:
    content = make_mlp(1).SerializeToString()
    assert content.count(b"graph") == 1
    path = tmp_path / "m.onnx"
    path.write_bytes(content.replace(b"graph", b"\x80raph"))
    compile_file(path, "m", Store(tmp_path / "store"), (1,))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_and_altered_files_compile_or_are_refused(
    tmp_path: Path, make_mlp: MakeModel, data: st.DataObject
) -> None:
    content = bytearray(make_mlp(1).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    try:
        compile_file(path, "m", Store(tmp_path / "store"), (1,))
    except CompileError:
        return
    Store(tmp_path / "store").verify("m")
