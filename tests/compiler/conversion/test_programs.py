"""Programs of PyTorch as ONNX files; where torch is installed, with real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.conversion.opening import as_onnx
from mainspring.compiler.reading.stock import StockSession


def test_without_torch_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        pytest.raises(CompileError, match="install torch onnxscript`"),
        as_onnx(tmp_path / "m.pt2", trust=True),
    ):
        pass


def test_open_dimensions_keep_their_bounds(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x, mask):  # type: ignore[no-untyped-def]
            return (x * mask).cumsum(1), x.sum(1)

    rows, length = torch.export.Dim("rows", max=64), torch.export.Dim("length", max=300)
    opened = {0: rows, 1: length}
    program = torch.export.export(
        Model(), (torch.ones(2, 5), torch.ones(2, 5)), dynamic_shapes={"x": opened, "mask": opened}
    )
    torch.export.save(program, tmp_path / "m.pt2")
    with as_onnx(tmp_path / "m.pt2", trust=True) as converted:
        model = onnx.load(converted.path)
        assert converted.most == {"x.1": 300}, "the author's bound; the rows have none of their own here"
    for value in model.graph.input:
        assert value.type.tensor_type.shape.dim[1].dim_param == "x.1"
    x = np.arange(12, dtype=np.float32).reshape(1, 12)
    found = StockSession(model.SerializeToString()).run([x, np.ones_like(x)])
    assert np.allclose(np.asarray(found[0], np.float32), x.cumsum(1))


def test_a_file_that_is_no_program_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    (tmp_path / "m.pt2").write_bytes(b"PK nothing")
    with pytest.raises(CompileError, match=r"PyTorch .* can't read"), as_onnx(tmp_path / "m.pt2", trust=True):
        pass
