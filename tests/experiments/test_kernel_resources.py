"""The command that prints what a model's kernels take of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.compiler.artifact.manifest import CUDA, TVM
from mainspring.compiler.artifact.nvrtc import NvrtcMissing, Resources
from mainspring.compiler.artifact.nvrtc import kernel_resources as assemble
from mainspring.compiler.artifact.plan import SET_ADDRESSES
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.experiments import kernel_resources as command

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")


@pytest.fixture(autouse=True)
def nvrtc() -> None:
    try:
        assemble(b"", "sm_90")
    except NvrtcMissing as error:
        pytest.skip(f"{error}: make test-codegen installs it")


def test_the_command_prints_each_kernel_and_fails_at_a_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    (compiled,) = compile_zoo(["digits"], store, 1, 0, (1,), Target(TVM, CUDA, "sm_80"))
    command.measure(compiled.manifest.name, store.root)
    lines = capsys.readouterr().out.splitlines()
    assert any(SET_ADDRESSES in line for line in lines)
    spilling = {"b1_conv": Resources(64, 0, 0, 8)}
    monkeypatch.setattr(command, "kernel_resources", lambda *_: spilling)
    with pytest.raises(SystemExit, match="spill"):
        command.measure(compiled.manifest.name, store.root)
    with pytest.raises(SystemExit, match="nothing"):
        command.measure("nothing", store.root)
