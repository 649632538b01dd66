"""Models that have no axis for rows, and branches that are decided before a model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler import reference
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import TVM, Source
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.compiler.pipeline import compile_file, compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.reading import contents
from mainspring.compiler.reading.normalise import all_nodes
from mainspring.compiler.report import describe_sharing

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]
WHOLE = Source("onnx", "m.onnx", whole=True)


def state_model(make_model: MakeModel, opset: int = 17) -> onnx.ModelProto:
    """Two inputs of unlike first axes, a scalar output, and one of the second input's shape."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Mul", ["state", "most"], ["next"]),
    ]
    shapes = {"x": [1, 4], "state": [2, 1, 3]}
    return make_model(nodes, shapes, {"most": [], "next": [2, 1, 3]}, opset=opset)


@pytest.mark.parametrize("opset", [11, 17])
def test_shapes_are_those_of_the_file(
    store: Store, make_model: MakeModel, run_stored: Run, opset: int
) -> None:
    model = state_model(make_model, opset)
    manifest = compile_model(model, "m", store, (1, 2, 4), WHOLE).manifest
    spec = manifest.spec()
    assert (manifest.batch_sizes, spec.whole, spec.unshared) == ((1,), True, "")
    assert [tensor.shape for tensor in (*spec.inputs, *spec.outputs)] == [(1, 4), (2, 1, 3), (), (2, 1, 3)]
    random = np.random.default_rng(1)
    x, state = random.standard_normal((1, 4), np.float32), random.standard_normal((2, 1, 3), np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "state": state})
    found = run_stored(store, manifest, [x[None], state[None]])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[0], other, rtol=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_is_serialised_once_beside_its_original(
    store: Store, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    serialised: list[onnx.ModelProto] = []
    serialise = contents.serialise

    def counting(model: onnx.ModelProto) -> contents.Content:
        serialised.append(model)
        return serialise(model)

    for module in (reference, contents):
        monkeypatch.setattr(module, "serialise", counting)
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]})
    compile_model(model, "m", store, (1, 2), Source("onnx", "m.onnx", whole=whole))
    assert len(serialised) == 2


def test_the_way_out_is_named(store: Store, make_model: MakeModel, tmp_path: Path) -> None:
    onnx.save_model(state_model(make_model), tmp_path / "m.onnx")
    with pytest.raises(CompileError, match=r"--whole.*max_batch_size: 0"):
        compile_file(tmp_path / "m.onnx", "m", store, (1, 2), whole=False)
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2), whole=True).manifest
    assert "--whole" in recompile_command("m", manifest.source, store.root)


def test_an_open_first_axis_is_a_symbol_like_any_other(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    relative = [helper.make_node("ReduceMax", ["x"], ["m"]), helper.make_node("Div", ["x", "m"], ["y"])]
    onnx.save_model(make_model(relative, {"x": ["n"]}, {"y": ["n"]}), tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, whole=True).manifest
    (symbol,) = manifest.symbols
    assert (manifest.whole, symbol.name, symbol.least) == (True, "n", 1)
    assert len(symbol.ceilings) > 1


def test_rows_that_a_file_leaves_open_are_fixed_by_a_shape(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    onnx.save_model(
        make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]}),
        tmp_path / "m.onnx",
    )
    rows = compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest
    assert (rows.whole, rows.batch_sizes) == (False, (1, 2))
    fixed = compile_file(tmp_path / "m.onnx", "m", store, (1, 2), {"x": (3, 4)}, whole=True).manifest
    assert (fixed.whole, fixed.inputs[0].shape) == (True, (3, 4))


def test_a_dimension_that_is_left_open_is_a_symbol(store: Store, make_model: MakeModel) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [3, "length"]}, {"y": [3, "length"]})
    manifest = compile_model(model, "m", store, (1,), WHOLE).manifest
    assert (manifest.whole, [symbol.name for symbol in manifest.symbols]) == (True, ["length"])


def with_branch(make_model: MakeModel, condition: str) -> onnx.ModelProto:
    branches = {}
    for name, operator in (("then_branch", "Relu"), ("else_branch", "Neg")):
        branches[name] = helper.make_graph(
            [helper.make_node(operator, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["data"]),
        helper.make_node("If", [condition], ["y"], name="branch", **branches),
    ]
    weights = {"constant": np.array(True), "zero": np.float32(0)}
    return make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, weights)


def test_a_branch_that_a_constant_decides_is_taken(
    store: Store, make_model: MakeModel, run_stored: Run
) -> None:
    source = Source("onnx", "m.onnx")
    manifest = compile_model(with_branch(make_model, "constant"), "m", store, (1, 2), source).manifest
    assert manifest.batch_sizes == (1, 2)
    (found,) = run_stored(store, manifest, [np.array([[-1, 2, -3, 4]], np.float32)])
    assert found.tolist() == [[0, 2, 0, 4]]
    with pytest.raises(CompileError, match="node 'branch' \\(If\\) is control flow"):
        compile_model(with_branch(make_model, "data"), "m", store, (1, 2), source)


def test_a_model_without_rows_is_served_whole_unless_rows_are_asked_for(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    onnx.save_model(state_model(make_model), tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store, (1, 2))
    assert (compiled.manifest.whole, compiled.manifest.batch_sizes) == (True, (1,))
    assert "first axes are {'x': 1, 'state': 2}" in compiled.whole_because
    assert describe_sharing(compiled).startswith(
        "served whole, one request at a time: the inputs' first axes"
    )
    assert "--whole" in recompile_command("m", compiled.manifest.source, store.root)


def test_rows_that_need_different_branches_are_a_symbol_of_the_whole(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    onnx.save_model(with_branch(make_model, "data"), tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store, (1, 2)).manifest
    assert (manifest.whole, [symbol.name for symbol in manifest.symbols]) == (True, ["n"])
    with pytest.raises(CompileError, match=r"\(If\) is control flow.*but that fails too: .*'n' is open"):
        compile_file(tmp_path / "m.onnx", "m", store, (1, 2), target=Target(engine=TVM))


def test_what_a_branch_computes_depends_on_each_request(
    store: Store, make_model: MakeModel, run_stored: Run, tmp_path: Path
) -> None:
    model = with_branch(make_model, "data")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save_model(model, tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store)
    assert "node 'branch' (If) is control flow" in compiled.whole_because
    for row, expected in (([-1, 2, -3, 4], [0, 2, 0, 4]), ([-1, -2, -3, -4], [1, 2, 3, 4])):
        (found,) = run_stored(store, compiled.manifest, [np.array([[row]], np.float32)])
        assert found.tolist() == [[expected]]


def loop_model(make_model: MakeModel, scale: float) -> onnx.ModelProto:
    """A loop that takes its turns from an input; its weights and a nested branch are inside."""
    weights = numpy_helper.from_array(np.full((1, 4), scale, np.float32), "w")
    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["before", "w"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, operator in (("then_branch", "Mul"), ("else_branch", "Add"))
    }
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Greater", ["turn", "one"], ["late"]),
            helper.make_node("If", ["late"], ["after"], **branches),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, None),
        ],
        [weights],
    )
    nodes = [helper.make_node("Loop", ["turns", "true", "x"], ["y"], name="turns of a loop", body=body)]
    constants = {"true": np.array(True), "one": np.array(1, np.int64)}
    shapes = {"x": [1, 4], "turns": []}
    model = make_model(nodes, shapes, {"y": [1, 4]}, constants)
    next(each for each in model.graph.input if each.name == "turns").CopyFrom(
        helper.make_tensor_value_info("turns", TensorProto.INT64, [])
    )
    return model


def test_a_loops_weights_are_paged_and_its_executable_is_shared(
    store: Store, make_model: MakeModel, run_stored: Run
) -> None:
    manifests = [
        compile_model(loop_model(make_model, scale), f"m{scale}", store, (1,), WHOLE).manifest
        for scale in (2.0, 3.0)
    ]
    assert manifests[0].executable == manifests[1].executable
    assert [[tensor.shape for tensor in each.tensors] for each in manifests] == [[(1, 4)]] * 2
    x = np.array([[1, 2, 3, 4]], np.float32)
    for scale, manifest in zip((2.0, 3.0), manifests, strict=True):
        expected = x + scale + scale
        for turns in range(2, 5):
            (found,) = run_stored(store, manifest, [x[None], np.array([turns], np.int64)])
            np.testing.assert_allclose(found[0], expected, rtol=1e-6)
            expected = expected * scale


def test_random_numbers_inside_a_branch_are_compared_and_served_without_a_seed(
    store: Store, make_model: MakeModel
) -> None:
    model = with_branch(make_model, "data")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    branch = next(node for node in model.graph.node if node.op_type == "If")
    branch.attribute[0].g.node[0].op_type = "RandomNormalLike"
    manifest = compile_model(model, "m", store, (1,), WHOLE).manifest
    assert manifest.verification.largest_difference == 0.0
    stored = onnx.load(store.executable_path(manifest))
    drawing = [node for node in all_nodes(stored.graph) if node.op_type == "RandomNormalLike"]
    assert [len(node.attribute) for node in drawing] == [0]


@pytest.mark.parametrize("operator", ["Softmax", "CumSum"])
def test_a_fixed_batch_that_can_not_be_opened_is_served_as_it_is(
    store: Store, make_model: MakeModel, run_stored: Run, tmp_path: Path, operator: str
) -> None:
    """Softmax and CumSum along the first axis: another number of rows, or one alone, is another model."""
    nodes = {
        "Softmax": helper.make_node("Softmax", ["x"], ["y"], axis=0),
        "CumSum": helper.make_node("CumSum", ["x", "axis"], ["y"]),
    }
    weights = {"axis": np.array(0, np.int64)} if operator == "CumSum" else {}
    model = make_model([nodes[operator]], {"x": [3, 5]}, {"y": [3, 5]}, weights)
    onnx.save_model(model, tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store, (1, 2, 4))
    manifest = compiled.manifest
    assert (manifest.whole, manifest.inputs[0].shape) == (True, (3, 5))
    assert "the file fixes a batch of 3, which can't be opened" in compiled.whole_because
    x = np.random.default_rng(1).standard_normal((3, 5), np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(run_stored(store, manifest, [x[None]])[0][0], expected, rtol=1e-6)


def test_an_open_batch_beside_a_state_of_one_row_is_served_as_it_is(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    """The file says that it takes batches, and runs at none but 1."""
    nodes = [
        helper.make_node("Squeeze", ["x", "axes"], ["s"]),
        helper.make_node("ReduceMax", ["h"], ["m"], axes=[0, 1], keepdims=0),
        helper.make_node("Add", ["s", "m"], ["y"]),
    ]
    shapes: dict[str, list[int | str]] = {"x": ["batch", "frames", 4], "h": [2, 1, 4]}
    path = tmp_path / "m.onnx"
    onnx.save(make_model(nodes, shapes, {"y": ["frames", 4]}, {"axes": np.array([0], np.int64)}), path)
    compiled = compile_file(path, "m", store)
    spec = compiled.manifest.spec()
    assert (spec.whole, spec.max_rows, [each.name for each in spec.symbols]) == (True, 1, ["frames"])
    assert [each.shape[0] for each in spec.inputs] == [1, 2]
    assert compiled.whole_because.startswith("the model runs at none of the sizes that were tried for frames")


def test_an_open_batch_whose_rows_mix_is_served_by_single_rows(
    store: Store, make_model: MakeModel, tmp_path: Path
) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    for dims, name in (["n", 5], "open"), ([1, 5], "one"):
        onnx.save_model(make_model([node], {"x": dims}, {"y": dims}), tmp_path / "m.onnx")
        manifest = compile_file(tmp_path / "m.onnx", name, store, (1, 2, 4)).manifest
        assert (manifest.whole, manifest.batch_sizes) == (False, (1,))
        assert "Softmax" in manifest.unshared


OPSET = '<ir_version: 9, opset_import: ["" : 20]>'


@pytest.mark.parametrize(
    ("graph", "inputs"),
    [
        ("g (float x) => (float y) <float w = {2.5}> { y = Mul(x, w) }", [np.float32(3)]),
        (
            "g (float[3] x) => (float y) <float a = {1}, float b = {-1}> "
            "{ m = ReduceMax<keepdims=0>(x) c = Greater(m, b) y = Where(c, a, b) }",
            [np.arange(3, dtype=np.float32)],
        ),
        (
            "g (int64 i) => (float y) <float[5] w = {1, 2, 3, 4, 5}, float s = {3}> "
            "{ p = Gather(w, i) y = Mul(p, s) }",
            [np.int64(2)],
        ),
    ],
    ids=["product", "choice", "element"],
)
def test_a_weight_without_axes_has_none(
    graph: str, inputs: list[Any], store: Store, tmp_path: Path, run_stored: Run
) -> None:
    model = onnx.parser.parse_model(f"{OPSET}\n{graph}")
    onnx.save_model(model, tmp_path / "m.onnx")
    manifest = compile_file(tmp_path / "m.onnx", "m", store).manifest
    given = dict(zip([value.name for value in model.graph.input], map(np.asarray, inputs), strict=True))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    found = run_stored(store, manifest, [array[None] for array in given.values()])
    assert [array.shape for array in found] == [(1,)] == [(1, *array.shape) for array in expected]
    np.testing.assert_array_equal(found[0][0], expected[0])


@pytest.mark.parametrize(
    "nodes",
    [
        "{ i = Unsqueeze(batch, one) p = GatherND(x, i) y = Sub(x, p) }",
        "{ p = Gather(x, batch) y = Sub(x, p) }",
        '{ i = Unsqueeze(batch, one) y = ScatterND<reduction: string = "add">(x, i, x) }',
    ],
    ids=["GatherND", "Gather", "ScatterND"],
)
def test_rows_that_name_each_other_by_indices_are_one_request(
    nodes: str, store: Store, tmp_path: Path, run_stored: Run
) -> None:
    graph = f"g (float[N,3] x, int64[N] batch) => (float[N,3] y) <int64[1] one = {{1}}> {nodes}"
    model = onnx.parser.parse_model(f"{OPSET}\n{graph}")
    onnx.save_model(model, tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store)
    assert compiled.manifest.whole
    assert "any of them" in compiled.whole_because
    given = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "batch": np.array([0, 0, 3, 1])}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    found = run_stored(store, compiled.manifest, [array[None] for array in given.values()], (4,))
    np.testing.assert_allclose(found[0][0], expected[0])


def test_texts_that_are_split_have_as_many_parts_as_they_have(store: Store, tmp_path: Path) -> None:
    graph = (
        'g (string[N] x) => (string[N,K] y, int64[N] n) { y, n = StringSplit<delimiter: string = " ">(x) }'
    )
    onnx.save_model(onnx.parser.parse_model(f"{OPSET}\n{graph}"), tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store)
    assert compiled.manifest.whole
    assert [spec.varies for spec in compiled.manifest.outputs] == [(1,), ()]
    assert compiled.whole_because.startswith("values of inputs decide the shapes of tensors, and output 0")
