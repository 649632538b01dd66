"""Artifacts for a device that the compiler can't measure: what a judge is given, and that it decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mainspring.compiler.artifact.manifest import CUDA, ONNXRUNTIME, TVM, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Contender, Judged
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.tvm import build
from mainspring.messages.model import Profile
from tests.compiler.conftest import MakeModel

SOURCE = Source("onnx", "m.onnx")
ON_GPU = Target("auto", CUDA)


@pytest.fixture(autouse=True)
def _no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's compiler takes long, and there may be none."""
    monkeypatch.setattr(build, "compiled_kernels", lambda *_: None)


@pytest.mark.parametrize("preferred", [ONNXRUNTIME, TVM])
def test_what_a_judge_finds_faster_is_stored_with_its_profile(
    store: Store, make_mlp: MakeModel, preferred: str
) -> None:
    seen: list[Contender] = []

    def judge(contenders: Sequence[Contender]) -> list[Judged]:
        seen.extend(contenders)
        return [
            Judged({1: 60, 2: 80}, "gpu", Profile({1: 70, 2: 90}, 5))
            if each.engine == preferred
            else Judged({1: 500, 2: 900}, "gpu", Profile({1: 700, 2: 990}, 5))
            for each in contenders
        ]

    done = compile_model(make_mlp(1), "m", store, (1, 2), SOURCE, target=ON_GPU, judge=judge)
    assert [each.engine for each in seen] == [ONNXRUNTIME, TVM]
    assert done.manifest == store.manifest("m")
    assert done.manifest.engine == preferred
    assert done.manifest.executable in {each.executable for each in seen}
    assert done.manifest.profiles == {"gpu": Profile({1: 70, 2: 90}, 5)}
    assert store.names() == ["m"]
    store.verify("m")
    assert len([*store.root.glob("executables/*")]) == 1, "the slower one is not kept"


def test_a_judge_can_have_every_artifact_whole(store: Store, make_mlp: MakeModel, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")

    def judge(contenders: Sequence[Contender]) -> list[Judged]:
        for each in contenders:
            manifest = each.put(elsewhere, f"m-{each.engine}")
            assert (manifest.executable, manifest.weights_bytes) == (each.executable, each.weights_bytes)
        return [Judged({1: 1}, "gpu")] * len(contenders)

    done = compile_model(make_mlp(1), "m", store, (1,), SOURCE, target=ON_GPU, judge=judge)
    assert done.manifest.profiles == {}
    assert elsewhere.names() == ["m-onnxruntime", "m-tvm"]
    for name in elsewhere.names():
        elsewhere.verify(name)
        manifest = elsewhere.manifest(name)
        assert name == f"m-{manifest.engine}"
        assert elsewhere.executable_info(manifest).device == CUDA
        assert manifest.profiles == {}
