"""Which models may have requests of different sizes in one batch: proven, declared, or refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.padding import parse_pads
from tests.compiler import open_models

MASKED = {"x": 0.0, "mask": 0.0}


def compiled(
    folder: Path,
    model: onnx.ModelProto,
    pad: dict[str, float] | None = None,
    batch_sizes: tuple[int, ...] = (1, 2, 4),
    **most: int,
) -> Manifest:
    file = open_models.save(model, folder / "m.onnx")
    return compile_file(file, "m", Store(folder / "store"), batch_sizes, most=most, pad=pad).manifest


def test_places_that_are_apart_may_be_padded_with_anything(tmp_path: Path) -> None:
    manifest = compiled(tmp_path, open_models.lengths(), seq=40)
    assert manifest.pad == {"x": 0.0}
    assert Store(tmp_path / "store").manifest("m").spec().pad == {"x": 0.0}
    assert not manifest.source.pad, "nothing was said, so nothing is to be said again"


def test_two_inputs_of_one_symbol_are_followed_together(tmp_path: Path) -> None:
    assert compiled(tmp_path, open_models.two_inputs()).pad == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    "model",
    [
        open_models.images(),
        open_models.images(flat=True),
        open_models.with_class_token(),
        open_models.positions(),
        open_models.attention(),
    ],
)
def test_what_is_not_proven_is_not_padded_unless_that_is_declared(
    tmp_path: Path, model: onnx.ModelProto
) -> None:
    assert compiled(tmp_path, model).pad == {}


def test_a_mask_is_declared_and_compared(tmp_path: Path) -> None:
    manifest = compiled(tmp_path, open_models.attention(), {"mask": 0.0}, seq=64)
    assert manifest.pad == MASKED, "an input that is not named is padded with 0"
    assert manifest.source.options == " --max seq=64 --pad mask=0"


def test_positions_are_the_same_however_long_the_batch(tmp_path: Path) -> None:
    assert compiled(tmp_path, open_models.positions(), {"ids": 3.0}).pad == {"ids": 3.0}


def test_a_value_that_changes_answers_is_refused(tmp_path: Path) -> None:
    message = r"can't be padded with x = 0, mask = 1: output 'y' of a request of seq \d+ of \d+ differs"
    with pytest.raises(CompileError, match=message):
        compiled(tmp_path, open_models.attention(), {"mask": 1.0}, seq=64)


def test_an_output_whose_rows_are_not_where_they_were_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="can't be padded with x = 0"):
        compiled(tmp_path, open_models.images(flat=True), {"x": 0.0}, h=40, w=40)


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        ({"y": 0.0}, r"no input 'y' with an open dimension \(it has x, mask\)"),
        ({"mask": 0.5}, "input 'mask' is of int64, which 0.5 is not"),
    ],
)
def test_values_that_can_not_be_are_refused(tmp_path: Path, pad: dict[str, float], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compiled(tmp_path, open_models.attention(), pad, seq=40)


def test_nothing_is_padded_where_requests_share_no_batch(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="because a batch has one row only: leave `--pad` out"):
        compiled(tmp_path, open_models.lengths(), {"x": 0.0}, batch_sizes=(1,), seq=40)
    assert compiled(tmp_path, open_models.lengths(), batch_sizes=(1,), seq=40).pad == {}


@pytest.mark.parametrize("text", ["ids", "=0", "ids=", "ids=many"])
def test_texts_that_are_no_padding_are_refused(text: str) -> None:
    with pytest.raises(CompileError, match="an input's name and a number, such as input_ids=0"):
        parse_pads([text])


def test_an_input_has_one_value() -> None:
    assert parse_pads(["a=0", "b=-1.5"]) == {"a": 0.0, "b": -1.5}
    with pytest.raises(CompileError, match="given two values"):
        parse_pads(["a=0", "a=1"])


def test_the_command_takes_padding_and_says_it(tmp_path: Path) -> None:
    file = open_models.save(open_models.attention(), tmp_path / "m.onnx")
    arguments = ["compile", str(file), "--name", "m", "--store", str(tmp_path / "store")]
    options = ["--batch-sizes", "1,2", "--max", "seq=40"]
    result = CliRunner().invoke(build_app(), [*arguments, *options, "--pad", "mask=0"])
    assert result.exit_code == 0, result.output
    assert "padded within buckets" in result.output
    assert Store(tmp_path / "store").manifest("m").pad == MASKED
