"""``torch``: ratios to torch's times at the same precision, and what is missing where they can't be had."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from mainspring.compiler.artifact.manifest import FP16, FP32, TF32, Verification
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check import beside_torch
from mainspring.experiments.gpu_check.beside_torch import check_beside_torch
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import TVM, Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict
from tests.experiments.gpu_check.conftest import MAIN
from tests.worker.engines.cuda import tiny_plans as tiny

Gpu = Callable[[FakeDriver], Settings]
THEIRS_NS = {FP32: 100_000, TF32: 50_000, FP16: 20_000}


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give torch the times above; the list that is returned grows by each batch that it runs."""
    ran: list[str] = []

    def run_of(precision: str, size: int) -> Callable[[], int]:
        def run() -> int:
            ran.append(precision)
            return THEIRS_NS[precision] * size

        return run

    monkeypatch.setattr(beside_torch, "missing", lambda _: "")
    monkeypatch.setattr(
        beside_torch, "torch_runs", lambda size, _: {each: run_of(each, size) for each in THEIRS_NS}
    )
    return ran


def found_on(settings: Settings) -> dict[str, Verdict]:
    return {verdict.what.strip(): verdict for verdict in check_beside_torch(settings)}


def test_torch_is_measured_in_turns_and_compared(on_gpu: Settings, beside: list[str]) -> None:
    found = found_on(msgspec.structs.replace(on_gpu, torch_rounds=4))
    own = found["EXEC a, batch 1, fp32"]
    assert (own.state, own.found, own.wanted) == (State.MET, "0.05 ms", "<= 2.5 ms")
    assert found["EXEC a, batch 2, fp32"].found == "0.0500 ms"
    same = found["torch and cuDNN, batch 1, fp32"]
    assert (same.state, same.found) == (State.TOLD, "0.1000 ms")
    assert same.note == "ours at fp32 takes 0.50 times that"
    assert found["torch and cuDNN, batch 2, fp16"].note == "ours at fp32 takes 1.25 times that"
    assert beside[: 2 * len(THEIRS_NS)] == [*THEIRS_NS] * 2, "they do not take turns"


def put_half(settings: Settings, like: str) -> None:
    """Store a model of the main one's architecture for FP16, with the weights of this one."""
    store = Store(settings.store(TVM))
    verified = Verification(0.02, 0.02, 0.0, 1)
    store.put_manifest(
        msgspec.structs.replace(store.manifest(like), name="a-half", precision=FP16, verification=verified)
    )


@pytest.mark.parametrize(("theirs_ns", "state"), [(20_000, State.MET), (10_000, State.MISSED)])
def test_a_model_of_another_precision_is_compared_with_the_same(
    on_gpu: Settings, beside: list[str], monkeypatch: pytest.MonkeyPatch, theirs_ns: int, state: State
) -> None:
    put_half(on_gpu, MAIN)
    monkeypatch.setitem(THEIRS_NS, FP16, theirs_ns)
    found = found_on(on_gpu)
    judged = found["EXEC a, batch 2, fp16: times torch's"]
    assert (judged.state, judged.found) == (state, f"{50_000 / theirs_ns / 2:g} times")
    assert found["torch and cuDNN, batch 2, tf32"].note.startswith("ours at fp32")
    assert "EXEC a, batch 1, fp16: times torch's" not in found


@pytest.mark.parametrize(("like", "state"), [(MAIN, State.MET), ("b", State.MISSED)])
def test_outputs_of_another_precision_are_the_main_models(
    on_gpu: Settings, beside: list[str], like: str, state: State
) -> None:
    put_half(on_gpu, like)
    found = found_on(on_gpu)
    for size in tiny.SIZES:
        assert found[f"outputs of a, batch {size}, fp16: off from fp32's"].state is state


def test_slow_kernels_are_found(gpu: Gpu, beside: list[str]) -> None:
    slow = {name: kernel._replace(duration_ns=2_000_000) for name, kernel in tiny.KERNELS.items()}
    found = found_on(gpu(FakeDriver(4 << 30, slow)))
    assert found["EXEC a, batch 1, fp32"].state is State.MISSED


def test_without_torch_ours_is_measured(on_gpu: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    resnet = msgspec.structs.replace(on_gpu, main="resnet50")
    assert "torch is not installed here" in beside_torch.missing(resnet)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    )
    assert beside_torch.missing(resnet) == "torch finds no GPU"
    assert beside_torch.missing(msgspec.structs.replace(resnet, rehearsed=True))
    found = found_on(on_gpu)
    assert found["torch and cuDNN beside ours"].found == "its network here is resnet50, and the model is a"
    assert found["EXEC a, batch 1, fp32"].state is State.MET
