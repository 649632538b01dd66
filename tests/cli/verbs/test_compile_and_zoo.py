"""The verbs that fill a store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from tests.python_models import folder


@pytest.fixture
def app() -> typer.Typer:
    return build_app()


def test_compile_stores_a_model_and_says_what_it_did(app: typer.Typer, tmp_path: Path) -> None:
    onnx.save_model(build("digits", 3), tmp_path / "d.onnx")
    arguments = ["compile", str(tmp_path / "d.onnx"), "--name", "reader", "--batch-sizes", "1,2"]
    result = CliRunner().invoke(app, [*arguments, "--store", str(tmp_path / "store")])
    assert result.exit_code == 0, result.output
    assert "1.7 MB in   1 page (1), executable" in result.output
    assert "measured: load" in result.output
    assert "differ from stock ONNX Runtime's by at most" in result.output
    assert Store(tmp_path / "store").manifest("reader").batch_sizes == (1, 2)


def test_compile_prints_json_that_agrees_with_the_store(app: typer.Typer, tmp_path: Path) -> None:
    onnx.save_model(build("digits", 3), tmp_path / "d.onnx")
    arguments = ["compile", str(tmp_path / "d.onnx"), "--name", "reader", "--batch-sizes", "1,2", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--store", str(tmp_path / "store")])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    manifest = Store(tmp_path / "store").manifest("reader")
    assert (shown["name"], shown["weights_bytes"], shown["pages"]) == ("reader", manifest.weights_bytes, 1)
    assert shown["infer_ns"] == {str(size): ns for size, ns in manifest.profiles["cpu"].infer_ns.items()}
    assert shown["verification"]["rows"] == 3
    assert shown["executable_shared"] is False


def test_zoo_prints_json_and_nothing_else_on_stdout(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["zoo", "digits", "--copies", "2", "--batch-sizes", "1", "--store", str(tmp_path), "--json"]
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert [(each["name"], each["executable_shared"]) for each in shown] == [
        ("digits-1", False),
        ("digits-2", True),
    ]
    assert all(each["kept"] for each in json.loads(CliRunner().invoke(app, arguments).stdout))
    assert "resnet50" in json.loads(CliRunner().invoke(app, ["zoo", "--list", "--json"]).stdout)


def test_zoo_makes_copies_and_says_what_they_share(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["zoo", "digits", "resnet20", "--copies", "2", "--batch-sizes", "1", "--store", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("(new)") == 2
    assert result.output.count("(shared)") == 2
    assert "4 models (0 kept), 2 executables" in result.output
    assert Store(tmp_path).names() == ["digits-1", "digits-2", "resnet20-1", "resnet20-2"]
    again = CliRunner().invoke(app, arguments)
    assert "4 models (4 kept), 2 executables" in again.output


def test_zoo_lists_its_architectures(app: typer.Typer) -> None:
    assert "resnet50\n" in CliRunner().invoke(app, ["zoo", "--list"]).output
    assert CliRunner().invoke(app, ["zoo"]).exit_code == 2


def test_errors_reach_the_command_line(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["zoo", "resnet49", "--store", str(tmp_path / "store")])
    assert isinstance(result.exception, CompileError)
    result = CliRunner().invoke(app, ["compile", "none.onnx", "--name", "x", "--batch-sizes", "one"])
    assert "'one' aren't numbers" in str(result.exception)


def test_compile_names_the_nodes_whose_batch_it_opened(app: typer.Typer, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Reshape", ["x", "s"], ["y"], name="flatten")
    values = [
        onnx.helper.make_tensor_value_info(name, 1, dims) for name, dims in (("x", [1, 2, 3]), ("y", [1, 6]))
    ]
    shape = onnx.numpy_helper.from_array(np.array([1, 6]), "s")
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [shape])
    onnx.save_model(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    arguments = ["compile", str(tmp_path / "m.onnx"), "--name", "m", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(app, [*arguments, "--batch-sizes", "1,2"])
    assert result.exit_code == 0, result.output
    assert "the exporter's batch was in 1 node, and was opened there: flatten" in result.output


def test_compile_takes_a_folder_of_triton(app: typer.Typer, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    (folder / "1").mkdir(parents=True)
    onnx.save_model(build("digits", 3), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text("max_batch_size: 2 instance_group [{ count: 2 }]")
    arguments = ["compile", str(folder), "--name", "mine", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "config.pbtxt, line 1: count" in result.output, "what is not honoured is said"
    assert Store(tmp_path / "store").manifest("mine").batch_sizes == (1, 2)
    result = CliRunner().invoke(app, [*arguments, "--batch-sizes", "1"])
    assert Store(tmp_path / "store").manifest("mine").batch_sizes == (1,), "options come first"
    (folder / "config.pbtxt").write_text('max_batch_size: 2 output [{ name: "output" data_type: TYPE_BOOL }]')
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CompileError)
    assert Store(tmp_path / "store").names() == [], "what contradicts its configuration is not stored"


def test_a_python_model_is_compiled_and_kept(app: typer.Typer, tmp_path: Path) -> None:
    made, store = folder(tmp_path / "double"), str(tmp_path / "store")
    arguments = ["compile", str(made), "--name", "double", "--store", store]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "for python" in result.output
    assert "Python code: it ran at each batch size" in result.output
    shown = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (shown["engine"], shown["batch_sizes"], shown["pages"]) == ("python", [1, 2, 4], 0)
    assert {*shown["infer_ns"]} == {"1", "2", "4"}


@pytest.mark.parametrize(
    "option", [["--batch-sizes", "1"], ["--engine", "tvm"], ["--trust"], ["--max", "n=3"]]
)
def test_what_model_toml_says_is_no_option(option: list[str], app: typer.Typer, tmp_path: Path) -> None:
    made = folder(tmp_path / "double")
    arguments = ["compile", str(made), "--name", "double", "--store", str(tmp_path / "store"), *option]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "does not fit a folder with model.py: its model.toml says how it is served" in said


def test_a_python_is_for_python_models(app: typer.Typer, tmp_path: Path) -> None:
    onnx.save_model(build("digits", 3), tmp_path / "d.onnx")
    result = CliRunner().invoke(
        app, ["compile", str(tmp_path / "d.onnx"), "--name", "d", "--python", "python3"]
    )
    assert result.exit_code == 2
    assert "--python is for a folder with model.py" in " ".join(result.output.replace("│", " ").split())


def test_the_zoo_has_python_models(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["zoo", "top-labels", "digits", "--batch-sizes", "1", "--store", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "2 models (0 kept), 2 executables" in result.output
    assert "top-labels" in json.loads(CliRunner().invoke(app, ["zoo", "--list", "--json"]).stdout)
