"""NaN through a real engine, inputs beyond a worker's limit, bytes that are not even ZeroMQ's."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

import mainspring
from mainspring import Client
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.codes import Status
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.server import run
from tests.gateway.fakes import fake_cluster, gateway, make_spec, wait_until
from tests.gateway.test_end_to_end import emulated, real_controller, workers_ready
from tests.patience import PATIENCE_S
from tests.worker.peers import Cluster, infer, spec

X = np.ones((1, 4), np.float32)
WIDE_COLUMNS = 1 << 19
Digits = npt.NDArray[np.float32]


def test_nan_goes_through_a_real_engine_and_harms_neither_its_batch_nor_the_next(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    list(compile_zoo(["digits"], Store(tmp_path), batch_sizes=(1, 4)))
    cluster = start(engine="onnxruntime", store=str(tmp_path), io_bytes=4 * MIB)
    model = Store(tmp_path).manifest("digits").spec()
    cluster.resident(model)
    stock = onnxruntime.InferenceSession(build("digits", 0).SerializeToString())
    row_shape = model.inputs[0].shape

    def ran(inputs: dict[int, Digits]) -> dict[int, Digits]:
        action = infer(cluster.next_id(), tuple(inputs), batch_size=4, model="digits")
        for request_id, array in inputs.items():
            cluster.push(action.action_id, request_id, array.tobytes())
        assert cluster.do(action).status is Status.OK
        found = [cluster.output() for _ in inputs]
        return {head.request_id: np.frombuffer(frames[0], np.float32) for head, frames in found}

    generator = np.random.default_rng(3)
    clean = {key: generator.random((1, *row_shape), np.float32) for key in (1, 3)}
    spoilt = {
        2: np.full((1, *row_shape), np.nan, np.float32),
        4: np.full((1, *row_shape), np.inf, np.float32),
    }
    for inputs in (clean | spoilt, clean):
        outputs = ran(inputs)
        for key, array in clean.items():
            (expected,) = stock.run(None, {model.inputs[0].name: array})
            np.testing.assert_allclose(outputs[key], expected.ravel(), rtol=1e-3, atol=1e-5)
        if 2 in outputs:
            assert np.isnan(outputs[2]).all()
            assert not np.isfinite(outputs[4]).all()


@contextmanager
def small_worker(controller: str) -> Iterator[None]:
    """A worker, in a thread, that takes frames of up to 1 MiB."""
    stop = threading.Event()
    config = WorkerConfig(
        name="small", controller=controller, engine="emulated", device_kind="emulated", pages=4,
        io_bytes=64 * MIB, realtime=False, spin_us=0, max_message_bytes=MIB,
    )  # fmt: skip
    thread = threading.Thread(target=run, args=(config, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_an_input_beyond_the_workers_limit_is_answered_and_counted_and_others_are_served() -> None:
    wide = msgspec.structs.replace(
        make_spec("wide", WIDE_COLUMNS), batch_sizes=(1,), profiles=emulated("a").profiles
    )
    with (
        real_controller([emulated("a"), wide]) as controller,
        small_worker(controller),
        # A frame has this limit; a tensor in shared memory is no part of a message.
        gateway(controller, slab_bytes=0) as address,
        Client(address) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 20)
        client.infer("a", {"data": X}, slo_ms=5_000)
        large = np.zeros((1, WIDE_COLUMNS), np.float32)
        hopeless = [client.submit("wide", {"data": large}, slo_ms=300) for _ in range(2)]
        good = [client.submit("a", {"data": X}, slo_ms=10_000) for _ in range(40)]
        outcomes = Counter(type(future.exception(20)).__name__ for future in good)
        assert outcomes == {"NoneType": 40}
        for future in hopeless:
            assert isinstance(future.exception(20), mainspring.DeadlineError | mainspring.WorkerFailed)
        wait_until(lambda: client.status().dropped_messages.get("small: gateway: connection ended", 0) > 0)
        assert client.infer("a", {"data": X}, slo_ms=10_000)["twice"].shape == (1, 4)


def rave(address: str, seed: int) -> None:
    """Send bytes that are not even ZeroMQ's to a port, in several connections, some cut in the middle."""
    generator = random.Random(seed)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
    for number in range(40):
        # The other side may have hung up already.
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
            junk = generator.randbytes(generator.randrange(1, 400))
            connection.sendall(greeting[: generator.randrange(65)] + junk if number % 2 else junk)
            if number % 3 == 0:
                connection.shutdown(socket.SHUT_WR)


def test_bytes_of_another_protocol_on_every_port_stop_nothing(start: Callable[..., Cluster]) -> None:
    cluster = start()
    rave(cluster.data_address, 1)
    with fake_cluster() as fake, gateway(fake.address) as address, Client(address) as client:
        rave(address, 2)
        wait_until(lambda: len(client.models()) == len(fake.specs))
        np.testing.assert_array_equal(client.infer("double", {"data": X})["twice"], X * 2)
    with (
        real_controller([emulated("a")]) as controller,
        small_worker(controller),
        gateway(controller) as address,
        Client(address) as client,
    ):
        rave(controller, 3)
        wait_until(lambda: workers_ready(client, 1, 1), 20)
        assert client.infer("a", {"data": X}, slo_ms=10_000)["sum"].shape == (1,)
    cluster.resident(spec())
    action = infer(cluster.next_id())
    cluster.push(action.action_id, 1, bytes(12))
    assert cluster.do(action).status is Status.OK
