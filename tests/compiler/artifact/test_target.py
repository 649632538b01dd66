"""Where an executable runs: the machine and the library that it was compiled for, or a GPU."""

from __future__ import annotations

import msgspec
import onnxruntime
import pytest

from mainspring.compiler.artifact import target
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import ExecutableInfo

KERNELS = ExecutableInfo("0" * 64, "x86_64-avx2", "1.0", (), (), (), (), engine="tvm")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with AVX2 and nothing newer."""
    monkeypatch.setattr(target, "cpu_flags", lambda: ("avx", "fma", "avx2"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return monkeypatch


@pytest.mark.parametrize("name", ["x86_64-baseline", "x86_64-avx", "x86_64-avx2"])
def test_kernels_run_where_there_are_their_instructions(here: pytest.MonkeyPatch, name: str) -> None:
    target.check_target(msgspec.structs.replace(KERNELS, instruction_set=name), "compile it again")


@pytest.mark.parametrize("name", ["x86_64-avx512f", "aarch64-baseline", "riscv64-vector"])
def test_kernels_for_other_instructions_are_refused(here: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(
        StoreError, match=f"holds kernels for {name}, but this is x86_64-avx2; compile it again"
    ):
        target.check_target(msgspec.structs.replace(KERNELS, instruction_set=name), "compile it again")


def test_graphs_run_only_where_layout_and_library_are_the_same(here: pytest.MonkeyPatch) -> None:
    graph = msgspec.structs.replace(KERNELS, engine="onnxruntime", onnxruntime=onnxruntime.__version__)
    target.check_target(graph, "")
    for changes in ({"instruction_set": "x86_64-avx"}, {"onnxruntime": "1.0"}):
        with pytest.raises(StoreError, match="was compiled for"):
            target.check_target(msgspec.structs.replace(graph, **changes), "")


def test_what_runs_on_a_gpu_is_the_same_everywhere(here: pytest.MonkeyPatch) -> None:
    target.check_target(msgspec.structs.replace(KERNELS, device="cuda", instruction_set="portable"), "")


def test_kernels_are_generated_for_no_more_than_avx2(here: pytest.MonkeyPatch) -> None:
    assert target.kernels_instruction_set() == "x86_64-avx2"
    here.setattr(target, "cpu_flags", lambda: ("avx", "fma", "avx2", "avx512f"))
    assert target.kernels_instruction_set() == "x86_64-avx2"
    here.setattr(target, "cpu_flags", lambda: ("avx",))
    assert target.kernels_instruction_set() == "x86_64-baseline"
