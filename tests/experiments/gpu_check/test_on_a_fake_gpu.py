"""The checks and the profile on a GPU that is not there: same engine, same graphs, virtual time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.cli.profiling.lone_device import device_for
from mainspring.cli.profiling.profiling import measure
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Effort
from mainspring.experiments.gpu_check import allocations, executing, gaps, loading, sessions
from mainspring.experiments.gpu_check.allocations import CountingDriver, Grown, check_allocations
from mainspring.experiments.gpu_check.cycling import affordable, affordable_pages, check_cycling
from mainspring.experiments.gpu_check.executing import check_executing
from mainspring.experiments.gpu_check.loading import check_loading
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import LARGE, TVM, Settings
from mainspring.experiments.gpu_check.steady import check_steadiness
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.experiments.predictability.__main__ import Plan, isolated
from mainspring.messages.actions import Result
from mainspring.messages.codes import Status
from mainspring.worker.config import MIB
from mainspring.worker.engines.cuda.engine import CudaEngine
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanBound, LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import SESSION_BYTES
from mainspring.worker.realtime import Rights
from tests.experiments.gpu_check.conftest import MAIN
from tests.worker.engines.cuda import tiny_plans as tiny

KERNELS_NS = 50_000


def test_outputs_come_back_from_the_device(on_gpu: Settings) -> None:
    spec = Store(on_gpu.store(TVM)).manifest(MAIN).spec()
    x = np.random.default_rng(1).standard_normal((2, tiny.WIDTH), np.float32)
    with device_for([spec], on_gpu.config()) as device:
        assert (device.kind, device.pages) == ("nvidia-fake-1", 4)
        device.prepare(spec)
        device.load(spec, first_page=1)
        (found,) = device.run(spec, 2, [x])
    np.testing.assert_allclose(
        found.astype(np.float32), tiny.expected(tiny.weights_file(ord(MAIN)), x), rtol=1e-6
    )


def test_a_profile_has_the_devices_own_times_too(on_gpu: Settings) -> None:
    manifest = Store(on_gpu.store(TVM)).manifest(MAIN)
    with device_for([manifest.spec()], on_gpu.config()) as device:
        found = measure(device, [manifest], tiny.SIZES, Effort(seconds=0, fewest=3))
    own = found.infer_device[1]
    assert own.p50_ns == own.max_ns
    assert KERNELS_NS <= own.p50_ns < 1.2 * KERNELS_NS
    assert found.load_device is not None
    assert found.load_device.p50_ns > manifest.weights_bytes / 50


def test_load_is_nearly_the_plain_copy(on_gpu: Settings) -> None:
    judged, _, own, plain, shared = check_loading(on_gpu)
    # From begin to end it is the host's time, of which this device knows nothing.
    assert judged.state in (State.MET, State.MISSED)
    assert 0.95 < float(plain.found.split()[0]) / float(own.found.split()[0]) < 1
    assert plain.note.endswith("GB/s")
    assert shared.what == "  plain copy from a shared segment"
    assert shared.found == plain.found


def test_loads_are_measured_in_a_thread_like_a_workers(
    on_gpu: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def note(what: str) -> None:
        seen.append((what, threading.get_ident()))

    class Noting(Rights):
        def claim_process(self) -> None:
            note("process")

        def claim_load(self) -> None:
            note("load")

        def release_process(self) -> None:
            note("release")

    def in_turns(*args: Any) -> Any:
        note("turns")
        return measure_in_turns(*args)

    measure_in_turns = loading.in_turns
    monkeypatch.setattr(loading, "Rights", Noting)
    monkeypatch.setattr(loading, "in_turns", in_turns)
    check_loading(on_gpu)
    assert [what for what, _ in seen] == ["process", "load", "turns", "release"]
    (_, ours), (_, claimed), (_, measured), _ = seen
    assert claimed == measured != ours


def test_serving_allocates_nothing(on_gpu: Settings) -> None:
    calls, memory, first = check_allocations(on_gpu)
    assert (calls.state, memory.state) == (State.MET, State.MET)
    assert first.found == "0 calls, 0.0 MiB", "PREPARE left something to make"


def test_a_model_of_another_executable_comes_and_goes_too(on_gpu: Settings) -> None:
    store = Store(on_gpu.store(TVM))
    store.put_manifest(msgspec.structs.replace(store.manifest("b"), name=LARGE))
    calls, memory, _ = check_allocations(on_gpu)
    assert (calls.state, memory.state) == (State.MET, State.MET)
    assert calls.note.startswith(f"{3 * on_gpu.loads} LOADs")


def test_what_is_allocated_is_seen() -> None:
    driver = CountingDriver(FakeDriver())
    driver.attach()

    def work() -> None:
        driver.allocate(1 << 20)
        driver.event()
        driver.memory()

    grown = allocations.grown(driver, work)
    assert grown.calls == 2
    assert grown.bytes_ >= 1 << 20
    judged, memory, _ = allocations.verdicts(Grown(5, 0), grown, 4)
    assert (judged.state, memory.state) == (State.MISSED, State.MISSED)
    assert allocations.verdicts(Grown(5, 0), Grown(0, -4096), 4)[1].state is State.MET


def test_models_are_cycled_through_the_pages(on_gpu: Settings) -> None:
    found = list(check_cycling(on_gpu))
    assert [verdict.state for verdict in found[2:5]] == [State.MET] * 3


def test_less_is_cycled_where_there_is_less_room_and_time(
    gpu: Callable[[FakeDriver], Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = gpu(FakeDriver(2 << 30, dict(tiny.KERNELS)))
    assert affordable(chosen, 16 << 20) == 5
    short = msgspec.structs.replace(chosen, limit_s=10.6)
    assert affordable(short, 16 << 20) == 4, "what would not be written and read in time"
    assert affordable_pages(chosen) == 4
    assert affordable_pages(msgspec.structs.replace(chosen, cycled_pages=1_024)) == 0.8 * 128 // 1
    late = msgspec.structs.replace(chosen, limit_s=0.0)
    found = {verdict.what.strip(): verdict for verdict in check_cycling(late)}
    assert found["models cycled through the cache"].found == "1"
    assert found["models cycled through the cache"].state is State.MISSED


def test_fewer_infers_are_run_where_there_is_less_time(on_gpu: Settings) -> None:
    judged, _, _ = check_steadiness(msgspec.structs.replace(on_gpu, limit_s=0.0))
    assert judged.note.startswith("1 runs of a beside")
    assert "(time was up before 40)" in judged.note


def test_what_sessions_take_is_judged_without_what_the_first_takes_for_all(
    on_gpu: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(on_gpu.store(TVM))
    manifests = sessions.smallest(store.manifests())
    assert len(manifests) == 1, "models that share an executable share its sessions"
    driver = FakeDriver(4 << 30, dict(tiny.KERNELS))
    handles = iter((100 * MIB, 30 * MIB))
    load_module = FakeDriver.load_module

    def with_handles(driver: FakeDriver, image: bytes) -> int:
        driver.allocate(next(handles))
        return load_module(driver, image)

    other = msgspec.structs.replace(manifests[0], name="other", batch_sizes=tiny.SIZES[:1])
    store.put_manifest(other)
    monkeypatch.setattr(CudaEngine, "_open_stored", lambda *_: None)
    monkeypatch.setattr(FakeDriver, "load_module", with_handles)
    taken = [*sessions.taken(on_gpu, driver, [*manifests, other])]
    assert [each // MIB for each in taken] == [100, 30]
    judged = sessions.judged([*manifests, other], taken)
    assert (judged.state, judged.found) == (State.MET, "30 MiB")
    assert judged.note.startswith("other, the most of 1")
    assert sessions.judged([*manifests, other], [0, SESSION_BYTES + MIB]).state is State.MISSED


def test_sessions_are_not_measured_where_there_are_none(on_gpu: Settings, settings: Settings) -> None:
    for each, reason in ((on_gpu, "ONNX Runtime has no CUDA provider"), (settings, "only a GPU")):
        (told,) = sessions.check_sessions(each)
        assert told.state is State.NOT_RUN
        assert told.found.startswith(reason)


def test_an_open_is_measured_in_exec_s_thread(on_gpu: Settings) -> None:
    store = Store(on_gpu.store(TVM))
    late = msgspec.structs.replace(store.manifest("b"), name=LARGE, batch_sizes=tiny.SIZES[:1])
    store.put_manifest(late)
    found = list(check_executing(msgspec.structs.replace(on_gpu, exec_runs=10, pauses_ms=(1,))))
    (opened,) = [verdict for verdict in found if verdict.what == f"OPEN of {LARGE}"]
    assert len(opened.found.split(", ")) == executing.OPENED
    assert "the next EXEC takes" in opened.note


def test_what_lengthens_an_exec_is_measured_inputs_included(on_gpu: Settings) -> None:
    quick = msgspec.structs.replace(on_gpu, exec_runs=10, pauses_ms=(1,))
    found = list(check_executing(quick))
    (inputs,) = [verdict for verdict in found if verdict.what.startswith("INPUT and EXEC")]
    assert inputs.found.endswith("us longer")
    assert not [verdict for verdict in found if verdict.state in (State.NOT_RUN, State.FAILED)]


def test_infers_run_beside_loads_to_other_pages_each_time(
    on_gpu: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[int, ...]] = []
    bind = LaunchPlanProgram.bind

    def see(program: LaunchPlanProgram, pages: Sequence[int]) -> LaunchPlanBound:
        bound.append(tuple(pages))
        return bind(program, pages)

    monkeypatch.setattr(LaunchPlanProgram, "bind", see)
    judged, _, _ = check_steadiness(on_gpu)
    assert judged.note.startswith("40 runs of a beside ")
    running, *loaded = bound
    assert loaded
    assert not {*running} & {page for pages in loaded for page in pages}
    assert all(before != after for before, after in itertools.pairwise(bound))


def test_figure_2a_is_of_the_devices_own_times(on_gpu: Settings) -> None:
    from rich.console import Console

    spec = Store(on_gpu.store(TVM)).manifest(MAIN).spec()
    series, _ = isolated(Plan(model=spec, config=on_gpu.config(), runs=20), Console(quiet=True))
    assert [each.name for each in series] == ["device"]
    assert series[0].percentiles_ms["50"] == series[0].percentiles_ms["100"]


def test_a_worker_s_threads_run_one_exec_behind_the_other(on_gpu: Settings) -> None:
    spec = Store(on_gpu.store(TVM)).manifest(MAIN).spec()
    with device_for([spec], on_gpu.config()) as device:
        device.prepare(spec)
        device.load(spec)
        (judged,) = gaps.of_gaps_in_a_worker(device, spec, 40, Rights(False))
        # How long a busy machine takes is not for a test to say.
        assert judged.state in (State.MET, State.MISSED)
        assert "of 40 given ahead; without" in judged.note
        for engine in (gaps.Unhurried(device.engine), gaps.Counting(device.engine)):
            results = gaps.served(device, engine, spec, 40, Rights(False))
            assert [each.action_id for each in results] == [*range(1, len(results) + 1)]
            assert {each.status for each in results} == {Status.OK}


def test_a_worker_whose_execs_fail_is_no_measure(on_gpu: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Store(on_gpu.store(TVM)).manifest(MAIN).spec()
    with device_for([spec], on_gpu.config()) as device:
        device.prepare(spec)
        device.load(spec)
        before = gaps.served

        def failing(*args: Any) -> list[Result]:
            monkeypatch.setattr(device.engine._driver, "fails", {"launch_graph": RuntimeError("no more")})  # type: ignore[attr-defined]
            try:
                return before(*args)
            finally:
                monkeypatch.setattr(device.engine._driver, "fails", {})  # type: ignore[attr-defined]

        monkeypatch.setattr(gaps, "served", failing)
        (found,) = gaps.of_gaps_in_a_worker(device, spec, 5, Rights(False))
    assert found.state is State.FAILED
    assert "no more" in found.found


def test_what_is_not_given_ahead_is_not_measured(on_gpu: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaEngine, "takes_ahead", lambda *_: False)
    spec = Store(on_gpu.store(TVM)).manifest(MAIN).spec()
    with device_for([spec], on_gpu.config()) as device:
        device.prepare(spec)
        device.load(spec)
        _, one = gaps.of_gaps(device, spec, 5)
        (other,) = gaps.of_gaps_in_a_worker(device, spec, 5, Rights(False))
    assert one.state is other.state is State.NOT_RUN
    assert one.found == other.found == f"batches of {MAIN} are not given ahead: they are no single launch"
