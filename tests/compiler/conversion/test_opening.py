"""What kinds of files are converted, what is refused, and that nothing is run without the user's trust."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.conversion.opening import as_onnx


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.folder,)


def converted(path: Path, *, trust: bool = False) -> Path:
    with as_onnx(path, trust=trust) as found:
        return found.path


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib", ".JOBLIB", ".pt2"])
def test_nothing_is_unpickled_without_trust(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CompileError, match=r"can run any code.*`--trust` reads it"):
        converted(path)
    assert not (tmp_path / "sprung").exists()


def test_a_trusted_pickle_of_something_else_is_no_estimator(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"weights": [1.0]}))
    with pytest.raises(CompileError, match="holds a dict, which is not an estimator"):
        converted(path, trust=True)


def test_a_broken_pickle_says_what_to_try(tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    path.write_bytes(b"\x80\x04nothing")
    with pytest.raises(CompileError, match=r"can't be read .*save it again"):
        converted(path, trust=True)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.pth", "the model's author can write a program"),
        ("m.tflite", "tf2onnx"),
        ("m.plan", "the ONNX file that it was built from"),
        ("m.safetensors", "the model's author can export the network"),
        ("m.ubj", "onnxmltools"),
    ],
)
def test_formats_of_others_are_refused_with_what_to_try(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(CompileError, match=advice):
        converted(tmp_path / name)


def test_any_other_file_is_read_as_onnx(tmp_path: Path) -> None:
    for name in ("m.onnx", "model", "v1.5"):
        assert converted(tmp_path / name) == tmp_path / name


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"can't read .*m\.skops: No such file"):
        converted(tmp_path / "m.skops")
