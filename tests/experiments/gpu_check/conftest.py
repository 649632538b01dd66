"""Settings so small that each check takes a second: on the CPU, with what they need compiled, and on
a GPU that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.experiments.gpu_check import allocations, cycling, graphs, loading, shared
from mainspring.experiments.gpu_check.models import check_compiling
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import ONNXRUNTIME, TVM, Settings, rehearsal
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.worker.engines.cuda import driver as driver_module
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.tiny_store import tiny_store

MAIN = "a"


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Everything is compiled."""
    chosen = msgspec.structs.replace(
        rehearsal(Path(tmp_path_factory.mktemp("gpu-check"))),
        device="cpu",
        rehearsed=False,
        engine=ONNXRUNTIME,
        engines=(ONNXRUNTIME,),
        architectures=("digits", "resnet20"),
        compile_s=120.0,
        main="digits",
        steady=("digits",),
        batch_sizes=(1, 2),
        loads=5,
        infers=50,
        large_shape=(1_000, 5_000),
        cycled=12,
        cycled_pages=4,
        cycled_s=0.2,
        cluster_s=1.0,
        cluster_load=0.02,
        cluster_slos_ms=(2_000.0,),
    )
    found = check_compiling(chosen)
    assert all(verdict.state is State.TOLD for verdict in found), found
    return chosen


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeDriver], Settings]:
    """Return settings for the GPU that a driver plays, with two models in the store."""
    monkeypatch.setattr(
        "mainspring.worker.engines.cuda.host_weights.default_folder", lambda _store: tmp_path / "agreed"
    )

    def put_in(driver: FakeDriver) -> Settings:
        for module in (driver_module, allocations, cycling, graphs, loading, shared):
            monkeypatch.setattr(module, "open_driver", lambda _device: driver)
        chosen = Settings(
            folder=str(tmp_path),
            realtime=False,
            architectures=(),
            main=MAIN,
            steady=(MAIN,),
            batch_sizes=tiny.SIZES,
            loads=6,
            pinned_mib=2,
            infers=40,
            cycled=5,
            cycled_pages=4,
            cycled_s=0.05,
        )
        store = tiny_store(chosen.store(TVM))
        store.put_manifest(msgspec.structs.replace(store.manifest("b"), name=chosen.second))
        return chosen

    return put_in


@pytest.fixture
def on_gpu(gpu: Callable[[FakeDriver], Settings]) -> Settings:
    """Settings for a GPU of 4 GiB that does as it should."""
    return gpu(FakeDriver(4 << 30, dict(tiny.KERNELS)))
