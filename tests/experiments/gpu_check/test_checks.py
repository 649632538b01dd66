"""Each check on the CPU: that it measures what it says, and that it sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from mainspring.experiments.gpu_check import cycling, loading, steady
from mainspring.experiments.gpu_check.cluster import check_cluster
from mainspring.experiments.gpu_check.cycling import check_cycling
from mainspring.experiments.gpu_check.device import lines, tell_device
from mainspring.experiments.gpu_check.large import check_large_tensor
from mainspring.experiments.gpu_check.models import LARGE, check_compiling, compile_all, jobs_of
from mainspring.experiments.gpu_check.outputs import check_outputs, compare, in_tolerances
from mainspring.experiments.gpu_check.outputs import verdicts as output_verdicts
from mainspring.experiments.gpu_check.parts import all_outputs, graphs_if_any
from mainspring.experiments.gpu_check.settings import ONNXRUNTIME, TVM, Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict
from mainspring.worker.engines.cuda.state import GpuState
from mainspring.worker.realtime import Rights


def states(verdicts: list[Verdict]) -> list[State]:
    return [verdict.state for verdict in verdicts if verdict.state is not State.TOLD]


def device(settings: Settings, *names: str) -> LoneDevice:
    store = Store(settings.store(ONNXRUNTIME))
    return device_for([store.manifest(name).spec() for name in names], settings.config())


def test_the_device_is_told_with_what_could_be_better(settings: Settings) -> None:
    assert [verdict.found for verdict in tell_device(settings)] == ["this machine's processor"]
    gpu = GpuState(index=0, name="NVIDIA H200", bus_id="0000:3b:00.0", total_bytes=143 << 30, mig=True)
    told, *better = lines("NVIDIA H200", "0000:3b:00.0", [gpu])
    assert told.found.startswith("NVIDIA H200, 143 GiB")
    assert any("MIG" in verdict.found for verdict in better)
    for states in ("no NVML here", [msgspec.structs.replace(gpu, bus_id="0000:af:00.0")]):
        told, unknown = lines("NVIDIA H200", "0000:3b:00.0", states)
        assert (told.found, unknown.state) == ("NVIDIA H200", State.NOT_RUN)


def test_what_was_compiled_is_kept(settings: Settings) -> None:
    (verdict,) = check_compiling(settings)
    assert verdict.found.startswith("0 models")
    assert f"{len(jobs_of(settings))} were there already" in verdict.found


def test_nothing_is_compiled_for_an_engine_that_can_not_be_checked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for another machine, of which nobody knows what it has."""
    on_gpu = msgspec.structs.replace(settings, device="cuda:0", engine=TVM, engines=(TVM, ONNXRUNTIME))
    for provider, engines in ((), {TVM}), (("CUDAExecutionProvider",), {TVM, ONNXRUNTIME}):
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda there=provider: list(there))
        assert {job.engine for job in jobs_of(on_gpu)} == engines
        elsewhere = msgspec.structs.replace(on_gpu, arch="sm_90")
        assert {job.engine for job in jobs_of(elsewhere)} == {TVM, ONNXRUNTIME}


def test_outputs_are_missed_where_nothing_was_compiled(settings: Settings) -> None:
    judged, _ = check_outputs(msgspec.structs.replace(settings, architectures=("alexnet",)), ONNXRUNTIME)
    assert (judged.state, judged.found, judged.note) == (State.MISSED, "0", "not compiled: alexnet")


def test_a_model_that_can_not_be_compiled_and_one_without_time_are_told(settings: Settings) -> None:
    job = msgspec.structs.replace(jobs_of(settings)[0], name="broken", source="no-such-architecture")
    done, late, errors = compile_all(settings, [job], "", float("inf"))
    assert (done, late) == ([], [])
    assert "no-such-architecture" in errors[0][1]
    assert compile_all(settings, [job], "", 0.0) == ([], [job], [])


def test_outputs_of_the_zoo_are_onnx_runtimes(settings: Settings) -> None:
    judged, explained = check_outputs(settings, ONNXRUNTIME)
    assert (judged.state, judged.wanted, judged.found) == (State.MET, "all 2", "2")
    assert float(explained.found.split()[0]) < 1


def test_outputs_of_another_model_are_seen(settings: Settings) -> None:
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    with device(settings, "digits") as opened:
        assert compare(opened, spec, build("digits", 0), (1, 2)) < 1
        assert compare(opened, spec, build("digits", 7), (1, 2)) > 100


def test_tolerances_grow_with_the_element_and_the_largest_one() -> None:
    expected = np.array([1.0, 1000.0, 0.0], np.float32)
    assert in_tolerances(expected, expected) == 0
    assert in_tolerances(expected + np.float32(0.05), expected) == pytest.approx(0.5, rel=1e-3)
    assert in_tolerances(np.array([1, np.nan, 0], np.float32), expected) == np.inf
    assert in_tolerances(np.zeros(3, np.float32), np.zeros(3, np.float32)) == 0


def test_models_that_differ_break_or_are_absent_are_named() -> None:
    judged, _ = output_verdicts("tvm", ("a", "b", "c", "d"), {"a": 0.1, "b": 3.0}, {"c": "no memory"})
    assert (judged.state, judged.found) == (State.MISSED, "1")
    for part in ("b is off by 3 tolerances", "c: no memory", "not compiled: d"):
        assert part in judged.note


def test_an_engine_that_is_not_there_is_not_checked(settings: Settings) -> None:
    (verdict,) = all_outputs(msgspec.structs.replace(settings, engines=("quantum",)))
    assert (verdict.state, verdict.found) == (State.NOT_RUN, "there is no engine quantum")
    (verdict,) = graphs_if_any(settings)
    assert verdict.state is State.NOT_RUN


def test_load_is_compared_with_as_many_bytes(settings: Settings) -> None:
    judged, load, plain = loading.check_loading(settings)
    assert judged.state in (State.MET, State.MISSED)
    assert load.found.endswith("ms")
    assert float(plain.note.split()[0]) > 0.1
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    verdicts = loading.verdicts(spec, np.array([100, 110, 900]), np.array([105, 104.5, 104]).astype(int))
    assert (verdicts[0].state, verdicts[0].found) == (State.MISSED, f"{104 / 110:.5g}")


def test_infers_run_beside_loads(settings: Settings) -> None:
    judged, explained = steady.check_steadiness(settings)
    assert judged.note.startswith("50 runs of digits beside ")
    assert int(judged.note.split()[-2].replace(",", "")) > 0
    assert len(explained.found.split(", ")) == 3


def test_the_tail_is_judged_against_the_median(settings: Settings) -> None:
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    durations = np.full(100_000, 1_000_000)
    durations[:11] = 1_009_000
    assert steady.verdicts(spec, durations, 100_000, 5, [])[0].state is State.MET
    durations[:11] = 1_011_000
    judged = steady.verdicts(spec, durations, 200_000, 5, ["no priority"])[0]
    assert judged.state is State.MISSED
    assert "time was up before 200,000" in judged.note
    assert "no priority" in judged.note


def test_a_load_that_fails_beside_is_not_lost(settings: Settings) -> None:
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    with (
        device(settings, "digits") as opened,
        pytest.raises(KeyError),
        steady.loading_beside(opened, spec, (0,), Rights(False)),
    ):
        pass


def test_the_first_model_that_the_time_does_for_is_run(settings: Settings) -> None:
    store = Store(settings.store(ONNXRUNTIME))
    slow, quick = (store.manifest(name).spec() for name in ("resnet20", "digits"))
    for seconds, expected in ((1e6, slow), (1e-6, quick)):
        limits = msgspec.structs.replace(settings, infers_s=seconds)
        with device(settings, "resnet20", "digits") as opened:
            assert steady.choose(opened, [slow, quick], limits) == expected
            assert opened.infer(expected, 1)() > 0


def test_a_large_tensor_is_loaded_in_adjacent_pages(settings: Settings) -> None:
    judged, _ = check_large_tensor(settings)
    assert judged.state is State.MET
    assert judged.note == "extents of [2] pages"
    assert Store(settings.store(ONNXRUNTIME)).manifest(LARGE).weights_bytes == 4 * 1_000 * 5_000


def test_models_are_cycled_and_leave_nothing_behind(settings: Settings) -> None:
    store = Store(settings.store(ONNXRUNTIME))
    before = store.names()
    found = check_cycling(settings)
    assert states(found) == [State.MET] * 3
    assert "12 different weights" in found[0].note
    assert store.names() == before
    assert store.collect() == 0
    assert not list(Path(settings.folder).glob("mainspring-gpu-check-*"))


def test_models_beyond_what_memory_allows_share_weights(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycling, "LARGEST_DIFFERENT", 3)
    found = check_cycling(settings)
    assert states(found) == [State.MET] * 3
    assert "3 different weights, 12 models" in found[0].note


@pytest.mark.parametrize("changing", [False, True])
def test_outputs_of_wrong_weights_are_seen(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, changing: bool
) -> None:
    """Pages that keep a former model's weights give all models one output, overwritten ones give any."""
    random = np.random.default_rng(0)
    stale = random.standard_normal(4)
    monkeypatch.setattr(LoneDevice, "run", lambda *_: [random.standard_normal(4) if changing else stale])
    found = {verdict.what.strip(): verdict for verdict in check_cycling(settings)}
    assert found["runs with wrong outputs"].state is State.MISSED


def test_a_whole_cluster_serves(settings: Settings) -> None:
    found = check_cluster(settings)
    assert [verdict.what for verdict in found[:4]] == [
        "cluster, SLO 2000 ms: goodput",
        "cluster, SLO 2000 ms: late",
        "cluster, SLO 2000 ms: without a reply",
        "cluster, SLO 2000 ms: 99.99th percentile",
    ]
    # Whether a busy machine serves in time is not for a test to say.
    assert {*states(found)} <= {State.MET, State.MISSED}
    assert found[2].state is State.MET, "requests without an answer"
    assert float(found[0].found.split()[0]) > 50
    kept = Store(settings.folder + "/store-cluster").manifest("digits-1")
    assert set(kept.profiles) == {"cpu"}
