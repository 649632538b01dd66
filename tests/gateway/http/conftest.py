"""A gateway that serves HTTP, on a cluster that does as the tests say, or on a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from mainspring import Client
from mainspring.messages.model import ModelSpec, TensorSpec
from tests.gateway.fakes import FakeCluster, fake_cluster, serving, wait_until
from tests.gateway.http.raw import Peer
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready


class Served(NamedTuple):
    """A gateway over HTTP."""

    host: str
    """As tritonclient wants it: host and port."""
    zeromq: str
    cluster: FakeCluster | None = None


@contextmanager
def faked(**options: Any) -> Iterator[Served]:
    """Run a gateway on a `FakeCluster`; ``options`` are its configuration's."""
    with (
        fake_cluster() as cluster,
        serving(cluster.address, http_address="http://127.0.0.1:0", **options) as addresses,
    ):
        host = addresses.http.removeprefix("http://")
        wait_until(lambda: Peer(host).ask("GET", "/v2/health/ready").status == 200)
        yield Served(host, addresses.zeromq, cluster)


@pytest.fixture
def fake() -> Callable[..., AbstractContextManager[Served]]:
    return faked


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A gateway on a `FakeCluster`, for all tests of a module."""
    with faked() as each:
        yield each


def with_tensors(name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> ModelSpec:
    return msgspec.structs.replace(emulated(name), inputs=inputs, outputs=outputs)


MODELS = [
    emulated("image"),
    with_tensors("text", (TensorSpec("in", "S16", ()),), (TensorSpec("out", "S8", (2,)),)),
    with_tensors("half", (TensorSpec("in", "bfloat16", (3,)),), (TensorSpec("out", "float16", (3,)),)),
    with_tensors(
        "pair",
        (TensorSpec("a", "int32", (2,)), TensorSpec("b", "uint8", (2, 2))),
        (TensorSpec("y", "int64", (2,)), TensorSpec("z", "bool", ())),
    ),
]


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    """A gateway in front of the real controller and a real worker, whose emulated device gives zeros."""
    with (
        real_controller(MODELS) as controller,
        real_worker("one", controller),
        serving(controller, http_address="http://127.0.0.1:0", default_slo_ms=20_000.0) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, len(MODELS)), 30)
        yield Served(addresses.http.removeprefix("http://"), addresses.zeromq)
