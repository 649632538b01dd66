"""Each check on the CPU: that it measures what it says, and that it sees what is wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from mainspring.experiments.gpu_check import cluster, cycling, executing, loading, outputs, steady
from mainspring.experiments.gpu_check.cluster import check_cluster, check_many
from mainspring.experiments.gpu_check.cycling import check_cycling
from mainspring.experiments.gpu_check.executing import check_executing
from mainspring.experiments.gpu_check.models import jobs_of
from mainspring.experiments.gpu_check.outputs import (
    check_buckets,
    check_large_tensor,
    check_outputs,
    compare,
    stock,
)
from mainspring.experiments.gpu_check.settings import LARGE, LENGTHS, ONNXRUNTIME, TVM, Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict, told
from mainspring.messages.model import ModelSpec
from mainspring.native import Use


def states(verdicts: Iterable[Verdict]) -> list[State]:
    return [verdict.state for verdict in verdicts if verdict.state is not State.TOLD]


def device(settings: Settings, *names: str) -> LoneDevice:
    store = Store(settings.store(ONNXRUNTIME))
    return device_for([store.manifest(name).spec() for name in names], settings.config())


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


def test_outputs_of_the_zoo_are_onnx_runtimes(settings: Settings) -> None:
    *each, judged, explained = check_outputs(settings, ONNXRUNTIME)
    assert [verdict.what for verdict in each] == [
        f"  {name}, engine onnxruntime" for name in settings.architectures
    ]
    assert (judged.state, judged.wanted, judged.found) == (State.MET, "all 2", "2")
    assert float(explained.found.split()[0]) < 1


def test_outputs_of_another_model_are_seen(settings: Settings) -> None:
    manifest = Store(settings.store(ONNXRUNTIME)).manifest("digits")
    spec = manifest.spec()
    with device(settings, "digits") as opened:
        assert compare(opened, manifest, stock(build("digits", 0), spec), (1, 2)) < 1
        assert compare(opened, manifest, stock(build("digits", 7), spec), (1, 2)) > 100


def test_another_precision_is_compared_with_the_main_model_s_outputs_by_its_own_tolerance(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "TVM", ONNXRUNTIME)
    chosen = msgspec.structs.replace(settings, architectures=("digits",), precisions=(FP16, TF32))
    store = Store(settings.store(ONNXRUNTIME))
    store.put_manifest(msgspec.structs.replace(store.manifest("digits"), name="digits-fp16", precision=FP16))
    try:
        exact, rounded, judged, _ = check_outputs(chosen, ONNXRUNTIME)
    finally:
        store.remove("digits-fp16")
    assert rounded.what == "  digits-fp16, engine onnxruntime"
    off = [float(each.found.split()[2]) for each in (exact, rounded)]
    assert off[1] < off[0] / 2 or off[0] == 0, "its tolerance is wider"
    assert (judged.state, judged.wanted, judged.found) == (State.MISSED, "all 3", "2")
    assert "not compiled: digits-tf32" in judged.note


def test_load_is_compared_with_as_many_bytes(settings: Settings) -> None:
    judged, load, _, plain = loading.check_loading(settings)
    assert judged.state in (State.MET, State.MISSED)
    assert load.found.endswith("ms")
    assert float(plain.note.split()[0]) > 0.1
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    loads, own, plain_copies = np.array([100, 110, 900]), np.array([90, 91, 92]), np.array([105, 104, 104])
    verdicts = loading.verdicts(spec, loads, own, {"plain copy": plain_copies})
    assert (verdicts[0].state, verdicts[0].found) == (State.MISSED, f"{104 / 110:.5g}")


def test_what_lengthens_an_exec_is_measured(settings: Settings) -> None:
    found = list(check_executing(settings))
    judged = [verdict.what for verdict in found if verdict.state in (State.MET, State.MISSED)]
    assert judged == [
        "EXEC digits after another batch size: longer",
        "EXEC, PREPAREs beside: 99th percentile longer",
    ]
    (pauses,) = [verdict for verdict in found if verdict.what.startswith("first EXEC after 1, 150 ms")]
    assert len(pauses.found.split(", ")) == 2
    absent = [verdict.what for verdict in found if verdict.state is State.NOT_RUN]
    assert absent == [
        "EXEC given ahead, batch 1: beside the device's part",
        "EXEC back to back in a worker: median beside the device's part",
        "INPUT and EXEC, batch 1, LOADs beside",
        "OPEN",
    ]


def test_a_size_that_is_slow_after_another_one_is_seen(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine is that plans again whenever the batch size changes."""
    spec = Store(settings.store(ONNXRUNTIME)).manifest("digits").spec()
    last: list[int] = []
    infer = LoneDevice.infer

    def planned_again(opened: LoneDevice, model: ModelSpec, size: int) -> Callable[[], int]:
        run = infer(opened, model, size)

        def wrapped() -> int:
            if last[-1:] != [size]:
                time.sleep(0.005)
            last.append(size)
            return run()

        return wrapped

    monkeypatch.setattr(LoneDevice, "infer", planned_again)
    with device(settings, "digits") as opened:
        opened.prepare(spec)
        opened.load(spec)
        judged, _ = executing.of_sizes(opened, spec, 10)
    assert judged.state is State.MISSED
    assert float(judged.found.split()[0]) > 100


def test_infers_run_beside_loads(settings: Settings) -> None:
    judged, explained, parts = steady.check_steadiness(settings)
    assert judged.note.startswith("50 runs of digits beside ")
    assert int(judged.note.split()[-2].replace(",", "")) > 0
    assert len(explained.found.split(", ")) == len(parts.found.split(", ")) == 3


def test_a_large_tensor_is_loaded_in_adjacent_pages(settings: Settings) -> None:
    judged, _ = check_large_tensor(settings)
    assert judged.state is State.MET
    assert judged.note == "extents of [2] pages"
    # Rows and columns are filled up to whole blocks.
    assert 1 <= Store(settings.store(ONNXRUNTIME)).manifest(LARGE).weights_bytes / (4 * 1_000 * 5_000) < 1.02


def test_models_are_cycled_and_leave_nothing_behind(settings: Settings) -> None:
    store = Store(settings.store(ONNXRUNTIME))
    before = store.names()
    found = list(check_cycling(settings))
    assert states(found) == [State.MET] * 3
    assert found[1].found.startswith("12 in ")
    assert "12 different weights" in found[2].note
    assert store.names() == before
    assert store.collect() == 0
    assert not list(Path(settings.folder).glob("mainspring-gpu-check-*"))


def test_nothing_is_cycled_where_no_disk_has_room(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycling, "ROOM", 1e12)
    (found,) = check_cycling(settings)
    assert found.state is State.NOT_RUN
    assert f"nor {settings.folder} has room for" in found.found


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
    cores, *found = check_cluster(settings)
    assert cores.found in {use.value for use in Use}
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


def test_many_models_are_served_and_their_predictions_judged(settings: Settings) -> None:
    found = list(check_many(msgspec.structs.replace(settings, many=3, many_slo_ms=2_000.0)))
    assert [verdict.what.strip() for verdict in found] == [
        "many models, SLO 2000 ms: goodput",
        "late",
        "without a reply",
        "INFER: duration off from the predicted, 99th percentile",
        "INFER: end off from the predicted, 99th percentile",
        "INFERs begun outside their window",
    ]
    assert {*states(found)} <= {State.MET, State.MISSED}
    assert found[2].state is State.MET, "requests without an answer"


def test_only_copies_of_the_main_model_are_served(settings: Settings) -> None:
    copies = [f"{settings.main}-{number}" for number in range(1, settings.cluster_copies + 1)]
    store = cluster.serving_store(settings)
    assert sorted(store.names()) == copies
    store.put_manifest(Store(settings.store(ONNXRUNTIME)).manifest(LARGE))
    assert sorted(cluster.serving_store(settings).names()) == copies, "what an earlier check added stays"


def test_a_deadline_that_there_is_no_time_for_costs_no_other_its_verdicts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def play(_settings: Settings, _address: str, _specs: object, _kind: str, slo_ms: float) -> list[Verdict]:
        now_s[0] += 20
        return [told(f"SLO {slo_ms:g} ms", "played")]

    @contextlib.contextmanager
    def serving(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address="")

    monkeypatch.setattr(cluster, "profile", lambda *_: "cpu")
    monkeypatch.setattr(cluster, "serving", serving)
    monkeypatch.setattr(cluster, "play", play)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    limited = msgspec.structs.replace(settings, cluster_slos_ms=(25.0, 10.0), limit_s=35.0)
    _, played, skipped = check_cluster(limited)
    assert played.found == "played"
    assert (skipped.what, skipped.state) == ("cluster, SLO 10 ms", State.NOT_RUN)
    assert skipped.found == "it takes 6 s and 5 are left"


def test_every_bucket_of_a_model_with_lengths_is_compared(settings: Settings) -> None:
    spec = Store(settings.store(ONNXRUNTIME)).manifest(LENGTHS).spec()
    *told_, judged = check_buckets(settings)
    assert (judged.state, judged.wanted) == (State.MET, "<= 1 tolerances")
    assert len(spec.buckets) > 1
    assert [verdict.what for verdict in told_] == [f"  INFER at {bucket[0]}" for bucket in spec.buckets]


def test_a_model_that_is_not_compiled_has_no_buckets_to_compare(settings: Settings, tmp_path: Path) -> None:
    elsewhere = msgspec.structs.replace(settings, folder=str(tmp_path))
    (elsewhere.store(ONNXRUNTIME) / "models").mkdir(parents=True)
    (verdict,) = check_buckets(elsewhere)
    assert (verdict.state, verdict.found) == (State.NOT_RUN, "open-lengths is not compiled")


def test_a_bucket_with_other_outputs_is_seen(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run, last = LoneDevice.run, Store(settings.store(ONNXRUNTIME)).manifest(LENGTHS).spec().buckets[-1]

    def off(device: LoneDevice, model: ModelSpec, size: int, inputs: Any, sizes: tuple[int, ...] = ()) -> Any:
        return [np.add(array, 0.1 * (sizes == last)) for array in run(device, model, size, inputs, sizes)]

    monkeypatch.setattr(LoneDevice, "run", off)
    *_, judged = check_buckets(settings)
    assert judged.state is State.MISSED
    assert f"{last[0]} the farthest" in judged.note
