"""Streams through a whole cluster of processes, compared with ONNX Runtime in a loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import mainspring
from mainspring import AsyncClient, Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.sizes.sample_forms import described
from mainspring.worker.config import MIB
from tests.gateway.fakes import wait_until
from tests.gateway.http.test_shared_memory import Memory
from tests.gateway.recurrent import HIDDEN, OUTPUTS, Reference, check, recurrent, stream
from tests.patience import PATIENCE_S

STEPS = 8
FIRST = np.linspace(-1, 1, HIDDEN, dtype=np.float32)
DESCRIPTION = """
[state.h]
output = "h_out"
initial = "first.bin"
shown = true
[sequence]
idle_s = 600
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's file and a store that has it with its state: as ``net`` and as ``begun``.

    ``layered`` is the same net with its state's rows behind another axis.
    """
    made = tmp_path_factory.mktemp("recurrent")
    (made / "net.onnx").write_bytes(recurrent().SerializeToString())
    (made / "first.bin").write_bytes(FIRST.tobytes())
    (made / "begun.toml").write_text(DESCRIPTION)
    store = Store(made / "store")
    states = described(None, ["h=h_out"])
    compile_file(made / "net.onnx", "net", store, (1, 2, 4), described=states)
    (made / "layered.onnx").write_bytes(recurrent(layers_first=True).SerializeToString())
    layered = compile_file(made / "layered.onnx", "layered", store, (1, 2, 4), described=states)
    assert layered.manifest.batch_sizes == (1, 2, 4), "sequences share executions"
    compile_file(made / "net.onnx", "begun", store, (1, 2, 4), described=described(made / "begun.toml"))
    return made


@contextmanager
def served(folder: Path, workers: int = 1) -> Iterator[LocalCluster]:
    gateway, controller, http, grpc = free_ports(4)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(folder / f"run-{workers}"),
                "workers": workers,
                "ready_timeout_s": 90,
            },
            "worker": {"pages": 4, "io_bytes": 16 * MIB, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http}",
                "grpc_address": f"grpc://127.0.0.1:{grpc}",
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    with served(folder) as each:
        yield each


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder / "net.onnx")


def place(cluster: LocalCluster, protocol: str) -> str:
    [config] = [job.gateway for job in cluster.plan.jobs if isinstance(job, GatewayJob)]
    return str(getattr(config, f"{protocol}_address")).rpartition("//")[2]


@pytest.mark.parametrize("model", ["net", "layered"])
def test_streams_of_the_python_client_side_by_side(
    cluster: LocalCluster, reference: Reference, model: str
) -> None:
    def follow(client: Client, seed: int) -> list[Any]:
        with client.sequence(model) as each:
            return [each.infer({"x": x}, slo="30s")["y"] for x in stream(seed, STEPS, 1 + seed % 2)]

    with Client(cluster.address) as client, ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda seed: follow(client, seed), range(6)))
        for seed, each in enumerate(found):
            check(each, reference.of(stream(seed, STEPS, 1 + seed % 2)))
        # Each of them was ended by its `with`.
        wait_until(lambda: "sequences" not in client.status().dropped_messages, PATIENCE_S)


def test_streams_of_the_asyncio_client(cluster: LocalCluster, reference: Reference) -> None:
    async def follow(client: AsyncClient, seed: int) -> list[Any]:
        async with client.sequence("begun") as each:
            # The calls are made at one time, and run in this order.
            return await asyncio.gather(*(each.infer({"x": x}, slo="30s") for x in stream(seed, STEPS)))

    async def follow_all() -> list[list[Any]]:
        async with AsyncClient(cluster.address) as client:
            return await asyncio.gather(*(follow(client, seed) for seed in range(4)))

    for seed, found in enumerate(asyncio.run(follow_all())):
        check([each["y"] for each in found], reference.of(stream(seed, STEPS), FIRST[None]))
        assert set(found[0]) == {"y", "h_out"}


@pytest.mark.parametrize("sequence", [17, "call-17"])
@pytest.mark.parametrize("package", [tritonclient.http, tritonclient.grpc])
def test_streams_of_tritons_clients(
    cluster: LocalCluster, reference: Reference, package: Any, sequence: int | str
) -> None:
    inputs = stream(5, STEPS)
    address = place(cluster, package.__name__.rpartition(".")[2])
    with package.InferenceServerClient(address) as client:

        def ask(x: Any, **flags: bool) -> Any:
            tensor = package.InferInput("x", list(x.shape), "FP32")
            tensor.set_data_from_numpy(x)
            return client.infer("net", [tensor], sequence_id=sequence, **flags).as_numpy("y")

        for _ in range(2):
            # The second time it begins anew, though the first was not ended.
            found = [ask(x, sequence_start=place == 0) for place, x in enumerate(inputs)]
            check(found, reference.of(inputs))
        ask(inputs[0], sequence_end=True)
        match = f"sequence {sequence!r} to model 'net' must specify the START flag on the first request"
        with pytest.raises(InferenceServerException, match=match) as caught:
            ask(inputs[0])
        assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        sequence = 0
        with pytest.raises(InferenceServerException, match="non-zero or non-empty correlation ID"):
            ask(inputs[0])


@pytest.mark.parametrize("package", [tritonclient.http, tritonclient.grpc])
def test_a_stream_through_shared_memory(cluster: LocalCluster, reference: Reference, package: Any) -> None:
    inputs = stream(6, STEPS)
    address = place(cluster, package.__name__.rpartition(".")[2])
    memory, found = Memory(), []
    with package.InferenceServerClient(address) as client:
        client.register_system_shared_memory("stream", memory.key, memory.size)
        tensor = package.InferInput("x", list(inputs[0].shape), "FP32")
        tensor.set_shared_memory("stream", inputs[0].nbytes)
        output = package.InferRequestedOutput("y")
        output.set_shared_memory("stream", 64, offset=1024)
        for step, x in enumerate(inputs):
            memory.put(x)
            last = step == STEPS - 1
            client.infer(
                "net", [tensor], outputs=[output], sequence_id=9, sequence_start=not step, sequence_end=last
            )
            found.append(memory.get((1, OUTPUTS), offset=1024))
        client.unregister_system_shared_memory("stream")
    memory.destroy()
    check(found, reference.of(inputs))


def test_clients_see_the_model_without_its_state(cluster: LocalCluster) -> None:
    with tritonclient.http.InferenceServerClient(place(cluster, "http")) as client:
        found = client.get_model_metadata("net")
        assert [each["name"] for each in found["inputs"] + found["outputs"]] == ["x", "y"]
        state = client.get_model_config("begun")["sequence_batching"]["state"]
        assert [(each["input_name"], each["output_name"]) for each in state] == [("h", "h_out")]
    with Client(cluster.address) as client:
        assert [each.name for each in client.models()["net"].inputs] == ["x"]
        with pytest.raises(mainspring.InvalidInput, match="there is no input 'h'"):
            client.sequence("net").infer({"x": stream(1, 1)[0], "h": FIRST[None]})
        with pytest.raises(mainspring.InvalidInput, match="correlation ID"):
            client.infer("net", {"x": stream(1, 1)[0]})


def test_a_client_that_says_which_request_is_the_last(cluster: LocalCluster, reference: Reference) -> None:
    inputs = stream(9, 4)
    with Client(cluster.address) as client:
        each = client.sequence("net", sequence_id="twice")
        assert each.sequence_id == "twice"
        for _ in range(2):
            found = [each.infer({"x": x}, last=place == 3)["y"] for place, x in enumerate(inputs)]
            check(found, reference.of(inputs))


def test_streams_go_on_when_workers_die_and_end_with_their_gateway(
    folder: Path, reference: Reference
) -> None:
    inputs = stream(3, STEPS)
    with served(folder, 2) as cluster, Client(cluster.address, connect_timeout_s=PATIENCE_S) as client:
        each = client.sequence("net")
        found = [each.infer({"x": x}, slo="60s") for x in inputs[:2]]
        for worker in {result.timing.worker for result in found}:
            os.kill(cluster.supervisor.pid(worker) or 0, signal.SIGKILL)
        found += [each.infer({"x": x}, slo="60s") for x in inputs[2:]]
        check([result["y"] for result in found], reference.of(inputs))
        starts = cluster.supervisor.starts("gateway")
        os.kill(cluster.supervisor.pid("gateway") or 0, signal.SIGKILL)
        wait_until(lambda: cluster.supervisor.starts("gateway") > starts, PATIENCE_S)
        wait_until(lambda: _told_unknown(each, inputs[0]), PATIENCE_S)
        # The next request begins it anew.
        check([each.infer({"x": x}, slo="60s")["y"] for x in inputs], reference.of(inputs))


def _told_unknown(each: Any, x: Any) -> bool:
    """Say whether the gateway says that it has lost the sequence; it may not be back yet."""
    try:
        each.infer({"x": x}, slo="60s")
    except mainspring.UnknownSequence:
        return True
    except mainspring.Unavailable:
        return False
    raise AssertionError("a sequence went on without its state")
