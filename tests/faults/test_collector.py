"""No pause of the garbage collector while requests are served, however large the heap.

Each role has a process of its own with half a million objects; its peers are played over real sockets.

What is counted is not time but what the collector goes through: with those objects in it, a collection takes
as long as many requests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

BEGIN = """
import gc
import threading
import time

HELD = [[number] for number in range(500_000)]
passed = []
threads = set()

def count(phase, info):
    if phase == "start":
        passed.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

def wait_for(condition):
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)

def begin():
    assert not gc.isenabled(), "it may collect at any time"
    gc.callbacks.append(count)

def end():
    gc.callbacks.remove(count)
    print(max(passed, default=0), len(passed))
"""
GATEWAY = """
import numpy as np
from mainspring import Client
from tests.gateway.fakes import fake_cluster, gateway

with fake_cluster() as cluster, gateway(cluster.address) as address, Client(address) as client:
    x = {"data": np.ones((1, 4), np.float32)}
    wait_for(lambda: cluster.hellos)
    client.infer("double", x, slo_ms=None)
    begin()
    for number in range(300):
        client.infer("double", x, slo_ms=None)
    wait_for(lambda: passed)
    client.infer("double", x, slo_ms=None)
    end()
assert gc.isenabled()
"""
CONTROLLER = """
from mainspring.messages.peers import Dispatch
from tests.controller.peers import Stage, spec

stage = Stage()
stage.start((spec("m0"), spec("m1")))
peer, worker = stage.cluster("m0", "m1")
begin()
for number in range(1, 301):
    asked = peer.arrive(number)
    stage.until(lambda: any(asked in each.request_ids for each in peer.all(Dispatch)))
    if number == 100:
        stage.admin(peer, remove="m1")
stage.until(lambda: passed)
end()
stage.close()
assert gc.isenabled()
"""
WORKER = """
from mainspring.worker.config import MIB, WorkerConfig
from tests.worker.peers import Cluster, infer, spec

config = WorkerConfig(name="w", engine="emulated", pages=8, io_bytes=MIB, controller_silence_ms=60_000)
cluster = Cluster(config)
cluster.resident(spec())
begin()
for request in range(1, 301):
    action = cluster.next_id()
    cluster.push(action, request, bytes(12))
    assert cluster.do(infer(action, (request,))).status == "ok"
wait_for(lambda: passed)
end()
cluster.close()
assert gc.isenabled()
"""


@pytest.mark.parametrize("program", [GATEWAY, CONTROLLER, WORKER], ids=["gateway", "controller", "worker"])
def test_what_is_collected_while_a_role_serves_is_little(program: str) -> None:
    text = f"PATIENCE_S = {PATIENCE_S}\n{BEGIN}\n{program}"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, check=False, text=True, capture_output=True, cwd=root)
    assert done.returncode == 0, done.stderr
    largest, collections = map(int, done.stdout.split()[-2:])
    assert collections > 0, "it collects when nothing is asked of it"
    assert largest < 50_000, "half a million objects were gone through beside requests"
