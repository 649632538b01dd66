"""A worker with an empty store on a slow link: it serves as soon as the link allows, and others go on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.actions import Infer, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import WorkerJoined
from mainspring.telemetry.log import read_log
from tests.hosts.cluster import Cluster
from tests.hosts.network import Host, Network, wait_for

MBIT = 250
WIDTH, HIDDEN = 512, 24_576
LARGE_BYTES = 2 * WIDTH * HIDDEN * 4
"""100 MB of weights."""
CPU = ("--engine", "onnxruntime", "--pages", "16")
OFFERED_S, RATE = 120.0, 50.0
"""At most; it ends once the large model is served."""
TURNS = (*("small",) * 4, "large")
MOST_TIMES, MOST_MORE_S = 1.3, 1.0
LATE_NS = 1_000_000
MOST_MORE_LATE = 0.1


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two stores: one with a small model and a large one, one with the small one."""
    folder = tmp_path_factory.mktemp("stores")
    whole = Store(folder / "whole")
    source = Source("zoo", "digits", seed=1)
    compile_model(build("digits", 1), "small", Store(folder / "small"), (1,), source, quick=True)
    compile_model(build("digits", 1), "small", whole, (1,), source, quick=True)
    compile_model(wide(), "large", whole, (1,), Source("file", "large.onnx"), quick=True)
    assert whole.manifest("large").weights_bytes >= LARGE_BYTES
    return folder


def wide() -> onnx.ModelProto:
    """Return a model of two matrices that hold nearly all of its bytes."""
    random = np.random.default_rng(0)
    shapes = {"first": (WIDTH, HIDDEN), "second": (HIDDEN, WIDTH)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["data", "first"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["positive"]),
            helper.make_node("MatMul", ["positive", "second"], ["found"]),
        ],
        "large",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, ["rows", WIDTH])],
        [
            numpy_helper.from_array(random.random(shape, np.float32) / HIDDEN, name)
            for name, shape in shapes.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def hosts(network: Network) -> tuple[Host, Host]:
    """Return two hosts, to the second of which a slow link leads."""
    here, there = network.host(), network.host()
    try:
        network.narrow(there, MBIT)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no link can be made slow here: {error.stderr}")
    return here, there


def bare_link_s(over: Cluster, here: Host, there: Host) -> float:
    """Return how long the link takes for as many bytes as the large model has."""
    told = (here.address4, "7999", str(LARGE_BYTES))
    here.start(*over.python("tests.hosts.bare_link"), "send", *told, log=over.folder / "bare.log")
    return float(over.run(there, "tests.hosts.bare_link", "receive", *told).result())


def test_an_empty_worker_serves_as_soon_as_its_link_allows_and_others_begin_on_time(
    hosts: tuple[Host, Host], cluster: Callable[..., Cluster], origin: Path, tmp_path: Path
) -> None:
    here, there = hosts
    over = cluster("--store", str(origin / "whole"))
    bare_s = bare_link_s(over, here, there)
    over.start_controller(here, here.address4)
    over.start_gateway(here, here.address4)
    store = over.serve_store(here, origin / "whole", here.address4)
    over.start_worker(here, "w0", "--store", str(origin / "small"), engine=CPU)
    wait_for(lambda: "welcomed" in over.log_of("w0"), over.said)
    load = over.offer(here, 0, OFFERED_S, RATE, *TURNS)
    # As long again as the others are watched while the second worker fetches.
    wait_for(lambda: len(story(over).late["before"]) >= 100, over.said)
    there_from = ("--store", str(tmp_path / "empty"), "--store-from", store, "--data-address", "tcp://*:*")
    over.start_worker(there, "w1", *there_from, engine=CPU)
    wait_for(lambda: story(over).served_ns > 0, over.said)
    load.end()
    found = load.result()
    assert found["replies"] == {"1": found["offered"]}, over.said()
    told = story(over)
    took_s = (told.served_ns - told.joined_ns) / 1e9
    assert took_s <= MOST_TIMES * bare_s + MOST_MORE_S, (took_s, bare_s, over.said())
    before, while_fetching = (np.array(told.late[each]) for each in ("before", "while"))
    assert len(while_fetching) >= 50, over.said()
    assert np.mean(while_fetching > LATE_NS) <= np.mean(before > LATE_NS) + MOST_MORE_LATE


class Story(NamedTuple):
    """What the event log says, by the controller's clock."""

    joined_ns: int
    """When the second worker joined; 0 before."""
    served_ns: int
    """When it first served the large model; 0 before."""
    late: dict[str, list[int]]
    """By how much too late the first one began, in ns: before, and while the second one fetched."""


def story(over: Cluster) -> Story:
    """Read the event log, as far as it has been written."""
    asked: dict[int, Infer | Prepare] = {}
    joined_ns = served_ns = ready_ns = free_ns = 0
    late: dict[str, list[int]] = {"before": [], "while": [], "after": []}
    for now_ns, entry in read_log(over.events):
        if isinstance(entry, WorkerJoined) and entry.worker == "w1":
            joined_ns = now_ns
        elif isinstance(entry, Infer | Prepare):
            asked[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.status is Status.OK:
            action = asked.get(entry.action_id)
            if isinstance(action, Prepare):
                ready_ns = now_ns if (action.worker, action.model.name) == ("w1", "large") else ready_ns
            elif action is not None and action.worker == "w0":
                due_ns = max(action.earliest_ns, entry.inputs_ns, free_ns)
                late["before" if not joined_ns else "after" if ready_ns else "while"].append(
                    entry.begin_ns - due_ns
                )
                free_ns = entry.end_ns
            elif action is not None and action.model == "large":
                served_ns = served_ns or entry.end_ns
    return Story(joined_ns, served_ns, late)
