"""Kill and stop the processes of a cluster under load: ``python -m mainspring.experiments.faults --seed 1``.

Two workers serve more models than fit into their pages, to clients of three kinds. Meanwhile processes are
killed (SIGKILL) or stopped for up to two seconds (SIGSTOP), one after the other, drawn from the seed. Every
answer is compared with ONNX Runtime's on the original model, and every request's replies are counted. The
exit code is 0 if every answer was right, no request had two replies or none, and all is served at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.experiments.faults.callers import Caller, Case, HttpCaller, PythonCaller, RawCaller, faults_of

MODELS = (("digits", 1), ("digits", 2), ("digits", 3), ("resnet20", 1), ("resnet20", 2))
PAGES = 3
"""Of each worker: fewer than there are models."""
VICTIMS = ("worker-0", "worker-1", "controller", "gateway")
INTERVAL_S = (0.5, 4.0)
"""Between two faults."""
STOPPED_S = (0.2, 2.0)
RECOVERY_S = 60.0
"""After the last fault, how long the cluster may take until every model is answered again."""


def make_cases(store: Path) -> list[Case]:
    """Compile the models; return one request for each, with the right answer."""
    cases = []
    for number, (architecture, seed) in enumerate(MODELS):
        name, model = f"{architecture}-{seed}", build(architecture, seed)
        compile_model(
            model, name, Store(store), (1, 2, 4), Source("zoo", architecture, seed=seed), quick=True
        )
        spec = Store(store).manifest(name).spec()
        data = np.random.default_rng(number).random((1, *spec.inputs[0].shape), np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        target = spec.outputs[0].name
        (expected,) = session.run([target], {spec.inputs[0].name: data})
        cases.append(Case(name, spec.inputs[0].name, data, target, expected))
    return cases


def make_cluster(folder: Path) -> tuple[LocalCluster, str]:
    """Return a cluster that serves the store in a folder, and its HTTP address."""
    gateway, controller, web = free_ports(3)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(folder / "run"),
                "workers": 2,
                "ready_timeout_s": 120,
            },
            "worker": {"pages": PAGES, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{web}",
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the campaign",
    )
    return LocalCluster(make_plan(config), lambda line: print(f"  {line}", flush=True)), f"127.0.0.1:{web}"


def strike(cluster: LocalCluster, draw: random.Random) -> str:
    """Kill or stop a process that runs; return what was done."""
    victim, stops = draw.choice(VICTIMS), draw.random() < 0.4
    seconds = draw.uniform(*STOPPED_S)
    pid = cluster.supervisor.pid(victim)
    if pid is None:
        return f"{victim} is down"
    try:
        if not stops:
            os.kill(pid, signal.SIGKILL)
            return f"killed {victim}"
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return f"{victim} is down"
    return f"stopped {victim} for {seconds:.1f} s"


def unanswered(client: Client, cases: list[Case]) -> list[str]:
    """Return the models that can't be asked successfully within `RECOVERY_S`."""
    left = {case.model: case for case in cases}
    give_up_s = time.monotonic() + RECOVERY_S
    while left and time.monotonic() < give_up_s:
        for case in list(left.values()):
            try:
                client.infer(case.model, {case.source: case.data}, slo_ms=5_000)
            except MainspringError:
                time.sleep(0.1)
            else:
                del left[case.model]
    return list(left)


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser("python -m mainspring.experiments.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="how many kills and stops")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, stop = random.Random(options.seed), threading.Event()
    with tempfile.TemporaryDirectory() as name:
        cases = make_cases(Path(name) / "store")
        cluster, web = make_cluster(Path(name))
        with cluster:
            callers: list[Caller] = [
                *(PythonCaller(cases, seed, cluster.address, stop) for seed in range(2)),
                *(HttpCaller(cases, seed, web, stop) for seed in range(2, 4)),
                RawCaller(cases, 4, cluster.address, stop),
            ]
            for caller in callers:
                caller.start()
            for _ in range(options.faults):
                time.sleep(draw.uniform(*INTERVAL_S))
                print(strike(cluster, draw), flush=True)
            with Client(cluster.address, connect_timeout_s=RECOVERY_S) as client:
                left = unanswered(client, cases)
            stop.set()
            for caller in callers:
                caller.join(RECOVERY_S)
            alive = [caller.kind for caller in callers if caller.is_alive()]
    total: Counter[str] = Counter()
    for caller in callers:
        total += caller.outcomes
        print(f"{caller.kind}: {dict(caller.outcomes.most_common())}")
    print(f"together {total.total()} requests: {dict(total.most_common())}")
    wrong = faults_of(total)
    print(f"must not be: {wrong or 'none'}; not served at the end: {left or 'none'}; hanging: {alive}")
    return int(bool(wrong or left or alive or not total["right"]))


if __name__ == "__main__":
    sys.exit(main())
