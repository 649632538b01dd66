"""Models with open dimensions besides the batch: their symbols, limits, forms, and outputs at any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import CUDA, TVM, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.reference import Prepared
from mainspring.compiler.sizes.forms import Range, ladder
from mainspring.messages.model import MOST_BUCKETS, OpenDim, Product, Term
from tests.compiler import open_models
from tests.compiler.conftest import RunStored

Make = Callable[..., Manifest]
SEQ = OpenDim(0, (Term(0),))
SEQ_BEHIND = OpenDim(1, (Term(0),))
TOTAL = OpenDim(0, (Term(0),), others=(Product((Term(1),)),))
PATCHES = OpenDim(1, (Term(0, over=4), Term(1, over=4)), others=(Product((), 1),))


@pytest.fixture
def compiled(store: Store, tmp_path: Path) -> Make:
    """A function that compiles a model with symbols, with limits by name."""

    def make(model: onnx.ModelProto, most: dict[str, int] | None = None, **options: object) -> Manifest:
        path = open_models.save(model, tmp_path / "model.onnx")
        return compile_file(path, "m", store, (1, 2, 4), most=most, **options).manifest  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("model", "most", "opened"),
    [
        (open_models.lengths(), {"seq": 100}, (SEQ,)),
        (
            open_models.images(),
            {"h": 40, "w": 64},
            (OpenDim(1, (Term(0, plus=1, over=2),)), OpenDim(2, (Term(1, plus=2, over=3),))),
        ),
        (
            open_models.images(flat=True),
            {"h": 40, "w": 64},
            (OpenDim(0, (Term(0, plus=1, over=2), Term(1, plus=2, over=3)), scale=4),),
        ),
        (open_models.with_class_token(), {"seq": 64}, (OpenDim(0, (Term(0, plus=1),)),)),
        (open_models.patches(), {"h": 40, "w": 64}, (PATCHES,)),
        (open_models.cached("total"), {"seq": 40, "past": 24}, (TOTAL, SEQ_BEHIND)),
        (open_models.cached("past + seq"), {"seq": 40, "past": 24}, (TOTAL, SEQ_BEHIND)),
        (open_models.positions(), None, (SEQ,)),
        (open_models.two_inputs(), {"a.1": 50}, (SEQ,)),
        (open_models.whole(), {"seq": 70}, (SEQ,)),
    ],
    ids=[
        "lengths",
        "images",
        "flattened",
        "class token",
        "patches",
        "total",
        "sum",
        "positions",
        "two inputs",
        "whole",
    ],
)
def test_outputs_are_those_of_the_file_at_any_size(
    model: onnx.ModelProto,
    most: dict[str, int] | None,
    opened: tuple[OpenDim, ...],
    compiled: Make,
    store: Store,
    run_stored: RunStored,
    tmp_path: Path,
) -> None:
    manifest = compiled(model, most)
    assert manifest.outputs[0].open == opened
    assert store.manifest("m") == manifest
    stock = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    for _ in range(6):
        sizes = tuple(int(random.integers(each.least, each.limit + 1)) for each in manifest.symbols)
        rows = () if manifest.whole else (int(random.integers(1, 5)),)
        arrays = {
            spec.name: random.integers(0, 40, (*rows, *spec.at(sizes).shape)).astype(spec.dtype)
            for spec in manifest.inputs
        }
        (expected,) = stock.run(None, arrays)
        batch = [array[None] if manifest.whole else array for array in arrays.values()]
        (found,) = run_stored(store, manifest, batch, sizes)
        np.testing.assert_allclose(found[0] if manifest.whole else found, expected, rtol=1e-4, atol=1e-4)


def test_symbols_have_names_limits_and_buckets(compiled: Make) -> None:
    (symbol,) = compiled(open_models.positions()).symbols
    assert (symbol.name, symbol.least, symbol.limit) == ("seq", 1, 40), "there are 40 positions"
    assert symbol.ceilings == (16, 20, 24, 28, 32, 40)


def test_every_bucket_has_durations(compiled: Make) -> None:
    manifest = compiled(open_models.images(), {"h": 40, "w": 64})
    spec = manifest.spec()
    profile = spec.profiles["cpu"]
    assert len(spec.buckets) == len(profile.shaped) <= MOST_BUCKETS
    for bucket in spec.buckets:
        assert set(spec.at(bucket).profiles["cpu"].infer_ns) == {1, 2, 4}
    assert profile.shaped["40x64"] == profile.infer_ns


@pytest.mark.parametrize("total", ["total", "past + seq", "seq+past"])
def test_a_dimension_that_follows_from_others_is_no_symbol(compiled: Make, total: str) -> None:
    manifest = compiled(open_models.cached(total), {"seq": 40, "past": 24})
    assert [symbol.name for symbol in manifest.symbols] == ["seq", "past"]
    assert [spec.open for spec in manifest.inputs] == [(SEQ,), (TOTAL,), (OpenDim(0, (Term(1),)),)]
    assert manifest.inputs[1].shape == (64,)
    with pytest.raises(CompileError, match=r"follows from .*seq.*; give `--max` these"):
        compiled(open_models.cached(total), {total: 40})


def test_what_a_name_says_is_believed_only_if_the_model_runs_so_alone(compiled: Make) -> None:
    model = open_models.lengths()
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "2 * seq"]))
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("Neg", ["z"], ["v"]))
    manifest = compiled(model, {"seq": 40, "2 * seq": 48})
    assert [symbol.name for symbol in manifest.symbols] == ["seq", "2 * seq"]


def test_limits_that_can_not_be_are_refused(compiled: Make) -> None:
    with pytest.raises(CompileError, match=r"does not run with seq = 41: .*; give `--max` a smaller number"):
        compiled(open_models.positions(), {"seq": 41})
    with pytest.raises(CompileError, match=r"no open dimension 'length' \(it has seq\)"):
        compiled(open_models.positions(), {"length": 20})


def test_a_dimension_of_no_form_is_refused(compiled: Make) -> None:
    with pytest.raises(CompileError, match=r"dimension 0 of output 'y'.* follows from len in no form"):
        compiled(open_models.squares())


@pytest.mark.parametrize("target", [Target(device=CUDA), Target(engine=TVM)], ids=["cuda", "tvm"])
def test_other_engines_are_for_fixed_shapes(compiled: Make, target: Target) -> None:
    with pytest.raises(CompileError, match=r"'seq' is open, .*--shape.*--engine onnxruntime"):
        compiled(open_models.positions(), target=target)


def test_the_command_line_takes_limits(tmp_path: Path) -> None:
    path = open_models.save(open_models.lengths(), tmp_path / "model.onnx")
    arguments = ["compile", str(path), "--name", "m", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(build_app(), [*arguments, "--max", "seq=40"])
    assert result.exit_code == 0, result.output
    assert "seq from 1 to 40" in result.output
    (symbol,) = Store(tmp_path / "store").manifest("m").symbols
    assert (symbol.name, symbol.limit) == ("seq", 40)
    for limit, said in (("seq", "isn't a dimension's name"), ("seq=0", "such as seq=512"), ("s=9", "seq")):
        refused = CliRunner().invoke(build_app(), [*arguments, "--max", limit])
        assert refused.exit_code != 0
        assert said in " ".join((refused.output + str(refused.exception)).split())


def test_an_output_that_is_no_shorter_than_a_window_has_that_least(
    compiled: Make, store: Store, run_stored: RunStored
) -> None:
    """The first size that is tried is shorter than a window."""
    model = open_models.windows()
    manifest = compiled(model, {"samples": 4096})
    (symbol,) = manifest.symbols
    assert (symbol.least, symbol.limit) == (1, 4096)
    assert manifest.outputs[0].open == (OpenDim(0, (Term(0, over=256),), least=1),)
    assert manifest.outputs[0].open[0].written(["samples"]) == "max(1, (samples // 256))"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for samples in (1, 100, 256, 511, 512, 4096):
        x = np.random.default_rng(samples).standard_normal((3, samples), np.float32)
        (found,) = run_stored(store, manifest, [x], (samples,))
        np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_ids_that_are_looked_up_in_the_last_place_alone_are_drawn_from_the_table(compiled: Make) -> None:
    manifest = compiled(open_models.last_id())
    assert (manifest.batch_sizes, [each.name for each in manifest.symbols]) == ((1, 2, 4), ["seq"])
    assert manifest.verification.rows > 0


def test_integers_that_are_bounded_by_a_size_are_drawn_below_it(
    compiled: Make, store: Store, run_stored: RunStored
) -> None:
    manifest = compiled(open_models.picked(), {"seq": 64})
    (symbol,) = manifest.symbols
    assert (symbol.least, symbol.limit) == (2, 64), "any model is tried with the values 0 and 1"
    x, place = np.arange(2 * 7, dtype=np.float32).reshape(2, 7), np.array([[6], [0]])
    (found,) = run_stored(store, manifest, [x, place], (7,))
    np.testing.assert_array_equal(found, [[6], [7]])


def test_models_of_other_limits_share_no_executable(compiled: Make) -> None:
    assert (
        compiled(open_models.lengths(), {"seq": 40}).executable
        != compiled(open_models.lengths(), {"seq": 50}).executable
    )


def test_contradictions_in_a_manifest_are_found(compiled: Make) -> None:
    manifest = compiled(open_models.lengths(), {"seq": 40})
    assert manifest.problems() == []
    (symbol,), (output,) = manifest.symbols, manifest.outputs
    for wrong in (
        {"symbols": (msgspec.structs.replace(symbol, ceilings=(32, 16)),)},
        {"symbols": (msgspec.structs.replace(symbol, least=41),)},
        {"symbols": (msgspec.structs.replace(symbol, ceilings=tuple(range(1, 80))),)},
        {"symbols": ()},
        {"outputs": (msgspec.structs.replace(output, open=(OpenDim(7, (Term(0),)),)),)},
        {"outputs": (msgspec.structs.replace(output, open=(OpenDim(0, (Term(0, over=0),)),)),)},
        {"outputs": (msgspec.structs.replace(output, shape=(41, 4)),)},
    ):
        assert msgspec.structs.replace(manifest, **wrong).problems()


def test_a_symbol_may_have_steps(compiled: Make) -> None:
    model = open_models.eighths()
    (symbol,) = compiled(model, {"seq": 100}).symbols
    assert (symbol.least, symbol.limit, symbol.step) == (8, 96, 8)
    assert {(size - symbol.least) % 8 for size in symbol.ceilings} == {0}
    assert str(symbol) == "seq from 8 to 96 in steps of 8"
    spec = compiled(model, {"seq": 100}).spec()
    assert spec.bucket_of((24,)) == (24,)
    for size in (12, 104, 0):
        with pytest.raises(
            ValueError, match=f"seq is {size}; the model takes seq from 8 to 96 in steps of 8"
        ):
            spec.bucket_of((size,))


def test_ladders_are_as_fine_as_the_buckets_allow() -> None:
    assert ladder(Range(1, 32, 100), 64) == (16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 100)
    assert ladder(Range(1, 32, 100), 8) == (16, 24, 32, 48, 64, 96, 100)
    assert ladder(Range(32, 64, 256, 32), 64) == (32, 64, 96, 128, 160, 192, 224, 256)
    assert ladder(Range(1, 4, 9), 64) == (9,)
    assert len(ladder(Range(1, 32, 1 << 20), 8)) == 8


def test_what_is_called_a_batch_leaves_room_for_other_dimensions() -> None:
    """Rows that mix run alone, mostly one: so the length may be larger."""
    limits = {}
    for name in ("Batch", "turns"):
        model = parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[{name},length,512] x) => (float[{name},length,512] y) {{
                first = Constant<value = int64 {{0}}>() y = CumSum(x, first) }}"""
        )
        prepared = Prepared(model, 1, whole=True, most={})
        of_rows, length = prepared.ranges
        assert [symbol.name for symbol in prepared.symbols] == [name, "length"]
        assert (of_rows.base, length.base) == (1 if name == "Batch" else 32, 32)
        limits[name] = length.limit
    assert limits["Batch"] >= 2 * limits["turns"]
