"""Two controllers of three emulated devices each, at half load: models and a device move, and nobody notices.

``python -m mainspring.experiments.shards_moved``. A cluster of real processes is asked at a steady rate for
all of its models. In the midst of it ``mainspring balance`` moves a device and then ``--models`` models from
shard 0 to shard 1. What became of every request is counted before, while and after that happens.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.main import build_app
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.client.result import InferResult
from mainspring.compiler.artifact.profiles import COLUMNS

INFER_MS = 40.0
LOAD_MS = 5.0
DEVICES = 6
COPIES = 240
REPLY_S = 30.0


class Load:
    """Asks for all models in turn, at a steady rate, from a thread of its own."""

    def __init__(self, address: str, rate: float, slo_ms: float) -> None:
        self._address, self._pause_s, self._slo_ms = address, 1 / rate, slo_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.phase = "before"
        self.sent: list[tuple[str, Future[InferResult]]] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        inputs = {"data": np.zeros((1, 1000), np.float32)}
        with Client(self._address) as client:
            number, due_s = 0, time.monotonic()
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                name = f"net-{number % COPIES + 1}"
                self.sent.append((self.phase, client.submit(name, inputs, slo_ms=self._slo_ms)))
                number, due_s = number + 1, due_s + self._pause_s
            for _, future in self.sent:
                future.exception(REPLY_S)

    def counted(self) -> dict[str, Counter[str]]:
        """Return how the requests of each phase ended: ``in time``, or the error's name."""
        found: dict[str, Counter[str]] = {}
        for phase, future in self.sent:
            error = future.exception() if future.done() else None
            ended = "no reply" if not future.done() else "in time" if error is None else _name(error)
            found.setdefault(phase, Counter())[ended] += 1
        return found


def _name(error: BaseException) -> str:
    return str(error.reason.value) if isinstance(error, MainspringError) and error.reason else repr(error)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run from a command line, print what was found, and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, default=100, help="that move, the busiest first")
    parser.add_argument("--load", type=float, default=0.5, help="of what the devices can do, one by one")
    parser.add_argument("--slo-ms", type=float, default=1_000.0)
    parser.add_argument("--steady-s", type=float, default=10.0, help="before, and after")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mainspring-shards-") as folder:
        return _run(Path(folder), options)


def _run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    profiles = folder / "profiles.csv"
    durations = ",".join(f"{INFER_MS * factor:g}" for factor in (1, 1.6, 2.6, 4.4, 8))
    profiles.write_text(f"{','.join(COLUMNS)}\nnet,4,4,40,{LOAD_MS:g},{durations}\n")
    (port,) = free_ports(1)
    config = read_config(
        {
            "cluster": {
                **{"engine": "emulated", "profiles": str(profiles), "copies": COPIES, "workers": DEVICES},
                "run_dir": str(folder / "run"),
            },
            "shards": {"count": 2},
            "worker": {"pages": 3 * COPIES},
            "gateway": {"address": f"tcp://127.0.0.1:{port}"},
        },
        "the experiment",
    )
    plan = make_plan(config)
    rate = options.load * DEVICES * 1e3 / INFER_MS
    balance = ["balance", "--controller", str(plan.run_dir)]
    with LocalCluster(plan, print) as cluster, Client(cluster.address) as client:
        before = client.status()
        with Load(cluster.address, rate, options.slo_ms) as load:
            time.sleep(options.steady_s)
            load.phase, began_s = "while", time.monotonic()
            moved = [*balance, "--worker", "worker-0", "--to", "1"]
            build_app()(moved, standalone_mode=False)
            worker_s = time.monotonic() - began_s
            moved = [*balance, "--models", str(options.models), "--from", "0", "--to", "1"]
            build_app()(moved, standalone_mode=False)
            models_s = time.monotonic() - began_s - worker_s
            load.phase = "after"
            time.sleep(options.steady_s)
        after = client.status()
    ended = load.counted()
    found = {
        "ended": ended,
        "shards": [[(each.workers, each.models) for each in status.shards] for status in (before, after)],
    }
    print(f"{rate:.0f} requests/s; the device moved in {worker_s:.1f} s, the models in {models_s:.1f} s")
    print(f"workers and models of each shard, before and after: {found['shards']}")
    for phase, counts in ended.items():
        print(f"{phase:7} {dict(counts)}")
    return found


if __name__ == "__main__":
    main()
