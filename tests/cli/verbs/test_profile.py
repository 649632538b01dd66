"""``mainspring profile``: a table of what a store's models take here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.profiles import read_profile_table
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.tables import ConfigError

BRIEF = ["--seconds", "0", "--no-realtime"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile") / "store"
    list(compile_zoo(["digits", "resnet20"], Store(folder), batch_sizes=(1, 2)))
    return folder


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


def test_all_models_are_measured_and_written(app: typer.Typer, store: Path, tmp_path: Path) -> None:
    table = tmp_path / "a" / "table.csv"
    result = CliRunner().invoke(app, ["profile", "--store", str(store), "--csv", str(table), *BRIEF])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == ["digits", "resnet20"]
    assert "engine onnxruntime" in result.stdout
    assert "…" not in result.stdout
    specs = read_profile_table(table)
    assert [spec.batch_sizes for spec in specs] == [(1, 2), (1, 2)]
    manifest = Store(store).manifest("digits")
    assert specs[0].weights_bytes == pytest.approx(manifest.weights_bytes, rel=1e-5)


def test_only_what_is_asked_for_is_measured_and_nothing_stored(app: typer.Typer, store: Path) -> None:
    before = Store(store).manifest("digits")
    arguments = ["profile", "digits", "--store", str(store), "--batch-sizes", "2", "--json", *BRIEF]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    (model,) = shown["models"]
    assert (shown["engine"], shown["device_kind"], model["title"]) == ("auto", "cpu", "digits")
    assert model["engine"] == "onnxruntime"
    assert list(model["infer"]) == ["2"]
    assert 0 < model["infer"]["2"]["p50_ns"] <= model["infer"]["2"]["max_ns"]
    assert Store(store).manifest("digits") == before


def test_a_profile_is_stored_for_the_device_kind(app: typer.Typer, store: Path) -> None:
    before = Store(store).manifest("digits").profiles
    arguments = ["profile", "digits", "--store", str(store), "--save", "--device-kind", "other", *BRIEF]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    after = Store(store).manifest("digits").profiles
    assert after["cpu"] == before["cpu"]
    assert list(after["other"].infer_ns) == [1, 2]


def test_the_fastest_of_two_artifacts_is_kept(app: typer.Typer, store: Path, tmp_path: Path) -> None:
    """One matrix is faster than the digits' network by far."""
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["data"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["output"]),
        ],
        "matrix",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(np.ones((784, 10), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save_model(model, tmp_path / "matrix.onnx")
    compile_file(tmp_path / "matrix.onnx", "matrix", Store(store), (1, 2))
    arguments = ["profile", "digits", "matrix", "--store", str(store), "--fastest", "best", *BRIEF]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "best is matrix (engine onnxruntime); for a row: digits" in result.stderr
    assert Store(store).manifest("best").executable == Store(store).manifest("matrix").executable
    unlike = ["profile", "digits", "resnet20", "--store", str(store), "--fastest", "best", *BRIEF]
    assert "differ in their inputs" in str(CliRunner().invoke(app, unlike).exception)
    for name in ("matrix", "best"):
        Store(store).remove(name)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (["nobody"], StoreError, "holds no model 'nobody'"),
        (["--batch-sizes", "64"], ConfigError, "compiled for batch sizes 1, 2, and none of 64"),
    ],
)
def test_what_can_not_be_measured_is_named(
    app: typer.Typer, store: Path, arguments: list[str], kind: type[Exception], says: str
) -> None:
    result = CliRunner().invoke(app, ["profile", *arguments, "--store", str(store), *BRIEF])
    assert isinstance(result.exception, kind)
    assert says in str(result.exception)


def test_an_unknown_engine_and_an_empty_store_are_refused(app: typer.Typer, tmp_path: Path) -> None:
    for flags, says in (
        (["--engine", "quantum"], "cpu has no engine 'quantum'; choose one of "),
        (
            ["--device", "cuda:0", "--engine", "emulated"],
            "cuda:0 has no engine 'emulated'; choose",
        ),
        (["--device", "gpu"], "neither cpu nor cuda:N"),
    ):
        wrong = CliRunner().invoke(app, ["profile", *flags], env={"COLUMNS": "200"})
        assert wrong.exit_code == 2
        assert says in wrong.output
    (tmp_path / "models").mkdir()
    empty = CliRunner().invoke(app, ["profile", "--store", str(tmp_path), *BRIEF])
    assert "holds no model" in str(empty.exception)
