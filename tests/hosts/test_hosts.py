"""A cluster over several hosts whose clocks are 1,000 s apart: windows, goodput, partitions, addresses."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.telemetry.log import read_log
from tests.hosts.cluster import Cluster
from tests.hosts.goodput import PAIRS, Blocks, judge
from tests.hosts.network import Host, Network, wait_for

AHEAD_S = 1000
SECONDS, RATE = 6.0, 60.0
PARTITION_S, REJOINED_S = 3.0, 5.0
OFFERED_S = 10.5
"""With a partition after the first second."""
MOST_ROUND_NS = 5_000_000
"""Of the least round trip, on a machine whose cores others use too."""


class Hosts:
    """The three hosts of the issue of several hosts: one behind, one at the machine's time, one ahead."""

    def __init__(self, network: Network) -> None:
        self.behind, self.here, self.ahead = (network.host(each) for each in (-AHEAD_S, 0, AHEAD_S))


@pytest.fixture
def hosts(network: Network) -> Hosts:
    return Hosts(network)


def start(cluster: Cluster, controller: Host, gateway: Host, *workers: Host) -> Cluster:
    """Start a cluster: the controller by IPv6, the gateway by IPv4, workers at all addresses of theirs."""
    cluster.start_controller(controller, f"[{controller.address6}]")
    cluster.start_gateway(gateway, gateway.address4)
    for number, host in enumerate(workers):
        cluster.start_worker(host, f"w{number}", "--data-address", "tcp://[::]:*")
    return cluster


def begins(cluster: Cluster) -> list[tuple[Infer, Result]]:
    """Return the INFERs that were executed, each with its end, by the controller's clock."""
    sent: dict[int, Infer] = {}
    found = []
    for _, entry in read_log(cluster.events):
        if isinstance(entry, Infer):
            sent[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.status is Status.OK and entry.action_id in sent:
            found.append((sent[entry.action_id], entry))
    return found


def test_clocks_a_thousand_seconds_apart_are_known_and_nothing_runs_outside_its_window(
    hosts: Hosts, cluster: Callable[..., Cluster]
) -> None:
    over = start(cluster(), hosts.behind, hosts.here, hosts.ahead, hosts.here)
    for host in (hosts.behind, hosts.here, hosts.ahead):
        host.lose(one_in=1000)
    found = over.offer(hosts.here, 2, SECONDS, RATE).result()
    assert found["replies"] == {"1": found["offered"]}, over.said()
    ahead_ns = {"w0": 2 * AHEAD_S * 10**9, "w1": AHEAD_S * 10**9}
    errors_ns = []
    for each in found["after"]:
        error_ns = each["clock_error_ns"]
        assert abs(each["clock_offset_ns"] - ahead_ns[each["worker"]]) <= error_ns + 1000, each
        assert error_ns <= MOST_ROUND_NS
        errors_ns.append(error_ns)
    executed = begins(over)
    assert len(executed) > SECONDS * RATE / 20
    for infer, result in executed:
        assert infer.earliest_ns - MOST_ROUND_NS <= result.begin_ns <= infer.latest_ns, (infer, result)
    by_worker = [[result for infer, result in executed if infer.worker == name] for name in ahead_ns]
    for results in by_worker:
        for former, later in pairwise(sorted(results, key=lambda each: each.begin_ns)):
            assert former.end_ns <= later.begin_ns + MOST_ROUND_NS


def test_goodput_over_hosts_is_that_of_one_host(hosts: Hosts, cluster: Callable[..., Cluster]) -> None:
    over = start(cluster(), hosts.behind, hosts.here, hosts.ahead)
    alone = start(cluster(), hosts.here, hosts.here, hosts.here)

    def look() -> Blocks:
        addresses = (over.gateway, alone.gateway)
        found: Blocks = over.run(hosts.here, "tests.hosts.beside", *addresses).result()
        return found

    even, blocks = judge(look)
    assert even, f"of {PAIRS} requests a block in time, over hosts and on one: {blocks}"
    assert sum(second for _, second in blocks) > 0.8 * PAIRS * len(blocks), (blocks, alone.said())


@pytest.mark.parametrize("cut", ["worker", "controller", "gateway"])
def test_after_a_partition_each_request_has_one_reply_and_all_are_back(
    hosts: Hosts, cluster: Callable[..., Cluster], cut: str
) -> None:
    over = start(cluster(), hosts.behind, hosts.here, hosts.ahead, hosts.here)
    host = {"worker": hosts.ahead, "controller": hosts.behind, "gateway": hosts.here}[cut]
    # Clients are on the gateway's host, whose clock is that of this process.
    load = over.offer(hosts.here, 2, OFFERED_S, RATE)
    time.sleep(1.0)
    host.cut_off()
    time.sleep(PARTITION_S)
    host.heal()
    healed_s = time.monotonic()
    found = load.result()
    assert found["replies"] == {"1": found["offered"]}, (found, over.said())
    assert_back(found, healed_s, over)


def assert_back(found: dict[str, Any], healed_s: float, over: Cluster) -> None:
    """Fail unless the controller's status has all workers soon enough, and all requests are served then."""
    looks = [(came_s, workers) for asked_s, came_s, workers in found["looks"] if asked_s >= healed_s]
    back_s = next((came_s for came_s, workers in looks if workers == ["w0", "w1"]), math.inf)
    assert back_s <= healed_s + REJOINED_S, (looks, over.said())
    assert all(workers == ["w0", "w1"] for came_s, workers in looks if came_s >= back_s), looks
    later = [outcome for sent_s, *outcome in found["each"] if sent_s >= healed_s + REJOINED_S]
    assert len(later) >= 0.9 * RATE * (OFFERED_S - 1.0 - PARTITION_S - REJOINED_S)
    assert later.count(["served"]) >= 0.95 * len(later), (Counter(map(tuple, later)), over.said())


def test_a_worker_that_its_gateway_can_not_reach_is_refused_and_told_why(
    hosts: Hosts, cluster: Callable[..., Cluster]
) -> None:
    over = cluster()
    over.start_controller(hosts.behind, hosts.behind.address4)
    over.start_gateway(hosts.here, hosts.here.address4)
    # A load without workers waits until the gateway can tell the cluster's status: it comes first.
    assert set(over.offer(hosts.here, 0, 0.1, RATE).result()["outcomes"]) == {"no_worker"}
    over.start_worker(hosts.ahead, "w0", "--data-address", "tcp://127.0.0.1:*")
    wait_for(lambda: "--data-host" in over.log_of("w0"), over.said)
    assert "unreachable" in over.log_of("w0")
    address = hosts.ahead.address6
    over.start_worker(hosts.ahead, "w1", "--data-address", "tcp://[::]:*", "--data-host", address)
    found = over.offer(hosts.here, 1, 1.0, RATE).result()
    assert [each["worker"] for each in found["after"]] == ["w1"]
    assert found["outcomes"].get("served", 0) > 0
