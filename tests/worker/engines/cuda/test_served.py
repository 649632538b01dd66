"""A whole worker on a fake GPU: sockets, core, executors and engine, from inputs to outputs."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring import extras
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.actions import Prepare, Release, Unload
from mainspring.messages.codes import Status
from mainspring.messages.peers import Goodbye
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.engine import DeviceLost
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda import host_weights, nvml
from mainspring.worker.engines.registry import make_engine
from mainspring.worker.server import WorkerFailed, run
from tests.patience import PATIENCE_S
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.tiny_store import tiny_store
from tests.worker.peers import Cluster, infer

NOTE = "GPU at 0000:3b:00.0: its SM clock is 345 MHz of 1980"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDriver:
    made = FakeDriver(256 * MIB, dict(tiny.KERNELS))
    monkeypatch.setattr(drivers, "open_driver", lambda number: made)
    monkeypatch.setattr(nvml, "try_states", list)
    monkeypatch.setattr(nvml, "notes_about", lambda bus_id, states, watched: (NOTE,))
    monkeypatch.setattr(host_weights, "default_folder", lambda store: tmp_path / "agreed")
    return made


@pytest.fixture
def config(device: FakeDriver, tmp_path: Path) -> WorkerConfig:
    tiny_store(tmp_path / "store")
    return WorkerConfig(
        name="w", engine="auto", device="cuda:0", store=str(tmp_path / "store"), pages=0, io_bytes=MIB,
        workspace_bytes=MIB, reserve_bytes=16 * MIB, realtime=False, controller_silence_ms=60_000,
    )  # fmt: skip


@pytest.fixture
def cluster(config: WorkerConfig) -> Iterator[Cluster]:
    made = Cluster(config)
    yield made
    if made.thread.is_alive():
        made.close()


def test_a_worker_tells_what_its_gpu_is(cluster: Cluster) -> None:
    assert cluster.hello.device_kind == "nvidia-fake-1"
    assert cluster.hello.pages == (256 - 16 - 2 - 1) // 16
    assert NOTE in cluster.hello.notes


@pytest.mark.parametrize(
    ("engine", "before", "expected"),
    [("tvm", None, "EAGER"), ("tvm", "LAZY", "LAZY"), ("auto", None, None)],
)
def test_kernels_are_loaded_with_their_modules_unless_told_otherwise(
    engine: str,
    before: str | None,
    expected: str | None,
    config: WorkerConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []
    opened = drivers.open_driver

    def see(number: int) -> object:
        seen.append(os.environ.get("CUDA_MODULE_LOADING"))
        return opened(number)

    monkeypatch.setattr(drivers, "open_driver", see)
    monkeypatch.setattr(os, "environ", {**os.environ})
    os.environ.pop("CUDA_MODULE_LOADING", None)
    if before is not None:
        os.environ["CUDA_MODULE_LOADING"] = before
    make_engine(msgspec.structs.replace(config, engine=engine)).close()
    assert seen == [expected], "CUDA reads it when it starts"


def test_requests_come_back_answered_by_their_own_model(cluster: Cluster, config: WorkerConfig) -> None:
    store = Store(config.store)
    for name, pages in (("a", (0, 3)), ("b", (5, 2))):
        cluster.resident(store.manifest(name).spec(), pages)
    for turn, name in enumerate("abba"):
        x = np.random.default_rng(turn).standard_normal((2, tiny.WIDTH), np.float32)
        action = infer(cluster.next_id(), (10, 11), model=name)
        cluster.push(action.action_id, 10, x[0].data)
        cluster.say(action)
        cluster.push(action.action_id, 11, x[1].data)
        found = {header.request_id: frames[0] for header, frames in (cluster.output(), cluster.output())}
        result = cluster.result(action.action_id)
        assert result.status is Status.OK
        assert result.device_ns > 0
        expected = tiny.expected(tiny.weights_file(ord(name)), x)
        for row, request_id in enumerate((10, 11)):
            got = np.frombuffer(found[request_id], np.float32)
            np.testing.assert_allclose(got, expected[row], rtol=1e-6)


def test_padding_is_zeros_on_the_device_too(
    request: pytest.FixtureRequest, config: WorkerConfig, device: FakeDriver
) -> None:
    """Rows that no request has are what a slot's former inputs left, unless zeros are sent as well."""
    seen: list[list[float]] = []
    multiply = device.kernels["multiply_2"]

    def see(x: int, weight: int, product: int) -> None:
        seen.append(tiny.floats(x, 2 * tiny.WIDTH)[:: tiny.WIDTH].tolist())
        multiply.run(x, weight, product)

    device.kernels["multiply_2"] = multiply._replace(run=see)
    # From here on, because a worker opens what its store holds when it starts.
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.resident(Store(config.store).manifest("a").spec(), (0, 1))
    row = np.ones(tiny.WIDTH, np.float32)
    for request_ids, rows in (((1, 2), (1, 1)), ((3,), (1,))):
        action = infer(cluster.next_id(), request_ids, rows, batch_size=2, model="a")
        cluster.say(action)
        for request_id in request_ids:
            cluster.push(action.action_id, request_id, row.data)
        assert cluster.result(action.action_id).status is Status.OK
    assert seen == [[1, 1], [1, 0]]


def test_models_leave_and_return(cluster: Cluster, config: WorkerConfig) -> None:
    model = Store(config.store).manifest("a").spec()
    for pages in ((0, 1), (4, 2)):
        cluster.resident(model, pages)
        assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
        assert cluster.do(Release(cluster.next_id(), "w", "a")).status is Status.OK
    wrong = msgspec.structs.replace(model, batch_sizes=(1, 3))
    assert cluster.do(Prepare(cluster.next_id(), "w", wrong)).status is Status.ENGINE_ERROR


def test_everything_is_given_back_when_the_worker_stops(cluster: Cluster, device: FakeDriver,
                                                        config: WorkerConfig) -> None:  # fmt: skip
    cluster.resident(Store(config.store).manifest("a").spec(), (0, 1))
    cluster.close()
    assert device.closed
    assert not device.leaks


def test_outputs_that_do_not_come_back_are_lost_and_said_to_be(
    cluster: Cluster, config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.resident(Store(config.store).manifest("a").spec(), (0, 1))
    monkeypatch.setattr(
        "mainspring.worker.engines.cuda.copies.IoCopies.receive",
        lambda *_: "GPU 0: unspecified launch failure",
    )
    action = infer(cluster.next_id(), model="a")
    cluster.say(action)
    cluster.push(action.action_id, 1, bytes(tiny.ROW_BYTES))
    result = cluster.result(action.action_id)
    assert result.status is Status.OUTPUT_LOST
    assert "unspecified launch failure" in result.detail


def test_a_lost_device_ends_the_worker(cluster: Cluster, device: FakeDriver, config: WorkerConfig) -> None:
    cluster.resident(Store(config.store).manifest("a").spec(), (0, 1))
    device.fails["launch_graph"] = DeviceLost("GPU 0: an illegal memory access was encountered")
    action = infer(cluster.next_id(), model="a")
    cluster.say(action)
    cluster.push(action.action_id, 1, bytes(tiny.ROW_BYTES))
    assert "illegal memory access" in cluster.expect(Goodbye).detail
    cluster.thread.join(PATIENCE_S)
    (failure,) = cluster.failures
    assert isinstance(failure, WorkerFailed)
    cluster.failures.clear()
    cluster.close()


def test_a_machine_without_a_gpu_says_what_is_missing(tmp_path: Path) -> None:
    config = WorkerConfig(name="w", device="cuda:0", engine="tvm", store=str(tmp_path), realtime=False)
    make: Callable[[], None] = lambda: run(config, threading.Event())  # noqa: E731
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(
            drivers.DriverMissing, match=f"libcuda.*needs CuPy.*{re.escape(extras.command('gpu'))}"
        ):
            make()
        return
    pytest.skip("CuPy is installed here")
