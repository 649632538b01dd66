"""Dynamic dimensions that the person who compiles a model fixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.given_shapes import fix_shapes, parse_shapes

MakeModel = Callable[..., onnx.ModelProto]


def two_inputs(make_model: MakeModel) -> onnx.ModelProto:
    node = helper.make_node("Add", ["ids", "mask"], ["sum"])
    names = {"ids": ["n", "length"], "mask": ["n", "length"]}
    return make_model([node], names, {"sum": ["n", "length"]})


def test_a_named_dimension_is_fixed_in_every_input(
    store: Store, tmp_path: Path, make_model: MakeModel, run_stored: Callable[..., list[Any]]
) -> None:
    onnx.save_model(two_inputs(make_model), tmp_path / "m.onnx")
    assert [each.name for each in compile_file(tmp_path / "m.onnx", "o", store, (1, 2)).manifest.symbols] == [
        "length"
    ]
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2), {"ids": (1, 7)}).manifest
    assert [spec.shape for spec in (*manifest.inputs, *manifest.outputs)] == [(7,)] * 3
    a, b = np.random.default_rng(0).standard_normal((2, 2, 7), np.float32)
    np.testing.assert_array_equal(run_stored(store, manifest, [a, b])[0], a + b)
    assert "--shape ids=1,7" in recompile_command("m", manifest.source, store.root)


def test_the_command_line_takes_shapes(tmp_path: Path, make_model: MakeModel) -> None:
    onnx.save_model(two_inputs(make_model), tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "--name", "m", "--batch-sizes", "1,2"]
    arguments += ["--store", str(tmp_path / "store"), "--shape", "ids=1,5", "--shape", "mask=1,5"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output
    assert Store(tmp_path / "store").manifest("m").inputs[1].shape == (5,)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"idz": (1, 7)}, r"no input 'idz': it has .*; did you mean 'ids'\?"),
        ({"ids": (1, 7, 3)}, "has 2 dimensions, but 3 are given"),
        ({"ids": (1, 7), "mask": (1, 8)}, "'length' can't be both 7 and 8"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    make_model: MakeModel, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        fix_shapes(two_inputs(make_model), shapes)


def test_a_fixed_dimension_stays(make_mlp: MakeModel) -> None:
    with pytest.raises(CompileError, match="dimension 1 of input 'x' is 4 in the model, so it can't be 5"):
        fix_shapes(make_mlp(1), {"x": (1, 5)})


@pytest.mark.parametrize("text", ["ids", "=1,2", "ids=", "ids=1,x", "ids=1,0", "ids=1,-2"])
def test_texts_that_are_no_shapes(text: str) -> None:
    with pytest.raises(CompileError, match="isn't an input's name and its dimensions"):
        parse_shapes([text])
    assert parse_shapes(["a=b=1,2"]) == {"a=b": (1, 2)}


@pytest.mark.parametrize("dims", [[-1, 4], ["?", 4]])
def test_a_dimension_that_is_written_as_unknown_is_open(
    store: Store, tmp_path: Path, make_model: MakeModel, dims: list[int | str]
) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": dims}, {"y": dims})
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2), {"x": (1, 4)}).manifest
    assert (manifest.inputs[0].shape, manifest.batch_sizes) == ((4,), (1, 2))
    assert compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest.inputs == manifest.inputs


def test_unknown_dimensions_are_not_one_dimension(
    store: Store, tmp_path: Path, make_model: MakeModel
) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [-1, "?", "?"]}, {"y": [-1, "?", "?"]})
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1,), {"x": (1, 4, 6)}).manifest
    assert manifest.inputs[0].shape == (4, 6)


def test_some_dimensions_of_an_input_are_fixed_and_others_stay_open(
    store: Store, tmp_path: Path, make_model: MakeModel
) -> None:
    dims = ["n", "channels", "height"]
    onnx.save_model(
        make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": dims}, {"y": dims}), tmp_path / "m"
    )
    shapes = parse_shapes(["x=1,3,-1"])
    manifest = compile_file(tmp_path / "m", "m", store, (1,), shapes, most={"height": 50}).manifest
    assert manifest.inputs[0].shape == (3, 50)
    assert [(symbol.name, symbol.limit) for symbol in manifest.symbols] == [("height", 50)]
