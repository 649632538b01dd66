"""A model that one of ONNX Runtime's optimisations breaks is optimised less, and that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program import compiled as compiling
from mainspring.compiler.reading import stock
from mainspring.compiler.report import describe_verification, fields
from tests.compiler.conftest import MakeModel


def broken(upto: int, how: str) -> Any:
    """Return an optimiser that is broken at the steps below ``upto``."""

    def optimise(content: Any, step: int = 0) -> onnx.ModelProto:
        if step >= upto:
            return stock.optimise(content, step)
        if how == "fails":
            raise CompileError("stock ONNX Runtime refuses the model: a node was fused into none")
        found = stock.optimise(content, step)
        if how == "answers otherwise":
            (last,) = [node for node in found.graph.node if node.output[0] == found.graph.output[0].name]
            last.output[0] = "before"
            found.graph.node.append(helper.make_node("Neg", ["before"], [found.graph.output[0].name]))
        else:
            found.graph.node[0].op_type = "NoSuchOperator"
        return found

    return optimise


@pytest.mark.parametrize("how", ["fails", "answers otherwise", "does not open"])
@pytest.mark.parametrize("upto", [1, 2, 3])
def test_it_is_served_with_fewer(
    how: str,
    upto: int,
    make_mlp: MakeModel,
    tmp_path: Path,
    monkeypatch: Any,
    run_stored: Any,
    run_stock: Any,
) -> None:
    model = make_mlp()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    monkeypatch.setattr(compiling, "optimise", broken(upto, how))
    store = Store(tmp_path / "store")
    found = compile_file(tmp_path / "m.onnx", "m", store)
    assert found.optimised == stock.STEPS[upto][0] == fields(found)["optimised"]
    assert f"with {found.optimised}" in describe_verification(found)
    x = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    (ours,), (theirs,) = run_stored(store, found.manifest, [x]), run_stock(model, [x])
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_where_all_fail_the_first_reason_is_said(
    make_mlp: MakeModel, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "m.onnx").write_bytes(make_mlp().SerializeToString())
    monkeypatch.setattr(compiling, "optimise", broken(9, "fails"))
    with pytest.raises(CompileError, match="fused into none"):
        compile_file(tmp_path / "m.onnx", "m", Store(tmp_path / "store"))


def test_what_only_opens_unoptimised_is_compared_so(
    make_mlp: MakeModel, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "m.onnx").write_bytes(make_mlp().SerializeToString())
    opened = stock.open_session

    def fragile(content: Any, optimised: bool = True) -> Any:
        if optimised:
            raise CompileError("stock ONNX Runtime refuses the model: a node was fused into none")
        return opened(content, optimised)

    monkeypatch.setattr(stock, "open_session", fragile)
    assert compile_file(tmp_path / "m.onnx", "m", Store(tmp_path / "store")).manifest.batch_sizes[-1] == 16
