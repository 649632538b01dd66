"""Measuring artifacts on a GPU in processes of their own: what comes back, and what may go wrong there."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from mainspring.cli.profiling import gpu_judge
from mainspring.cli.profiling.gpu_judge import GpuJudge, judge_for
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import Attributes, known_gpu
from mainspring.compiler.choosing.durations import Contender, Judged
from mainspring.compiler.program.compiled import DEFAULT_ARCH, Target
from mainspring.worker.engines.cuda.devices import FoundDevice
from mainspring.worker.engines.cuda.driver import DriverMissing
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.fake_gpu import KIND, VARIABLE, FakeGpu
from tests.worker.engines.cuda.tiny_store import tiny_store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, name: str) -> Manifest:
    """Store the tiny model for a GPU."""
    tiny_store(store.root, "a")
    manifest = msgspec.structs.replace(store.manifest("a"), name=name)
    store.put_manifest(manifest)
    return manifest


def contender(executable: str = "e" * 64, weights_bytes: int = tiny.WEIGHTS_BYTES) -> Contender:
    return Contender("tvm", executable, weights_bytes, put)


def answering(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have another program answer for `mainspring profile`."""
    monkeypatch.setattr(gpu_judge, "PROGRAM", (sys.executable, "-c", script))


def test_an_artifact_is_measured_as_mainspring_profile_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_judge, "PROGRAM", (sys.executable, "-m", "tests.worker.engines.cuda.fake_gpu"))
    monkeypatch.setattr(gpu_judge, "SECONDS", 0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(FakeGpu(kernel_ns=7_000)).decode())
    (found,) = GpuJudge(store)([contender()])
    assert found.failed == ""
    assert found.device_kind == KIND
    # Two kernels, and what the host does before and after them.
    assert all(14_000 <= found.infer_ns[size] < 17_000 for size in (1, 2))
    assert found.profile is not None
    assert all(14_000 <= found.profile.infer_ns[size] < 17_000 for size in (1, 2))
    assert [*store.root.iterdir()] == [], "what was measured is gone"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "import sys; print('mainspring: GPU 0: it is gone\\nlater noise', file=sys.stderr); sys.exit(1)",
            "GPU 0: it is gone",
        ),
        (
            "import sys; print('terminate called', file=sys.stderr, flush=True); import os; os.abort()",
            "measuring it ended with exit code -6: terminate called",
        ),
        ("import os; os._exit(3)", "measuring it ended with exit code 3: it said nothing"),
    ],
)
def test_what_goes_wrong_there_is_the_artifacts_own_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    answering(monkeypatch, script)
    assert GpuJudge(store)([contender()]) == [Judged(failed=reason)]


def test_a_gpu_that_hangs_is_not_waited_for_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "import signal; signal.pause()")
    monkeypatch.setattr(gpu_judge, "TIMEOUT_S", 0.5)
    (found,) = GpuJudge(store)([contender()])
    assert "was not done with it after" in found.failed


def test_what_shares_an_executable_is_measured_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "runs"
    answering(monkeypatch, f"open({str(path)!r}, 'a').write('x'); raise SystemExit(9)")
    judge = GpuJudge(store)
    first, second, larger = contender("a" * 64), contender("b" * 64), contender("a" * 64, 77)
    judge([first, second])
    judge([second, first])
    assert path.read_text() == "xx"
    judge([larger])
    assert path.read_text() == "xxx"


def find(*found: FoundDevice) -> object:
    def answer() -> list[FoundDevice]:
        if not found:
            raise DriverMissing("CUDA finds no GPU here")
        return list(found)

    return answer


def test_only_a_choice_for_a_gpu_takes_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_judge, "find_devices", find())
    for engine, device in (("auto", "cpu"), ("tvm", "cuda"), ("onnxruntime", "cuda")):
        target = Target(engine, device, DEFAULT_ARCH)
        assert judge_for(engine, device, None, store, "") == (target, None)
    assert judge_for("tvm", "cuda", "sm_80", store, "")[0].arch == "sm_80"
    with pytest.raises(
        CompileError, match=r"none can be used: CUDA finds no GPU here\. Without one, do that"
    ):
        judge_for("auto", "cuda", None, store, "do that")


def test_a_precision_is_judged_before_a_gpu_is_looked_for(store: Store) -> None:
    assert judge_for("tvm", "cuda", None, store, "", "tf32")[0].precision == "tf32"
    for engine, device in (("auto", "cuda"), ("tvm", "cpu"), ("onnxruntime", "cuda")):
        with pytest.raises(CompileError, match=f"tf32 is for the engine tvm .*not for {engine} on {device}"):
            judge_for(engine, device, None, store, "do that", "tf32")


def test_kernels_are_for_the_gpu_that_chooses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FoundDevice(number, "A100", "", arch) for number, arch in enumerate(("sm_80", "sm_90"))]
    monkeypatch.setattr(gpu_judge, "find_devices", find(*gpus))
    for given, arch in ((None, "sm_80"), ("sm_86", "sm_86")):
        target, judge = judge_for("auto", "cuda", given, store, "")
        assert (target.engine, target.device, target.arch) == ("auto", "cuda", arch)
        assert (target.tuner is None) == (given is not None), "kernels of another architecture don't run here"
        assert isinstance(judge, GpuJudge)


def test_kernels_are_timed_where_there_is_a_gpu_and_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_judge, "find_devices", find())
    with pytest.raises(CompileError, match=r"none can be used: .* Without --tune-seconds"):
        judge_for("tvm", "cuda", None, store, "", tune_seconds=5)
    with pytest.raises(CompileError, match="--device cuda, and --engine tvm or auto"):
        judge_for("auto", "cpu", None, store, "", tune_seconds=5)
    with pytest.raises(CompileError, match="those of tf32 are chosen by calculation"):
        judge_for("tvm", "cuda", None, store, "", "tf32", tune_seconds=5)
    monkeypatch.setattr(
        gpu_judge, "find_devices", find(FoundDevice(0, "A100", "", "sm_80", Attributes(42, 1_000_000)))
    )
    with pytest.raises(CompileError, match=r"sm_90 can't be timed on this GPU, an sm_80"):
        judge_for("tvm", "cuda", "sm_90", store, "", tune_seconds=5)
    # Its multiprocessors are its own: it may be a partition.
    of_the_device = msgspec.structs.replace(known_gpu("sm_80"), processors=42, clock_mhz=1000)
    seconds = {}
    for engine, given in (("tvm", 5.0), ("auto", None), ("auto", 0.0)):
        target, _ = judge_for(engine, "cuda", None, store, "", tune_seconds=given)
        assert (target.arch, target.tuner and target.tuner.store) == ("sm_80", store)
        assert target.described == of_the_device
        seconds[engine, given] = target.tuner and target.tuner.seconds
    assert seconds == {("tvm", 5.0): 5, ("auto", None): 60, ("auto", 0.0): 0}
    assert judge_for("tvm", "cuda", None, store, "")[0].tuner is None
