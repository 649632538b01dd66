"""The emulated engine, the registry, the configuration, and what a worker may ask of the system."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engines.emulated import EmulatedEngine, NoProfile
from mainspring.worker.engines.registry import make_engine
from mainspring.worker.realtime import EXEC_PRIORITY, SHARED_EXEC_PRIORITY, Rights
from tests.worker.peers import MS, infer, load, spec


def reservation() -> Reservation:
    layout = slot_layout(spec(), 2)
    return Reservation(Slot(128, layout.size), layout)


def test_emulated_jobs_take_at_least_their_profile() -> None:
    engine = EmulatedEngine("cpu", MIB)
    engine.prepare(spec(infer_ms=3, load_ms=5))
    assert engine.execute(infer(1, (1, 2)), reservation()) >= 6 * MS
    assert engine.load(load(2)) >= 5 * MS


def test_emulated_outputs_are_zeros_and_inputs_are_left_alone() -> None:
    engine = EmulatedEngine("cpu", MIB)
    engine.prepare(spec())
    engine.io[:] = 7
    engine.execute(infer(1, (1, 2)), reservation())
    assert set(engine.io[:192]) == {7}
    assert set(engine.io[192:256]) == {0}
    assert set(engine.io[256:]) == {7}


def test_jitter_only_adds_and_follows_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr("mainspring.worker.engines.emulated.wait_until", lambda at, spin: waited.append(at))
    monkeypatch.setattr("time.monotonic_ns", lambda: 0)
    for seed in (1, 1, 2):
        engine = EmulatedEngine("cpu", MIB, seed=seed, jitter=0.1)
        engine.prepare(spec(infer_ms=1))
        for action_id in range(3):
            engine.execute(infer(action_id, window=(0, 1)), reservation())
    assert waited[:3] == waited[3:6] != waited[6:]
    assert all(MS <= duration < 2 * MS for duration in waited)
    assert len(set(waited[:3])) == 3


def test_model_without_a_profile_is_not_prepared() -> None:
    with pytest.raises(NoProfile, match="no profile for 'tpu'; it has: cpu"):
        EmulatedEngine("tpu", MIB).prepare(spec())


def test_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'steam' is none of: onnxruntime, tvm, auto, python, emulated"):
        make_engine(WorkerConfig(name="w", engine="steam"))


def test_a_worker_on_the_cpu_is_told_how_many_pages_it_has() -> None:
    with pytest.raises(ValueError, match="pages must be at least 1 on the CPU"):
        make_engine(WorkerConfig(name="w", engine="emulated", pages=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "gpu"},
        {"device": "cuda"},
        {"load_chunk_bytes": 5},
        {"name": ""},
        {"name": "w" * 65},
        {"pages": -1},
        {"io_bytes": 5},
        {"threads": 0},
        {"spin_us": -1},
        *({"heartbeat_ms": wrong} for wrong in (-1.0, 0.001, 9.99, 60_001.0, float("nan"), float("inf"))),
    ],
)
def test_configuration_names_the_field_that_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerConfig(**({"name": "w"} | wrong))


def test_without_realtime_nothing_is_asked_for() -> None:
    before = (os.sched_getaffinity(0), os.sched_getscheduler(0))
    rights = Rights(realtime=False)
    rights.claim_libraries()
    rights.claim_exec()
    rights.claim_network()
    rights.claim_load()
    rights.claim_prepare()
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
    assert rights.notes == []


def test_load_goes_before_normal_threads_and_prepare_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    asked: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, nice: asked.append(nice))
    rights = Rights(realtime=True)
    rights.claim_load()
    rights.claim_prepare()
    load, prepare = asked
    assert load < os.getpriority(os.PRIO_PROCESS, 0) < prepare
    assert rights.notes == []


@pytest.mark.parametrize(
    ("cores", "computes", "shared", "behind"),
    [
        ({0, 1}, True, False, False),
        ({0, 1}, True, True, True),
        ({0, 1}, False, True, False),
        ({0}, True, False, True),
        ({0}, False, False, False),
    ],
)
def test_exec_goes_behind_control_where_it_computes_on_its_core(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], computes: bool, shared: bool, behind: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda _who, _class, how: asked.append(how.sched_priority))
    rights = Rights(realtime=True, computes=computes, shared=shared)
    rights.claim_exec()
    rights.claim_network()
    exec_, network = asked
    assert exec_ == (SHARED_EXEC_PRIORITY if behind else EXEC_PRIORITY)
    assert SHARED_EXEC_PRIORITY < network < EXEC_PRIORITY


@pytest.mark.parametrize(
    ("engine", "device", "computes"),
    [
        ("onnxruntime", "cpu", True),
        ("tvm", "cpu", True),
        ("emulated", "cpu", False),
        ("auto", "cuda:0", False),
    ],
)
def test_only_engines_of_the_cpu_compute_on_execs_core(engine: str, device: str, computes: bool) -> None:
    assert WorkerConfig(name="w", engine=engine, device=device).computes == computes


def test_threads_of_libraries_stay_off_execs_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    pinned: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores))
    Rights(realtime=True, exec_core=1).claim_libraries()
    assert pinned == [{0, 2}]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_off_while_serving_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, collecting: bool
) -> None:
    monkeypatch.setattr("mainspring.worker.realtime._lock_memory", lambda: "")
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    rights = Rights(realtime=True)
    try:
        if not collecting:
            gc.disable()
        with rights.claimed_process():
            assert not gc.isenabled()
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


def test_core_that_is_not_ours_is_noted() -> None:
    assert "core 4096" in Rights(realtime=True, exec_core=4096).notes[0]


def test_refused_rights_are_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    rights = Rights(realtime=True)
    for _ in range(2):
        rights.claim_exec()
        rights.claim_network()
    assert len(rights.notes) == 3
    assert any("EXEC" in note for note in rights.notes)
