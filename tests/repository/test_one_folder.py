"""One model's folder, as `mainspring compile` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.repository.one_folder import read_folder
from tests.python_models import folder as python_model
from tests.repository.nets import configure, put, scaling


def test_the_highest_version_is_compiled_as_configured(tmp_path: Path) -> None:
    for version in (1, 3, 10):
        put(tmp_path, "net", version, b"a")
    assert read_folder(tmp_path / "net").file == tmp_path / "net" / "10" / "model.onnx"
    configure(tmp_path, "net", "max_batch_size: 4 version_policy { specific { versions: [1, 3] } }")
    found = read_folder(tmp_path / "net")
    assert (found.version, found.recipe.batch_sizes) == (3, (1, 2, 4))


def test_what_is_not_honoured_is_said(tmp_path: Path) -> None:
    put(tmp_path, "net", 1, b"a")
    configure(tmp_path, "net", "instance_group [{ count: 2 }]")
    (note,) = read_folder(tmp_path / "net").notes
    assert "config.pbtxt" in note
    assert "more workers" in note


def test_a_whole_repository_is_not_one_model(tmp_path: Path) -> None:
    put(tmp_path, "net", 1, b"a")
    put(tmp_path, "other", 1, b"a")
    with pytest.raises(CompileError, match=r"repository of models \(net, other\).*up --model-repository"):
        read_folder(tmp_path)


@pytest.mark.parametrize("file", ["1/model.plan", "1/model.py", "notes/a"])
def test_a_folder_without_an_onnx_file_says_what_is_missing(tmp_path: Path, file: str) -> None:
    path = tmp_path / "net" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a")
    with pytest.raises(CompileError, match=r"no model\.(onnx|toml)|there is no version"):
        read_folder(tmp_path / "net")


def test_a_configuration_that_contradicts_the_model_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "net", 1, scaling(2.0))
    configure(tmp_path, "net", 'max_batch_size: 2 output [{ name: "y" data_type: TYPE_INT64 dims: [4] }]')
    found = read_folder(tmp_path / "net")
    spec = compile_file(
        found.file, "net", Store(tmp_path / "store"), found.recipe.batch_sizes
    ).manifest.spec()
    with pytest.raises(CompileError, match=r"'y' is TYPE_INT64 in config.pbtxt and TYPE_FP32 in the model"):
        found.check(spec)


def test_a_broken_configuration_is_quoted(tmp_path: Path) -> None:
    put(tmp_path, "net", 1, b"a")
    configure(tmp_path, "net", "max_batch_size: many")
    with pytest.raises(CompileError, match="line 1"):
        read_folder(tmp_path / "net")


def test_a_python_model_is_named_by_its_version(tmp_path: Path) -> None:
    python_model(tmp_path / "net" / "1")
    with pytest.raises(CompileError, match=r"a Python model's folder of versions: name .*/net/1$"):
        read_folder(tmp_path / "net")
