"""Gateways that a worker has to bear: one that sends too much, one that does not read, one without inputs."""

from __future__ import annotations

import time
from collections.abc import Callable

from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.peers import Ping, Pong
from mainspring.worker.config import MIB
from tests.blocking import Client
from tests.patience import PATIENCE_S
from tests.worker.peers import MS, Cluster, infer, spec

ROW = bytes(12)
WIDE_FLOATS = 512 * 1024


def wide() -> ModelSpec:
    """A model with a small input and an output of 2 MiB."""
    return ModelSpec(
        name="wide",
        weights_hash="weights of wide",
        executable="wide",
        batch_sizes=(1,),
        weights_bytes=1,
        extents=(1,),
        inputs=(TensorSpec("x", "float32", (3,)),),
        outputs=(TensorSpec("y", "float32", (WIDE_FLOATS,)),),
        profiles={"cpu": Profile({1: MS // 10}, MS // 10)},
    )


def dropped(cluster: Cluster) -> dict[str, int]:
    """What the worker tells the controller that it could not use."""
    cluster.say(Ping(1, 2))
    return cluster.expect(Pong).dropped


def eventually(cluster: Cluster, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition(seen := dropped(cluster)):
        assert time.monotonic() < give_up_s, seen
        time.sleep(0.01)
    return seen


def test_a_frame_beyond_the_limit_breaks_only_its_own_connection(start: Callable[..., Cluster]) -> None:
    """It is counted, its action ends, and its sender is served again once it has reconnected."""
    cluster = start(max_message_bytes=MIB)
    cluster.resident(spec())
    other = cluster.connect_gateway()
    now_ns = time.monotonic_ns()
    cut = infer(cluster.next_id(), window=(now_ns, now_ns + 300 * MS))
    beside = infer(cluster.next_id())
    cluster.say(cut)
    cluster.say(beside)
    cluster.push(cut.action_id, 1, bytes(2 * MIB))
    cluster.push(beside.action_id, 1, ROW, gateway=other)
    assert cluster.result(cut.action_id).status is Status.INPUT_MISSING
    assert cluster.result(beside.action_id).status is Status.OK
    assert cluster.output(other)[0].request_id == 1
    assert eventually(cluster, lambda seen: seen.get("gateway: connection ended", 0) > 0) == {
        "gateway: connection ended": 1
    }
    again = infer(cluster.next_id())
    cluster.push(again.action_id, 1, ROW)
    assert cluster.do(again).status is Status.OK
    assert cluster.output()[0].action_id == again.action_id


def test_outputs_that_a_gateway_does_not_read_are_bounded_and_others_are_served(
    start: Callable[..., Cluster],
) -> None:
    limit = 32 * MIB
    cluster = start(io_bytes=16 * MIB, output_backlog_bytes=limit)
    cluster.resident(wide(), (0,))
    slow = cluster.connect_gateway()

    def served(gateway: Client) -> int:
        action = infer(cluster.next_id(), model="wide")
        cluster.push(action.action_id, 1, ROW, gateway=gateway)
        assert cluster.do(action).status is Status.OK
        return action.action_id

    sent = 0
    while "gateway: reads too slowly" not in dropped(cluster):
        served(slow)
        sent += 1
        assert sent < 200, "nothing bounds what waits for a gateway"
    assert sent >= limit // (4 * WIDE_FLOATS), "less was kept than may wait"
    for _ in range(5):
        served(slow)
        assert served(cluster.gateway) == cluster.output()[0].action_id
    assert dropped(cluster)["gateway: reads too slowly"] == 6
    came = 0
    while slow.poll(500):
        slow.receive()
        came += 1
    assert came == sent - 1, "what was kept comes once it is read"
    last = served(slow)
    assert cluster.output(slow)[0].action_id == last


def test_the_output_for_a_gateway_that_left_is_counted_and_reported(start: Callable[..., Cluster]) -> None:
    cluster = start()
    cluster.resident(spec())
    leaver = cluster.connect_gateway()
    action = infer(cluster.next_id(), (1, 2))
    cluster.push(action.action_id, 1, ROW, gateway=leaver)
    eventually(cluster, lambda _: True)
    time.sleep(0.05)
    leaver.close()
    eventually(cluster, lambda seen: seen.get("gateway: connection ended", 0) > 0)
    cluster.push(action.action_id, 2, ROW)
    result = cluster.do(action)
    assert result.status is Status.OUTPUT_LOST, "the controller has to know that it is to be done again"
    assert "request 1" in result.detail
    assert cluster.output()[0].request_id == 2
    assert dropped(cluster)["gateway: gone before its output"] == 1
