"""What a row costs, counted from graphs, and that found limits follow from it and from no clock."""

from __future__ import annotations

import itertools
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import BATCH_SIZES, compile_model
from mainspring.compiler.reading.normalise import normalise
from mainspring.compiler.reference import Prepared
from mainspring.compiler.report import describe_smaller
from mainspring.compiler.sizes import trials
from mainspring.compiler.sizes.work import Counter
from tests.compiler import open_models
from tests.compiler.conftest import MakeModel


def count(model: onnx.ModelProto, **sizes: int) -> tuple[float, float]:
    found = Counter(normalise(model, symbols=True)).at(sizes)
    assert found is not None
    return found.work, found.live_bytes


def test_a_product_is_counted_by_its_factors() -> None:
    work, live = count(open_models.lengths(), seq=100)
    assert work == 100 * 4 * 8 + 32 * 100 * 4
    assert live == 100 * 4 * 4


def test_a_convolution_is_counted_by_its_kernel() -> None:
    pixels = 16 * 11
    assert count(open_models.images(), h=32, w=32)[0] == pixels * 4 * (3 * 3 * 3) + 2 * 32 * pixels * 4


def test_attention_is_counted_by_its_scores_which_are_in_memory() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 23]> g (float[n,s,8] q, float[n,s,8] k, float[n,s,8] v) => '
        "(float[n,s,8] y) { y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v) }"
    )
    scores = 2 * 100 * 100
    assert count(model, s=100) == (scores * (2 * 8 + 32) + 32 * 100 * 8, 4 * scores + 4 * 100 * 8)


def test_what_only_weights_decide_costs_nothing(make_model: MakeModel) -> None:
    nodes = [helper.make_node("Exp", ["w"], ["e"]), helper.make_node("MatMul", ["x", "e"], ["y"])]
    weights = {"w": np.zeros((100, 100), np.float32)}
    model = make_model(nodes, {"x": ["n", 100]}, {"y": ["n", 100]}, weights)
    assert count(model) == (100 * 100 + 32 * 100, 400)


def test_memory_is_what_lives_at_one_time(make_model: MakeModel) -> None:
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [one], [other]) for one, other in itertools.pairwise(names)]
    assert count(make_model(nodes, {"x": ["n", 10]}, {"y": ["n", 10]}))[1] == 2 * 40


def test_shapes_that_are_computed_from_shapes_are_known() -> None:
    assert count(open_models.positions(), seq=20)[0] > 0


def test_what_is_known_only_after_a_run_is_not_counted(make_model: MakeModel) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    model = make_model(nodes, {"x": ["n", "s"]}, {"y": [2, "k"]})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert Counter(normalise(model, symbols=True)).at({"s": 9}) is None


@pytest.mark.parametrize("factor", [0.01, 7.0])
def test_found_limits_do_not_depend_on_the_machines_speed(
    factor: float, monkeypatch: pytest.MonkeyPatch, make_model: MakeModel
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["scores"]),
        helper.make_node("ReduceMean", ["scores"], ["y"], axes=[2], keepdims=0),
    ]
    weights = {"w": np.full((8, 8), 0.1, np.float32)}
    model = make_model(nodes, {"x": ["n", "seq", 8]}, {"y": ["n", "seq"]}, weights)
    passed = itertools.count(0, round(factor * 1e7))
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(passed))
    monkeypatch.setattr(trials, "MOST_WORK", 5_000_000)
    (symbol,) = Prepared(model, 4, most={}).symbols
    assert symbol.limit == 256
    assert count(model, seq=256)[0] < 5_000_000 < count(model, seq=512)[0]


def detector(make_model: MakeModel, channels: int = 3) -> onnx.ModelProto:
    """A map of scores as large as the image."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["seen"], pads=[1] * 4),
        helper.make_node("Relu", ["seen"], ["map"]),
    ]
    kernel = np.full((channels, 3, 3, 3), 0.1, np.float32)
    image, found = ["n", 3, "height", "width"], ["n", channels, "height", "width"]
    return make_model(nodes, {"image": image}, {"map": found}, {"w": kernel})


def test_images_may_be_as_large_as_detectors_have_them_in_smaller_batches(make_model: MakeModel) -> None:
    prepared = Prepared(detector(make_model), 16, most={}, or_fewer=True)
    assert [symbol.limit for symbol in prepared.symbols] == [1344, 1344]
    assert (prepared.most_rows, prepared.reduced) == (3, True)
    asked = Prepared(detector(make_model), 16, most={})
    assert asked.most_rows == 16, "all of a batch that is asked for fits"
    assert {symbol.limit for symbol in asked.symbols} <= {512, 640}


def test_a_common_size_is_taken_where_it_costs_more_than_others_may(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = detector(make_model, channels=1)
    monkeypatch.setattr(trials, "MOST_WORK", count(model, height=256, width=256)[0])
    monkeypatch.setattr(trials, "COMMON", ((640, count(model, height=640, width=640)[0]), (1344, 0)))
    prepared = Prepared(model, 16, most={}, or_fewer=True)
    assert [symbol.limit for symbol in prepared.symbols] == [640, 640]
    assert prepared.most_rows == 2


def wide(make_model: MakeModel) -> onnx.ModelProto:
    """The outer product of a sequence with itself: 40 GB for 100,000 places."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "two"], ["column"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["row"]),
        helper.make_node("Mul", ["column", "row"], ["products"]),
        helper.make_node("ReduceMax", ["products"], ["y"], axes=[2], keepdims=0),
    ]
    weights = {"one": np.array([1]), "two": np.array([2])}
    return make_model(nodes, {"x": ["n", "seq"]}, {"y": ["n", "seq"]}, weights)


def test_what_needs_more_memory_than_there_is_is_refused_with_the_number(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_available_bytes", lambda: 10**9)
    with pytest.raises(
        CompileError, match=r"4 rows, seq = 100000 needs 160\.0 GB .*there are 1\.0 GB; .*--max"
    ):
        Prepared(wide(make_model), 4, most={"seq": 100_000})
    fixed = wide(make_model)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 100_000
    with pytest.raises(CompileError, match=r"4 rows needs 160\.0 GB .*give smaller `--batch-sizes`$"):
        Prepared(fixed, 4, most={})
    assert Prepared(wide(make_model), 4, most={"seq": 100}).symbols[0].limit == 100


def test_default_batches_that_need_too_much_memory_are_left_out(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    fixed = wide(make_model)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 500
    monkeypatch.setattr(trials, "MOST_WORKSPACE_BYTES", 5_500_000)
    compiled = compile_model(fixed, "m", store, None, Source("onnx", "m.onnx"))
    assert (compiled.manifest.batch_sizes, compiled.smaller) == ((1, 2, 4), True), "a row needs 1 MB"
    assert describe_smaller(compiled).startswith("batches of at most 4 rows: ")
    for sizes in ((1, 8), BATCH_SIZES):
        asked = compile_model(fixed, "m", store, sizes, Source("onnx", "m.onnx"))
        assert (asked.manifest.batch_sizes, asked.smaller) == (sizes, False), "though they are the default"
