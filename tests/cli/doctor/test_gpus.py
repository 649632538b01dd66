"""Several GPUs in one machine: found by themselves, a worker near each, and told of by doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.doctor import machine
from mainspring.cli.doctor.machine import gpu_findings, usable_gpus, with_gpus
from mainspring.cli.launcher import worker_jobs
from mainspring.cli.launcher.jobs import WorkerJob
from mainspring.cli.launcher.placement import Placement, place_near
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.worker_jobs import worker_pool
from mainspring.messages.tables import ConfigError
from mainspring.worker.config import WorkerConfig
from mainspring.worker.engines.cuda.devices import FoundDevice, find_devices
from mainspring.worker.engines.cuda.driver import DriverMissing
from mainspring.worker.engines.cuda.nvml import NvmlMissing
from mainspring.worker.engines.cuda.state import GpuState
from tests.worker.engines.cuda.test_state import GOOD
from tests.worker.engines.cuda.tiny_store import tiny_store

FOUND = (FoundDevice(0, "NVIDIA H200", "0000:3b:00.0"), FoundDevice(1, "NVIDIA H200", "0000:86:00.0"))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    usable_gpus.cache_clear()
    monkeypatch.setattr(machine, "find_devices", lambda: list(FOUND))
    yield
    usable_gpus.cache_clear()


def cuda_config(folder: Path, **tables: dict[str, Any]) -> Config:
    tiny_store(folder / "store")
    given: dict[str, dict[str, Any]] = {
        "cluster": {"device": "cuda", "store": str(folder / "store"), "run_dir": str(folder / "run")}
    }
    for name, table in tables.items():
        given[name] = given.get(name, {}) | table
    return read_config(with_gpus(given), "the test")


def workers(config: Config) -> list[WorkerJob]:
    return [job for job in make_plan(config).jobs if isinstance(job, WorkerJob)]


def test_each_gpu_gets_a_worker_with_all_of_its_memory(two_gpus: None, tmp_path: Path) -> None:
    first, second = workers(cuda_config(tmp_path))
    assert (first.worker.device, second.worker.device) == ("cuda:0", "cuda:1")
    assert first.worker.engine == second.worker.engine == "auto"
    assert first.worker.pages == second.worker.pages == 0


def test_what_is_given_is_kept(two_gpus: None, tmp_path: Path) -> None:
    tables: dict[str, dict[str, Any]] = {"cluster": {"workers": 3, "engine": "tvm"}, "worker": {"pages": 40}}
    found = [job.worker for job in workers(cuda_config(tmp_path, **tables))]
    assert [worker.device for worker in found] == ["cuda:0", "cuda:1", "cuda:0"]
    assert {(worker.engine, worker.pages) for worker in found} == {("tvm", 40)}


def test_models_of_another_device_are_refused_before_anything_starts(two_gpus: None, tmp_path: Path) -> None:
    config = cuda_config(tmp_path)
    cluster = msgspec.structs.replace(config.cluster, device="cpu", engine="tvm")
    with pytest.raises(ConfigError, match=r"a was compiled for the device cuda .*with --device cuda"):
        make_plan(msgspec.structs.replace(config, cluster=cluster, worker=WorkerConfig(name="worker")))


def test_a_model_repository_is_for_the_cpu(two_gpus: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compiled for the CPU, and the cluster's device is cuda"):
        make_plan(cuda_config(tmp_path, repository={"path": str(tmp_path)}))


def test_the_cpu_is_left_as_it_was(tmp_path: Path) -> None:
    tables = {"cluster": {"workers": 2}}
    assert with_gpus(tables) == tables


def test_a_machine_without_a_gpu_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usable_gpus.cache_clear()

    def fail() -> list[FoundDevice]:
        raise DriverMissing("CUDA finds no GPU here")

    monkeypatch.setattr(machine, "find_devices", fail)
    with pytest.raises(ConfigError, match=r'device = "cuda" needs a GPU: CUDA finds no GPU here'):
        cuda_config(tmp_path)


def test_a_worker_runs_near_its_gpu(two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    near = {"0000:3b:00.0": frozenset(range(4)), "0000:86:00.0": frozenset(range(4, 8))}
    monkeypatch.setattr(worker_jobs, "cores_near", near.__getitem__)
    first, second = workers(cuda_config(tmp_path))
    assert (first.worker.exec_core, second.worker.exec_core) == (3, 7)
    assert first.cores == (0, 1, 2, 3)
    assert second.cores == (4, 5, 6, 7)


def test_unlike_gpus_in_turn_have_each_a_worker_and_later_ones_use_all_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("NVIDIA A100", "NVIDIA H200", "NVIDIA A100", "NVIDIA H200")
    found = [FoundDevice(number, name, f"0000:0{number}:00.0") for number, name in enumerate(names)]
    usable_gpus.cache_clear()
    monkeypatch.setattr(machine, "find_devices", lambda: found)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(worker_jobs, "cores_near", lambda _: frozenset())
    config = cuda_config(tmp_path)
    config = msgspec.structs.replace(config, cluster=msgspec.structs.replace(config.cluster, workers=4))
    pool = worker_pool(config, ["tcp://a:1"] * 4)
    usable_gpus.cache_clear()
    jobs = {job.name: job.worker for job in pool.first_jobs()}
    assert {name: job.device for name, job in jobs.items()} == {
        f"worker-{number}": f"cuda:{number}" for number in range(4)
    }
    first, second = pool.kinds
    later = [pool.job(first.kind, f"{first.stem}-{number}").worker for number in range(2)]
    assert [job.device for job in later] == ["cuda:0", "cuda:2"]
    assert pool.job(second.kind, f"{second.stem}-0").worker.device == "cuda:1"
    assert [(job.exec_core, job.exec_core_shared) for job in later] == [(None, True)] * 2, (
        "they use all cores"
    )


@pytest.mark.parametrize(
    ("cores", "near", "expected"),
    [
        (range(8), [{0, 1}, {4, 5}], Placement((0, 2, 3, 4, 6, 7), ((1,), (5,)))),
        (range(4), [set(), set()], Placement((0, 1), ((3,), (2,)))),
        (range(4), [{9}], Placement((0, 1, 2), ((3,),))),
        (range(4), [{0, 1}, {0, 1}, {0, 1}], Placement((2,), ((1,), (0,), (3,)))),
        (range(2), [{0}, {0}], Placement((1,), ((0,), (0, 1)))),
        (range(1), [{0}], Placement((0,), ((0,),))),
    ],
)
def test_exec_gets_a_core_near_its_device_while_there_is_one(
    cores: range, near: list[set[int]], expected: Placement
) -> None:
    assert place_near(cores, [frozenset(each) for each in near]) == expected


def test_doctor_tells_a_gpus_state_and_what_ails_it() -> None:
    slow = msgspec.structs.replace(GOOD, index=1, sm_clock_mhz=345, ecc=False)
    first, second, clock, ecc = gpu_findings(lambda: [GOOD, slow])
    assert (first.subject, first.good) == ("GPU 0", True)
    assert (second.subject, second.good) == ("GPU 1", True)
    assert not clock.good
    assert "345 MHz" in clock.found
    assert "ECC is off" in ecc.found
    assert not any(finding.fatal for finding in (first, second, clock, ecc)), "the CPU serves all the same"


def test_doctor_tells_which_gpu_is_lost_and_tells_of_the_others_as_ever() -> None:
    lost = GpuState(index=1, name="", bus_id="", silent="GPU is lost")
    first, second, third = gpu_findings(lambda: [GOOD, lost, msgspec.structs.replace(GOOD, index=2)])
    assert (first.good, second.good, third.good) == (True, False, True)
    assert (second.subject, third.subject) == ("GPU 1", "GPU 2")
    assert "does not answer: GPU is lost" in second.found
    assert "-i 1" in second.remedy


def test_doctor_is_silent_where_there_is_no_gpu_and_not_where_its_state_is_unknown(tmp_path: Path) -> None:
    def fail() -> list[Any]:
        raise NvmlMissing("nvidia-ml-py is not installed")

    assert gpu_findings(fail, tmp_path / "nvidiactl") == []
    (tmp_path / "nvidiactl").touch()
    (finding,) = gpu_findings(fail, tmp_path / "nvidiactl")
    assert not finding.good
    assert "nvidia-ml-py is not installed" in finding.found


def answering(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have another script answer for CUDA."""
    run: Callable[..., Any] = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **kw: run([sys.executable, "-c", script], **kw))


def test_gpus_are_counted_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = msgspec.json.encode(FOUND).decode()
    answering(monkeypatch, f"print({answer!r})")
    assert find_devices() == list(FOUND)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; print('CUDA finds no GPU', file=sys.stderr); sys.exit(1)", "CUDA finds no GPU"),
        ("import os; os.abort()", "exit code -6"),
    ],
)
def test_why_there_is_none_is_passed_on(monkeypatch: pytest.MonkeyPatch, script: str, why: str) -> None:
    answering(monkeypatch, script)
    with pytest.raises(DriverMissing, match=why):
        find_devices()


def test_the_real_answer_is_gpus_or_why_there_are_none() -> None:
    try:
        found = find_devices()
    except DriverMissing as error:
        found = []
        why = str(error)
        assert "pip install" in why or "driver" in why or "no GPU" in why
    assert [device.number for device in found] == list(range(len(found)))
