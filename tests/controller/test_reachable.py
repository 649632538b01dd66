"""Which data addresses a controller takes, of workers on its own host and on others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.controller.sessions import address_fault, unreachable
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import GatewayHello, WorkerHello
from tests.controller.test_shell import Bench

HERE, B, C = "", "10.0.0.2", "fd00::3"
LOOPBACK = (
    "tcp://127.0.0.1:1",
    "tcp://127.9.9.9:1",
    "tcp://[::1]:1",
    "tcp://localhost:1",
    "unix:///run/w.sock",
)
OTHERS = ("tcp://10.0.0.2:1", "tcp://[fd00::2]:1", "tcp://gpu-7.example:1", "tcp://[::ffff:10.0.0.2]:1")


@pytest.mark.parametrize(
    "address", ["", "tcp://h", "tcp://::1:7", "ipc:///x", "name://127.0.0.1:7400", "tcp://h:0"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    assert address_fault(address) is not None


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://[::ffff:0.0.0.0]:1", "tcp://*:1"]
)
def test_an_address_that_names_no_host_is_refused_with_the_flag_that_helps(address: str) -> None:
    fault = address_fault(address)
    assert fault is not None
    assert "--data-host" in fault


@pytest.mark.parametrize("address", LOOPBACK + OTHERS)
def test_any_other_address_may_be_told(address: str) -> None:
    assert address_fault(address) is None


@given(st.sampled_from(LOOPBACK), st.sampled_from([HERE, B, C]), st.sampled_from([HERE, B, C]))
def test_loopback_and_sockets_in_folders_are_of_one_host(address: str, worker: str, gateway: str) -> None:
    assert unreachable(address, worker, gateway) is (worker != gateway)


@given(st.sampled_from(OTHERS), st.sampled_from([HERE, B, C]), st.sampled_from([HERE, B, C]))
def test_other_addresses_are_taken_at_their_word(address: str, worker: str, gateway: str) -> None:
    assert not unreachable(address, worker, gateway)


def worker(name: str, address: str) -> WorkerHello:
    return WorkerHello(PROTOCOL_VERSION, name, "cpu", 8, PAGE_BYTES, address)


def refusals(bench: Bench, peer: bytes) -> list[tuple[str, str]]:
    return [
        (str(said["code"]), str(said["detail"]))
        for to, said in bench.wire.sent
        if to == peer and said["type"] == "refused"
    ]


def test_a_worker_that_a_gateway_of_another_host_can_not_reach_is_refused(bench: Bench) -> None:
    bench.wire.hosts[b"worker/far"] = B
    bench.receive(10, b"worker/far", worker("far", "tcp://127.0.0.1:7"))
    ((code, detail),) = refusals(bench, b"worker/far")
    assert code == "unreachable"
    assert "tcp://127.0.0.1:7" in detail
    assert "--data-address" in detail
    assert bench.dropped["unreachable"] == 1
    assert "far" not in bench.shell.sessions.workers
    bench.receive(10**9, b"worker/far", worker("far", "tcp://10.0.0.2:7"))
    assert "far" in bench.shell.sessions.workers


def test_a_gateway_that_can_not_reach_a_worker_of_another_host_is_refused(bench: Bench) -> None:
    bench.receive(10, b"worker/near", worker("near", "unix:///run/near.sock"))
    assert "near" in bench.shell.sessions.workers
    bench.wire.hosts[b"gateway/far"] = C
    bench.receive(20, b"gateway/far", GatewayHello(PROTOCOL_VERSION, "far"))
    ((code, detail),) = refusals(bench, b"gateway/far")
    assert code == "unreachable"
    assert "'near'" in detail
    bench.receive(30, b"gateway/near", GatewayHello(PROTOCOL_VERSION, "near"))
    assert "near" in bench.shell.sessions.gateways


def test_gateway_and_worker_of_one_other_host_may_use_loopback(bench: Bench) -> None:
    for gateway in list(bench.shell.sessions.gateways.values()):
        bench.shell.sessions.close(gateway)
    bench.wire.hosts |= {b"worker/far": B, b"gateway/far": B}
    bench.receive(10, b"gateway/far", GatewayHello(PROTOCOL_VERSION, "far"))
    bench.receive(20, b"worker/far", worker("far", "tcp://127.0.0.1:7"))
    assert "far" in bench.shell.sessions.workers
    assert not refusals(bench, b"worker/far")


@pytest.fixture
def bench() -> Bench:
    return Bench()
