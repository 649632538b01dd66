"""Models that draw random numbers: what is served is what was compared, but for the seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import TVM, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.compiled import OnnxRuntimeArtifact, Target
from mainspring.compiler.reading.normalise import draws
from mainspring.compiler.reading.replaced_operators import draws_numbers, with_seeds

MakeModel = Callable[..., onnx.ModelProto]


def noisy(make_model: MakeModel, *first: onnx.NodeProto) -> onnx.ModelProto:
    """A model that adds what ``first`` draws, as ``noise``, and what it draws itself."""
    nodes = [
        *(first or [helper.make_node("RandomNormalLike", ["x"], ["noise"])]),
        helper.make_node("RandomUniformLike", ["x"], ["more"], low=0.0, high=0.5),
        helper.make_node("Sum", ["x", "noise", "more"], ["y"]),
    ]
    return make_model(nodes, {"x": [1, 64]}, {"y": [1, 64]})


def compiled(model: onnx.ModelProto, store: Store, tmp_path: Path) -> Manifest:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = compile_file(path, "m", store)
    assert "draws random numbers" in found.whole_because
    return found.manifest


DRAWN = {
    "normal": [helper.make_node("RandomNormal", [], ["noise"], shape=[1, 64])],
    "like": [helper.make_node("RandomNormalLike", ["x"], ["noise"], mean=3.0, scale=0.1)],
    "uniform": [helper.make_node("RandomUniform", [], ["noise"], shape=[1, 64])],
    "bernoulli": [
        helper.make_node("Sigmoid", ["x"], ["p"]),
        helper.make_node("Bernoulli", ["p"], ["noise"]),
    ],
    "multinomial": [
        helper.make_node("Multinomial", ["x"], ["chosen"], sample_size=64),
        helper.make_node("Cast", ["chosen"], ["noise"], to=onnx.TensorProto.FLOAT),
    ],
}


@pytest.mark.parametrize("how", DRAWN)
def test_what_draws_is_compared_and_draws_again_in_every_run(
    store: Store, make_model: MakeModel, tmp_path: Path, how: str
) -> None:
    manifest = compiled(noisy(make_model, *DRAWN[how]), store, tmp_path)
    assert manifest.verification.rows > 1
    graph = onnx.load(store.executable_path(manifest)).graph
    drawing = [node for node in graph.node if draws(node)]
    assert len(drawing) == 2
    assert not any(attribute.name == "seed" for node in drawing for attribute in node.attribute)
    assert not manifest.tensors
    bound = open_executable(store, manifest).bind(manifest.tensors, int)
    first, second = (bound.run_arrays(1, [np.zeros((1, 1, 64), np.float32)])[0] for _ in range(2))
    assert not np.allclose(first, second, atol=0.01)


def test_a_seed_of_the_file_stays(store: Store, make_model: MakeModel, tmp_path: Path) -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["noise"], seed=3.0)
    manifest = compiled(noisy(make_model, node), store, tmp_path)
    graph = onnx.load(store.executable_path(manifest)).graph
    seeds = [attribute.f for node in graph.node for attribute in node.attribute if attribute.name == "seed"]
    assert seeds == [3.0]


def test_a_difference_behind_random_numbers_is_found(
    store: Store, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that draws between other bounds is another model."""
    path = tmp_path / "model.onnx"
    onnx.save(noisy(make_model), path)
    made = OnnxRuntimeArtifact.bind_to_compare

    def spoilt(self: OnnxRuntimeArtifact) -> Any:
        model = onnx.load_from_string(self._compared)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "high":
                    attribute.f = 0.75
        self._compared = model.SerializeToString()
        return made(self)

    monkeypatch.setattr(OnnxRuntimeArtifact, "bind_to_compare", spoilt)
    with pytest.raises(CompileError, match="differs from stock ONNX Runtime's"):
        compile_file(path, "m", store)


def test_kernels_draw_no_numbers(store: Store, make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(noisy(make_model), path)
    with pytest.raises(CompileError, match=r"draws random numbers, .* tvm .*--engine onnxruntime"):
        compile_file(path, "m", store, target=Target(engine=TVM))


def test_each_node_gets_a_seed_of_its_own_functions_too(make_model: MakeModel) -> None:
    model = noisy(make_model)
    inside = helper.make_node("RandomNormalLike", ["a"], ["b"])
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("mine", "Mine", ["a"], ["b"], [inside], imports))
    seeded = with_seeds(model)
    nodes = [*seeded.graph.node, *seeded.functions[0].node]
    seeds = [each.f for node in nodes for each in node.attribute if each.name == "seed"]
    assert len({*seeds}) == 3
    assert not any(each.name == "seed" for node in model.graph.node for each in node.attribute)
    assert draws_numbers(model)
    assert not draws_numbers(make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]}))
