"""Which models may share executions: one with a scale for the whole batch, stored ones without a proof."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import PROOF_VERSION, Independence, Manifest, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.report import describe_sharing
from mainspring.compiler.rows.proving import proved_specs, settled
from mainspring.compiler.sizes.samples import draw, index_tables, value_limits
from mainspring.messages.model import TensorSpec
from mainspring.repository.compile_child import stored

SOURCE = Source("onnx", "model.onnx")


def small_vocabulary() -> onnx.ModelProto:
    """A table of 32 entries, all but the first two of them large, quantised with one scale for the batch."""
    random = np.random.default_rng(3)
    table = random.uniform(-40, 40, (32, 16)).astype(np.float32)
    table[:2] = random.uniform(-1, 1, (2, 16))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("DynamicQuantizeLinear", ["rows"], ["q", "s", "z"], name="quantise"),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "vocabulary",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 4])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(random.integers(-99, 99, (16, 4), np.int8), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def without_proof(store: Store, manifest: Manifest, sizes: tuple[int, ...] = (1, 2)) -> Manifest:
    """Store the manifest as it was before there were proofs."""
    old = msgspec.structs.replace(manifest, independence=None, batch_sizes=sizes)
    store.put_manifest(old)
    return old


def test_one_scale_for_the_batch_of_a_small_vocabulary_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    compiled = compile_model(small_vocabulary(), "m", store, (1, 2, 4), SOURCE)
    spec = store.manifest("m").spec()
    assert (compiled.manifest.batch_sizes, spec.batch_sizes) == ((1,), (1,))
    assert spec.unshared == "node 'quantise' (DynamicQuantizeLinear) has one scale for all rows of a batch"
    assert describe_sharing(compiled) == (
        "served one row at a time, because requests that share a run could change each other: "
        + spec.unshared
    )


def test_samples_contradict_what_the_rules_prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.compiler.independence.walk.why_rows_mix", lambda *_: "")
    manifest = compile_model(small_vocabulary(), "m", Store(tmp_path), (1, 2, 4), SOURCE).manifest
    assert manifest.batch_sizes == (1,)
    assert "depends on the other rows of the batch" in manifest.unshared


def test_an_infinite_row_contradicts_what_the_rules_prove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.compiler.independence.walk.why_rows_mix", lambda *_: "")
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 1, 2], np.float32), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    manifest = compile_model(model, "m", Store(tmp_path), (1, 2, 4), SOURCE).manifest
    assert manifest.batch_sizes == (1,)
    assert "another row of the batch, which is infinite" in manifest.unshared


def sample_rows(inputs: list[TensorSpec], run: Any, tables: dict[str, int] | None = None) -> list[np.ndarray]:
    return draw(inputs, value_limits(inputs, 16, run, tables), 16)


def test_all_of_a_table_is_sampled() -> None:
    model = small_vocabulary()
    ids = TensorSpec("ids", "int64", (8,))
    (known,) = sample_rows([ids], lambda _: [], index_tables(model.graph))

    def below_75(arrays: list[np.ndarray]) -> list[np.ndarray]:
        if arrays[0].max() >= 75:
            raise CompileError("index out of range")
        return arrays

    (sought,) = sample_rows([ids], below_75)
    assert known.max() == 31
    assert sought.max() == 74


def test_integers_that_decide_a_shape_are_refused_while_they_are_small() -> None:
    inputs = [TensorSpec("ids", "int64", (8,)), TensorSpec("length", "int64", ())]

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        length = int(arrays[1][0])
        assert length < 4, "what it makes could be as large as the memory"
        return [np.zeros((1, length)), arrays[0]]

    with pytest.raises(CompileError, match="values of input 'length' decide the shape of an output"):
        sample_rows(inputs, run)


def test_rows_of_floats_differ_in_scale() -> None:
    (rows,) = sample_rows([TensorSpec("x", "float32", (400,))], lambda _: [])
    sizes = np.abs(rows).max(axis=1)
    assert sizes.max() > 16 * sizes.min()


def test_a_stored_model_without_a_proof_is_proved_from_its_graph(tmp_path: Path) -> None:
    store = Store(tmp_path)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = compile_model(model, "m", store, (1, 2), SOURCE)
    assert describe_sharing(compiled) == "", "requests may share its executions"
    old = without_proof(store, compiled.manifest)
    assert old.spec().batch_sizes == (1,), "until it is proved"
    (spec,) = proved_specs(store, [old])
    assert (spec.batch_sizes, spec.unshared) == ((1, 2), "")
    assert store.manifest("m").spec() == spec, "the proof is kept"


def test_a_stored_model_whose_rows_mix_is_limited_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    old = without_proof(store, compile_model(small_vocabulary(), "m", store, (1, 2), SOURCE).manifest)
    with caplog.at_level(logging.WARNING):
        (spec,) = proved_specs(store, [old])
    assert spec.batch_sizes == (1,)
    assert "DynamicQuantizeLinear" in spec.unshared
    (said,) = [record.getMessage() for record in caplog.records]
    assert "m is served one row at a time" in said
    assert f"mainspring compile model.onnx --name m --store {store.root}" in said


def test_a_proof_by_older_rules_is_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    found = compile_model(small_vocabulary(), "m", store, (1, 2), SOURCE).manifest
    older = msgspec.structs.replace(found, independence=Independence(PROOF_VERSION - 1), batch_sizes=(1, 2))
    store.put_manifest(older)
    assert settled(store, older) is None, "it is to be compiled again"
    (spec,) = proved_specs(store, [older])
    assert spec.batch_sizes == (1,)
    assert "DynamicQuantizeLinear" in spec.unshared


def test_a_stored_model_that_can_only_run_several_rows_is_not_served(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = compile_model(small_vocabulary(), "m", store, (1, 2), SOURCE).manifest
    without_proof(store, manifest, (2, 4))
    with pytest.raises(StoreError, match="2 rows at least"):
        store.manifest("m")


def test_a_repository_compiles_what_it_can_not_prove_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = compile_model(small_vocabulary(), "m", store, (1, 2), SOURCE).manifest
    assert stored(store, "m") == manifest.spec(), "what the present rules refused stays so"
    without_proof(store, manifest)
    assert stored(store, "m") is None
