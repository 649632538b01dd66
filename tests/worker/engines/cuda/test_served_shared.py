"""A whole worker whose GPU copies inputs from memory of a gateway of its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Input, Output, Ping, Place, Pong, Taken
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda import host_weights, nvml
from mainspring.worker.engines.cuda.driver import Copy
from tests.patience import PATIENCE_S
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.tiny_store import tiny_store
from tests.worker.peers import Cluster, infer
from tests.worker.sharing import Sharing


class Recording(FakeDriver):
    """A GPU that keeps from where each copy to it was told."""

    def __init__(self) -> None:
        super().__init__(256 * MIB, dict(tiny.KERNELS))
        self.sources: list[tuple[int, int]] = []

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        if kind is Copy.TO_DEVICE:
            self.sources.append((source, size))
        super().copy(target, source, size, kind, stream)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    made = Recording()
    monkeypatch.setattr(drivers, "open_driver", lambda number: made)
    monkeypatch.setattr(nvml, "try_states", list)
    monkeypatch.setattr(nvml, "notes_about", lambda bus_id, states, watched: ())
    monkeypatch.setattr(host_weights, "default_folder", lambda store: tmp_path / "agreed")
    return made


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    tiny_store(tmp_path / "store")
    return Store(tmp_path / "store").manifest("a").spec()


@pytest.fixture
def serving(device: Recording, model: ModelSpec, tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    """Starts the worker, whose device is as it is then."""
    started: list[Cluster] = []

    def start() -> Cluster:
        config = WorkerConfig(
            name="w", engine="auto", device="cuda:0", store=str(tmp_path / "store"), pages=0, io_bytes=MIB,
            workspace_bytes=MIB, reserve_bytes=16 * MIB, realtime=False, controller_silence_ms=60_000,
        )  # fmt: skip
        started.append(Cluster(config))
        started[-1].resident(model, (0, 3))
        return started[-1]

    yield start
    for each in started:
        each.close()
    assert not device.leaks


def until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.005)


def shared_with(cluster: Cluster, device: Recording) -> Sharing:
    """A gateway whose memory is pinned as a whole."""
    before = device.calls.count("register_host")
    sharing = Sharing(cluster.data_address)
    until(lambda: device.calls.count("register_host") > before, "nothing was pinned")
    return sharing


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(tiny.WIDTH, np.float32)


def outputs(sharing: Sharing, output: Output, frames: list[bytes]) -> np.ndarray:
    assert len(frames) == 1, "outputs of this size go as frames"
    assert sharing.link.connected
    return np.frombuffer(frames[0], np.float32)


def ping(cluster: Cluster) -> None:
    """Return once the worker has worked off all that came before."""
    for number in (1, 2):
        cluster.say(Ping(number, time.monotonic_ns()))
        assert cluster.expect(Pong).sequence == number


def test_the_device_reads_the_gateways_memory_and_the_answers_are_right(
    serving: Callable[[], Cluster], device: Recording
) -> None:
    cluster = serving()
    sharing = shared_with(cluster, device)
    for turn in range(3):
        x = values(turn)
        held, place = sharing.placed(x.tobytes())
        device.sources.clear()
        action = cluster.next_id()
        cluster.say(infer(action, (1,), model="a"))
        sharing.send(Input(action, 1, places=(place,)))
        output, frames = sharing.receive()
        assert isinstance(output, Output)
        assert output.taken == turn + 1
        found = outputs(sharing, output, frames)
        np.testing.assert_allclose(found, tiny.expected(tiny.weights_file(ord("a")), x[None])[0], rtol=1e-6)
        assert cluster.result(action).status is Status.OK
        pinned = [begin for begin in device._pinned if device._pinned[begin] == sharing.own.size]
        assert [source - pinned[0] for source, _ in device.sources] == [place.offset], "it was staged"
        del held
    sharing.close()
    until(lambda: device.calls.count("happened") > 0, "nobody asked the device")


def test_a_place_is_given_back_only_once_its_copy_has_ended(
    serving: Callable[[], Cluster], device: Recording
) -> None:
    cluster = serving()
    sharing = shared_with(cluster, device)
    held, place = sharing.placed(values(1).tobytes())
    device.sources.clear()
    action = cluster.next_id()
    cluster.say(infer(action, (1, 2), model="a"))
    sharing.send(Input(action, 1, places=(place,)))
    # The fake device copies when somebody waits for it, and EXEC waits for the other request's input.
    until(lambda: len(device.sources) > 0, "no copy was begun")
    ping(cluster)
    sharing.hub.wait(50_000_000)
    assert sharing.link.receive() is None, "given back while the device may read it"
    device.run_all()
    ping(cluster)
    assert sharing.receive()[0] == Taken(1)
    sharing.send(Input(action, 2, places=(place,)))
    found = [sharing.receive()[0] for _ in range(2)]
    assert [output.taken for output in found if isinstance(output, Output)] == [2, 2]
    assert cluster.result(action).status is Status.OK
    sharing.close()
    del held


def test_what_the_gateway_overtook_is_not_answered(
    serving: Callable[[], Cluster], device: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway takes the worker for dead and uses the place again before the device has read it."""
    held: list[memoryview] = []
    multiply = device.kernels["multiply_1"]

    def overtake(*given: int) -> None:
        held.clear()
        assert sharing.slab.places == 0
        multiply.run(*given)

    device.kernels["multiply_1"] = multiply._replace(run=overtake)
    monkeypatch.setattr(device, "happened", lambda _event: not held)
    cluster = serving()
    sharing = shared_with(cluster, device)
    view, place = sharing.placed(values(1).tobytes())
    held.append(view)
    del view
    action = cluster.next_id()
    cluster.say(infer(action, (1,), model="a"))
    sharing.send(Input(action, 1, places=(place,)))
    result = cluster.result(action)
    assert result.status is Status.OUTPUT_LOST
    assert "did not wait" in result.detail
    ping(cluster)
    assert sharing.receive()[0] == Taken(1)
    assert sharing.link.receive() is None, "an answer from inputs that may be another's"
    sharing.close()


def test_a_driver_that_pins_no_such_memory_is_told_and_inputs_are_staged(
    serving: Callable[[], Cluster], device: Recording
) -> None:
    device.pins_read_only = False
    cluster = serving()
    sharing = shared_with_refused(cluster)
    x = values(5)
    held, place = sharing.placed(x.tobytes())
    action = cluster.next_id()
    cluster.say(infer(action, (1,), model="a"))
    sharing.send(Input(action, 1, places=(place,)))
    output, frames = sharing.receive()
    assert isinstance(output, Output)
    assert output.taken == 1
    found = outputs(sharing, output, frames)
    np.testing.assert_allclose(found, tiny.expected(tiny.weights_file(ord("a")), x[None])[0], rtol=1e-6)
    sharing.close()
    del held


def shared_with_refused(cluster: Cluster) -> Sharing:
    """A gateway whose memory is not pinned, which the worker says with its signs of life."""
    sharing = Sharing(cluster.data_address)

    def told() -> bool:
        cluster.say(Ping(1, time.monotonic_ns()))
        health = cluster.expect(Pong).health
        return health is not None and any("can't be pinned" in note for note in health.notes)

    until(told, "nobody was told")
    return sharing


def test_places_of_clients_memory_are_staged(serving: Callable[[], Cluster], device: Recording) -> None:
    """Its client may write there at any time, and leave: it is copied before its message counts as read."""
    cluster = serving()
    sharing = shared_with(cluster, device)
    device.sources.clear()
    action = cluster.next_id()
    cluster.say(infer(action, (1,), model="a"))
    sharing.send(Input(action, 1, places=(Place(4096, 4 * tiny.WIDTH, 0, 0, 9),)))
    assert cluster.result(action).status is Status.INPUT_MISSING, "no such segment was handed on"
    assert not device.sources
    sharing.close()
