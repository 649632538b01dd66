"""IR and opset versions that ONNX Runtime does not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import Compiled, compile_model
from mainspring.compiler.reading import versions
from mainspring.compiler.reading.versions import make_readable, newest_ir, newest_opset

MakeModel = Callable[..., onnx.ModelProto]
Run = Callable[..., list[Any]]


def compile_here(model: onnx.ModelProto, store: Store) -> Compiled:
    return compile_model(model, "m", store, (1, 2), Source("onnx", "m.onnx"))


@pytest.mark.parametrize("opset", [*range(7, onnx.defs.onnx_opset_version() + 1)])
def test_every_opset_from_7_on_is_read(make_mlp: MakeModel, opset: int) -> None:
    model = make_mlp(1)
    model.opset_import[0].version = opset
    readable = make_readable(model)
    assert readable.model.opset_import[0].version == min(opset, newest_opset())
    assert not readable.converted


@pytest.mark.parametrize("ir_version", [*range(3, onnx.IR_VERSION + 1)])
def test_every_ir_version_compiles(store: Store, make_mlp: MakeModel, ir_version: int) -> None:
    model = make_mlp(1)
    model.ir_version, model.opset_import[0].version = ir_version, 9
    if ir_version < 4:
        for tensor in model.graph.initializer:
            dims = list(tensor.dims)
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, dims))
    readable = make_readable(model).model
    assert readable.ir_version == min(ir_version, newest_ir())
    assert compile_here(model, store).manifest.inputs[0].name == "x"


def test_an_element_type_of_a_newer_ir_version_keeps_it_from_being_lowered(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "newest_ir", lambda: 10)
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1)
    model = make_model([cast], {"x": ["n", 2]}, {"y": ["n", 2]})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model.ir_version = 11
    with pytest.raises(CompileError, match=r"IR version 11 and uses its FLOAT4E2M1; .* reads up to 10"):
        make_readable(model)


def test_an_ir_version_that_nobody_knows_is_refused(make_mlp: MakeModel) -> None:
    model = make_mlp(1)
    model.ir_version = 99
    with pytest.raises(CompileError, match=rf"IR version 99.* reads up to {newest_ir()}"):
        make_readable(model)


def test_an_operator_that_changed_is_converted_and_compared(
    store: Store, make_model: MakeModel, run_stored: Callable[..., list[Any]]
) -> None:
    """Opset 1's AveragePool has no kernel in ONNX Runtime; the converter makes it opset 7's."""
    pool = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    model = make_model([pool], {"x": [1, 3, 4, 4]}, {"y": [1, 3, 2, 2]}, opset=1)
    readable = make_readable(model)
    assert readable.converted
    assert readable.model.opset_import[0].version == versions.OLDEST_OPSET
    compiled = compile_here(model, store)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4), np.float32)
    expected = x.reshape(2, 3, 2, 2, 2, 2).mean(axis=(3, 5))
    np.testing.assert_allclose(run_stored(store, compiled.manifest, [x])[0], expected, rtol=1e-5)


def test_a_conversion_that_computes_something_else_is_refused(
    store: Store, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = make_model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 3, 2, 2]},
    )
    converter = "mainspring.compiler.reading.versions.version_converter.convert_version"
    monkeypatch.setattr(converter, lambda model, opset: wrong)
    pool = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    model = make_model([pool], {"x": [1, 3, 4, 4]}, {"y": [1, 3, 2, 2]}, opset=1)
    with pytest.raises(CompileError, match="opset 1 computes something else"):
        compile_here(model, store)


def test_an_operator_that_no_older_opset_has_is_named(make_model: MakeModel) -> None:
    model = make_model(
        [helper.make_node("NoSuchThing", ["x"], ["y"], name="odd")], {"x": ["n", 2]}, {"y": ["n", 2]}, opset=1
    )
    with pytest.raises(CompileError, match=r"NoSuchThing.*export it with an opset from 7 to"):
        make_readable(model)
