"""Models with operators of onnxruntime-extensions, or of a library of one's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_extensions
import pytest
from onnx import helper, numpy_helper

from mainspring.compiler.artifact import op_libraries
from mainspring.compiler.artifact.errors import CompileError, ExecutableError
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.program.layout import Arena
from mainspring.compiler.sizes.sample_forms import Described

PACKAGE = "onnxruntime-extensions"
CONTRIB, MICROSOFT = "ai.onnx.contrib", "com.microsoft.extensions"
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "the")
LIBRARY = Path(onnxruntime_extensions.get_library_path())
text, number, byte = onnx.TensorProto.STRING, onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8


@pytest.fixture(autouse=True)
def nothing_is_allowed() -> Iterator[None]:
    op_libraries.allow([])
    yield
    op_libraries.allow([])


def value(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def written(folder: Path, nodes: list[Any], given: list[Any], found: list[Any], *weights: Any) -> Path:
    graph = helper.make_graph(nodes, "graph", given, found, list(weights))
    imports = [helper.make_opsetid(domain, 1) for domain in (CONTRIB, MICROSOFT)]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *imports], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def upper(folder: Path) -> Path:
    node = helper.make_node("StringUpper", ["x"], ["y"], name="up", domain=CONTRIB)
    return written(folder, [node], [value("x", text, "N")], [value("y", text, "N")])


def tokens(folder: Path) -> Path:
    """Ragged: as many tokens as the text has, and the mean of their rows of a table."""
    vocabulary = "\n".join(WORDS)
    nodes = [
        helper.make_node(
            "BertTokenizer", ["x"], ["ids", "types", "mask"], domain=CONTRIB, vocab_file=vocabulary
        ),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["y"], axes=[0], keepdims=0),
    ]
    table = np.random.default_rng(3).standard_normal((len(WORDS), 4)).astype(np.float32)
    ids = value("ids", onnx.TensorProto.INT64, "L")
    weight = numpy_helper.from_array(table, "table")
    return written(folder, nodes, [value("x", text, 1)], [ids, value("y", number, 4)], weight)


def picture(folder: Path) -> Path:
    nodes = [
        helper.make_node("DecodeImage", ["x"], ["pixels"], domain=MICROSOFT),
        helper.make_node("Cast", ["pixels"], ["f"], to=number),
        helper.make_node("ReduceMean", ["f"], ["y"], axes=[0, 1], keepdims=0),
    ]
    return written(folder, nodes, [value("x", byte, "bytes")], [value("y", number, 3)])


def stock(path: Path, **inputs: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(LIBRARY))
    return list(onnxruntime.InferenceSession(str(path), options).run(None, inputs))


def compiled(path: Path, store: Store, **more: Any) -> Compiled:
    return compile_file(path, "m", store, **more)


def run(store: Store, *arrays: Any, sizes: tuple[int, ...] = ()) -> list[Any]:
    """Run the stored model as a worker does."""
    manifest = store.manifest("m")
    image = np.fromfile(store.weights_path(manifest), np.uint8)
    arena = Arena(image, manifest.extents)
    arena.load()
    bound = open_executable(store, manifest).bind(manifest.tensors, arena.address_of)
    bound.warm(manifest.batch_sizes)
    return bound.run_arrays(1, [each[None] for each in arrays], sizes)


def test_texts_are_served_as_the_library_computes_them(tmp_path: Path) -> None:
    op_libraries.allow([PACKAGE])
    path, store = upper(tmp_path), Store(tmp_path / "store")
    assert compiled(path, store).manifest.unshared, "nothing proves that a library keeps rows apart"
    (found,) = run(store, np.array(b"abc", "S1024"))
    assert found.tolist() == [b"ABC"]


def test_a_tokenizer_gives_as_many_tokens_as_the_text_has(tmp_path: Path) -> None:
    op_libraries.allow([PACKAGE])
    path, store = tokens(tmp_path), Store(tmp_path / "store")
    manifest = compiled(path, store).manifest
    assert manifest.whole
    assert manifest.outputs[0].varies
    for words in ("hello world", "the hello the world hello"):
        ids, mean = run(store, np.array([words.encode()], "S1024"))
        right_ids, right_mean = stock(path, x=np.array([words], object))
        assert ids[0].tolist() == right_ids.tolist()
        np.testing.assert_allclose(mean[0], right_mean, 1e-5)


def test_pictures_are_decoded(tmp_path: Path) -> None:
    from mainspring.compiler.sizes.sample_forms import _picture

    op_libraries.allow([PACKAGE])
    path, store = picture(tmp_path), Store(tmp_path / "store")
    manifest = compiled(path, store).manifest
    assert manifest.whole
    content = np.frombuffer(_picture(77), np.uint8)
    (found,) = run(store, content, sizes=(len(content),))
    np.testing.assert_allclose(found[0], stock(path, x=content)[0], 1e-5)


def test_without_the_operators_word_nothing_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    said = r"node 'up': StringUpper of the domain 'ai.onnx.contrib' .*pip install .*op_libraries = \["
    with pytest.raises(CompileError, match=said):
        compiled(upper(tmp_path), store)
    own = tmp_path / "mine.so"
    shutil.copy(LIBRARY, own)
    with pytest.raises(CompileError, match=r"config.pbtxt names .*mine.so, which is not allowed"):
        compiled(upper(tmp_path), store, described=Described(libraries=(own,)))
    op_libraries.allow([PACKAGE])
    compiled(upper(tmp_path), store)
    op_libraries.allow([])
    with pytest.raises(ExecutableError, match=f"{PACKAGE} .*, which this process may not load"):
        open_executable(store, store.manifest("m"))


def test_a_library_of_ones_own_works_the_same_way_and_a_folder_allows_what_a_configuration_names(
    tmp_path: Path,
) -> None:
    own, sent = tmp_path / "ops" / "mine.so", tmp_path / "ops" / op_libraries.SENT / "theirs.so"
    sent.parent.mkdir(parents=True)
    shutil.copy(LIBRARY, own)
    shutil.copy(LIBRARY, sent)
    store = Store(tmp_path / "store")
    op_libraries.allow([str(own)])
    by_name = compiled(upper(tmp_path), store).manifest.executable
    assert run(store, np.array(b"abc", "S1024"))[0].tolist() == [b"ABC"]
    op_libraries.allow([str(own.parent)])
    with pytest.raises(CompileError, match="op_libraries"):
        compiled(upper(tmp_path), store)
    named = compiled(upper(tmp_path), store, described=Described(libraries=(own,)))
    assert named.manifest.executable == by_name
    assert run(store, np.array(b"abc", "S1024"))[0].tolist() == [b"ABC"]
    with pytest.raises(CompileError, match="not allowed"):
        compiled(upper(tmp_path), store, described=Described(libraries=(sent,)))


def test_another_library_makes_another_executable_and_none_runs_in_the_place_of_the_other(
    tmp_path: Path,
) -> None:
    own = tmp_path / "mine.so"
    own.write_bytes(LIBRARY.read_bytes() + b"\0")
    store = Store(tmp_path / "store")
    found = []
    for entry in (PACKAGE, str(own)):
        op_libraries.allow([entry])
        found.append(compiled(upper(tmp_path), store).manifest.executable)
    assert found[0] != found[1]
    own.unlink()  # What is loaded stays as it is.
    own.write_bytes(LIBRARY.read_bytes())
    with pytest.raises(ExecutableError, match="not the same file: install the other one, or compile"):
        open_executable(store, store.manifest("m"))


def test_what_is_no_library_and_an_operator_that_it_lacks_are_said(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"nonsense")
    store = Store(tmp_path / "store")
    op_libraries.allow([str(wrong)])
    with pytest.raises(CompileError, match=r"wrong.so is no library of operators"):
        compiled(upper(tmp_path), store)
    for entry, why in (("no-such-package", "pip install no-such-package"), ("msgspec", "get_library_path")):
        op_libraries.allow([entry])
        with pytest.raises(CompileError, match=why):
            compiled(upper(tmp_path), store)
    op_libraries.allow([PACKAGE])
    node = helper.make_node("Nothing", ["x"], ["y"], name="none", domain=CONTRIB)
    path = written(tmp_path, [node], [value("x", number, "N")], [value("y", number, "N")])
    with pytest.raises(CompileError, match=r"'none': Nothing .* does not have it: install another version"):
        compiled(path, store)
    with pytest.raises(CompileError, match=f"{PACKAGE} .*, which ONNX Runtime runs on the CPU alone"):
        compiled(upper(tmp_path), store, target=Target(TVM))


def test_a_function_of_the_model_and_ones_of_onnx_runtime_need_no_library(tmp_path: Path) -> None:
    imports = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("mine", 1),
        helper.make_opsetid("com.microsoft", 1),
    ]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], body, imports)
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="mine"),
        helper.make_node("Gelu", ["t"], ["y"], domain="com.microsoft"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", number, "N", 3)], [value("y", number, "N", 3)])
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert compiled(tmp_path / "m.onnx", Store(tmp_path / "store")).manifest.batch_sizes[-1] == 16


def joined(folder: Path, width: int | str) -> Path:
    constants = [
        numpy_helper.from_array(np.array([b","], object), "separator"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
    ]
    node = helper.make_node("StringJoin", ["x", "separator", "axis"], ["y"], name="join", domain=CONTRIB)
    return written(folder, [node], [value("x", text, "N", width)], [value("y", text, "N")], *constants)


@pytest.mark.parametrize("width", ["M", 100])
def test_texts_are_joined_as_far_as_the_result_fits(tmp_path: Path, width: int | str) -> None:
    op_libraries.allow([PACKAGE])
    store = Store(tmp_path / "store")
    manifest = compiled(joined(tmp_path, width), store).manifest
    (most,) = manifest.inputs[0].shape
    assert most >= 100, "of one letter each, hundreds fit into 1,024 bytes"
    words = [f"{index}" for index in range(100)]
    (found,) = run(store, np.array(words, "S1024"), sizes=(100,) if width == "M" else ())
    assert found.tolist() == [",".join(words).encode()]


def test_texts_that_fit_in_no_length_are_refused_with_the_remedy(tmp_path: Path) -> None:
    op_libraries.allow([PACKAGE])
    wide = joined(tmp_path, 1_200)
    with pytest.raises(CompileError, match=r"has 1,199 bytes; at most 1,024 fit, which .*--text-bytes"):
        compiled(wide, Store(tmp_path / "store"))
    compiled(wide, Store(tmp_path / "store"), text_bytes=4_096)
