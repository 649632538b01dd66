"""Where ONNX Runtime's optimisations change a model, onnx.reference says which of its answers is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mainspring.compiler import reference
from mainspring.compiler.artifact.errors import CannotRun
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing import opinion as asking
from mainspring.compiler.choosing.opinion import Opinion, opinion
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading import stock
from mainspring.compiler.reading.stock import STEPS, StockSession
from mainspring.compiler.report import describe_verification
from tests.compiler.conftest import MakeModel, RunStored

NODE = helper.make_node


def divided(make_model: MakeModel, *after: onnx.NodeProto) -> onnx.ModelProto:
    """Return ``1 / x * z`` in whole numbers, which ONNX Runtime's optimisations make ``z / x``."""
    nodes = [NODE("Div", ["one", "x"], ["d"]), NODE("Mul", ["d", "z"], ["y"]), *after]
    sides = {"x": ["N", 4], "z": ["N", 4]}, {"y": ["N", 4]}
    return make_model(nodes, *sides, {"one": np.array([1])}, element=TensorProto.INT64)


def normalised(make_model: MakeModel) -> onnx.ModelProto:
    """Return what looks like a layer's normalisation, with the fourth power instead of the second."""
    nodes = [
        NODE("ReduceMean", ["x"], ["mean"], axes=[-1]),
        NODE("Sub", ["x", "mean"], ["d"]),
        NODE("Pow", ["d", "four"], ["p"]),
        NODE("ReduceMean", ["p"], ["v"], axes=[-1]),
        NODE("Add", ["v", "epsilon"], ["ve"]),
        NODE("Sqrt", ["ve"], ["sd"]),
        NODE("Div", ["d", "sd"], ["n"]),
        NODE("Mul", ["n", "scale"], ["s"]),
        NODE("Add", ["s", "bias"], ["y"]),
    ]
    weights = {"four": np.float32(4), "epsilon": np.float32(0.3)}
    vectors = {"scale": np.array([1, -2, 3, 0.5], np.float32), "bias": np.array([0, 1, 0, -1], np.float32)}
    return make_model(nodes, {"x": ["N", 3, 4]}, {"y": ["N", 3, 4]}, weights | vectors)


@pytest.mark.parametrize("make", [divided, normalised])
def test_the_models_own_answers_are_served_where_an_optimisation_changes_them(
    make: Any, make_model: MakeModel, store: Store, tmp_path: Path, run_stored: RunStored
) -> None:
    model = make(make_model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = compile_file(tmp_path / "m.onnx", "m", store)
    random = np.random.default_rng(1)
    whole = make is divided
    given = {
        spec.name: random.integers(1, 5, (4, *spec.shape))
        if whole
        else random.standard_normal((4, *spec.shape), np.float32)
        for spec in found.manifest.inputs
    }
    (expected,) = np.asarray(ReferenceEvaluator(model).run(None, given))
    (ours,) = run_stored(store, found.manifest, [*given.values()])
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    assert found.optimised == STEPS[-1][0]
    assert found.manifest.verification.opinion in describe_verification(found)
    assert "which onnx.reference confirms" in found.manifest.verification.opinion


def ask(model: onnx.ModelProto, batch: list[Any]) -> tuple[Opinion, StockSession]:
    """Return the opinion about a model on one batch, and the optimised session."""
    content = model.SerializeToString()
    optimised = StockSession(content)
    names = [value.name for value in model.graph.input]
    return opinion(content, optimised, names, iter([batch])), optimised


def test_the_optimised_session_stays_the_reference_where_both_answer_alike(
    make_model: MakeModel, monkeypatch: Any
) -> None:
    monkeypatch.setattr(asking, "_evaluate", None)
    ones = np.ones((2, 4), np.int64)
    found, optimised = ask(divided(make_model), [ones, ones])
    assert found == (optimised, "")


def test_where_the_evaluator_can_t_say_the_optimised_session_stays_and_that_is_said(
    make_model: MakeModel, monkeypatch: Any
) -> None:
    batch = [np.full((2, 4), 2), np.full((2, 4), 6)]
    lacks = divided(
        make_model, NODE("Cast", ["y"], ["f"], to=1), NODE("Gelu", ["f"], ["g"], domain="com.microsoft")
    )
    lacks.graph.output[0].CopyFrom(helper.make_tensor_value_info("g", TensorProto.FLOAT, ["N", 4]))
    lacks.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found, optimised = ask(lacks, batch)
    assert found.session is optimised
    assert "onnx.reference can't say which is right" in found.says
    assert "Gelu" in found.says
    monkeypatch.setattr(asking, "LONGEST_S", 0)
    assert ask(divided(make_model), batch)[0].says.endswith("it took longer than 0 s")
    monkeypatch.setattr(asking, "MOST_BYTES", 0)
    assert ask(divided(make_model), batch)[0].says.endswith("the model is larger than 0 MiB")


@pytest.mark.parametrize(
    ("answers", "says"), [(3, "as the optimised model does"), (7, "as neither of the two")]
)
def test_an_evaluator_that_does_not_confirm_the_unoptimised_session_changes_nothing(
    answers: int, says: str, make_model: MakeModel, monkeypatch: Any
) -> None:
    monkeypatch.setattr(asking, "_evaluate", lambda *_: [np.full((2, 4), answers)])
    found, optimised = ask(divided(make_model), [np.full((2, 4), 2), np.full((2, 4), 6)])
    assert found.session is optimised
    assert found.says.endswith(says)


def test_differences_that_rounding_makes_of_its_own_are_nobodys_fault(
    make_model: MakeModel, monkeypatch: Any
) -> None:
    monkeypatch.setattr(asking, "_evaluate", None)
    sharp = [NODE("Mul", ["x", "much"], ["a"]), NODE("Cos", ["a"], ["y"])]
    model = make_model(sharp, {"x": ["N", 4]}, {"y": ["N", 4]}, {"much": np.float32(1e7)})
    batch: list[Any] = [np.random.default_rng(0).standard_normal((2, 4), np.float32)]
    content, optimised = model.SerializeToString(), StockSession(model.SerializeToString())
    run = optimised.run
    monkeypatch.setattr(optimised, "run", lambda arrays: [np.sin(output) for output in run(arrays)])
    assert opinion(content, optimised, ["x"], iter([batch])).says == ""


def test_a_model_that_runs_unoptimised_alone_is_served_so(
    make_mlp: MakeModel, store: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    class Fragile(StockSession):
        """An optimised session that opens, and fails at every run."""

        def __init__(self, content: Any, optimised: bool = True) -> None:
            super().__init__(content, optimised)
            self.broken = optimised

        def run(self, arrays: Any) -> Any:
            if self.broken:
                raise CannotRun("stock ONNX Runtime can't run the model: a fused node has no such shape")
            return super().run(arrays)

    for module in (reference, stock):
        monkeypatch.setattr(module, "StockSession", Fragile)
    (tmp_path / "m.onnx").write_bytes(make_mlp().SerializeToString())
    found = compile_file(tmp_path / "m.onnx", "m", store)
    assert found.manifest.batch_sizes[-1] == 16
    assert "optimisations break the model" in found.manifest.verification.opinion
