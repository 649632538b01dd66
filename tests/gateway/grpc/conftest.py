"""Gateways to talk gRPC to: of a whole cluster of processes, and one in a thread between fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest
from tritonclient.grpc import InferenceServerClient

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.messages.codec import FROM_GATEWAY, encode
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import Input, Output
from tests.gateway.fakes import FakeCluster, make_spec, serving, wait_until
from tests.gateway.grpc.tensors import DTYPES, echo

PROFILES = """model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms
quick,4,4,20,2,2,3,4,6,9
slow,4,4,40,4,100,101,102,103,104
"""
"""Models that take FP32 ``data`` of 1,000 columns and give ``output`` of 1,000."""
LARGE_BYTES = 1 << 20


class Live(NamedTuple):
    """A cluster of a controller, a gateway and an emulated worker, in processes of their own."""

    address: str
    """Where it serves gRPC."""
    gateway_pid: int


@pytest.fixture(scope="package")
def live_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    (folder / "profiles.csv").write_text(PROFILES)
    gateway, controller, port = free_ports(3)
    config = read_config(
        {
            "cluster": {
                "engine": "emulated",
                "profiles": str(folder / "profiles.csv"),
                "run_dir": str(folder / "run"),
                "ready_timeout_s": 60.0,
            },
            "worker": {"pages": 16},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "grpc_address": f"grpc://127.0.0.1:{port}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None) as cluster:
        yield Live(f"127.0.0.1:{port}", cluster.supervisor.pid("gateway") or 0)


@pytest.fixture
def live(live_cluster: Live) -> str:
    """Return where a cluster serves gRPC."""
    return live_cluster.address


class EchoCluster(FakeCluster):
    """A `FakeCluster` that also serves models which give back what they take, of every datatype.

    And ``large``, which gives a megabyte for four numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        large = msgspec.structs.replace(
            make_spec("large"), outputs=(TensorSpec("much", "uint8", (LARGE_BYTES,)),)
        )
        self.specs = {**self.specs, "large": large, **{spec.name: spec for spec in map(echo, DTYPES)}}

    def _take_input(self, parts: list[Any]) -> None:
        message = FROM_GATEWAY.decode(parts[1])
        if not isinstance(message, Input):
            return
        model = self._columns.get(message.request_id, "")
        if message.withdrawn or not model.startswith(("echo-", "large")):
            super()._take_input(parts)
            return
        outputs = [bytes(LARGE_BYTES)] if model == "large" else parts[2:]
        self.worker.send([parts[0], encode(Output(message.action_id, message.request_id, 1_000)), *outputs])


class Fake:
    """A gateway between fakes, and clients of it."""

    def __init__(self, stack: ExitStack, ready_headers: dict[str, str] | None = None, **options: Any) -> None:
        """``ready_headers``: what a call for readiness needs."""
        self.cluster = EchoCluster()
        stack.callback(self.cluster.stop)
        served = stack.enter_context(
            serving(self.cluster.address, grpc_address="grpc://127.0.0.1:0", **options)
        )
        self.address = served.grpc.removeprefix("grpc://")
        self.client = stack.enter_context(InferenceServerClient(self.address))
        channel = grpc.insecure_channel(self.address)
        stack.callback(channel.close)
        self.channel = channel
        last = next(reversed(self.cluster.specs))
        wait_until(lambda: self.client.is_model_ready(last, headers=ready_headers))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with ExitStack() as stack:
        yield Fake(stack)
