"""Takes the leader of a cluster with standby controllers away, again and again, under load.

``python -m mainspring.experiments.failover`` starts emulated workers, a gateway and two controllers, asks for
half of what the workers can do, each request with an SLO, and kills the leader, stops it (SIGSTOP), or has it
hand over (SIGTERM). It prints the longest time without an answer around each, and how many requests were not
answered in time; with ``--check`` it fails beyond the bars.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mainspring.cli.configuration.config import ClusterConfig, Config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.controller.config import ControllerConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.worker.config import WorkerConfig
from tests.leaders import Leaders

BARS_S = {"kill": 0.5, "stop": 1.5, "hand over": 0.1}
"""Longest time without an answer, in seconds, by what happens to the leader."""
MODEL = "quick,4,4,20,2,2,3,4,6,9\n"
"""An emulated model whose inference takes 2 ms."""
PATIENCE_S = 60.0


class Answer(NamedTuple):
    """The end of one request."""

    asked_s: float
    ended_s: float
    fault: str
    """Reason why it has no outputs in time; empty if it has."""


class Load:
    """Asks for inference at even intervals."""

    def __init__(self, client: Client, models: list[str], rate: float, slo_ms: float) -> None:
        self.answers: list[Answer] = []
        self._client, self._models, self._rate, self._slo_ms = client, models, rate, slo_ms
        self._ends = threading.Event()
        self._asked = 0
        self._inputs = {"data": np.zeros((1, 1000), np.float32)}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Ask no more, and wait for the answers."""
        self._ends.set()
        self._thread.join()
        until_s = time.monotonic() + PATIENCE_S
        while len(self.answers) < self._asked and time.monotonic() < until_s:
            time.sleep(0.01)

    @property
    def lost(self) -> int:
        """Return how many requests have no answer."""
        return self._asked - len(self.answers)

    def _run(self) -> None:
        begin_s = time.monotonic()
        while not self._ends.is_set():
            time.sleep(max(0.0, begin_s + self._asked / self._rate - time.monotonic()))
            self._ask(self._models[self._asked % len(self._models)])
            self._asked += 1

    def _ask(self, model: str) -> None:
        asked_s = time.monotonic()

        def ended(future: object) -> None:
            fault = ""
            try:
                future.result()  # type: ignore[attr-defined]
            except MainspringError as error:
                fault = str(error)
            ended_s = time.monotonic()
            if not fault and (ended_s - asked_s) * 1e3 > self._slo_ms:
                fault = f"late: {(ended_s - asked_s) * 1e3:.0f} ms"
            self.answers.append(Answer(asked_s, ended_s, fault))

        try:
            self._client.submit(model, self._inputs, slo_ms=self._slo_ms).add_done_callback(ended)
        except MainspringError as error:
            self.answers.append(Answer(asked_s, time.monotonic(), str(error)))


class Outcome(NamedTuple):
    """The cost of one leader's end."""

    event: str
    gap_s: float
    """Longest time without an answer."""
    asked: int
    faults: list[str]


def play(
    config: Config, models: list[str], events: list[str], pause_s: float, rate: float, slo_ms: float
) -> list[Outcome]:
    """Run a cluster and take its leader away for each event; return what each cost."""
    plan, outcomes = make_plan(config), []
    with LocalCluster(plan, print) as cluster, Client(cluster.address) as client:
        leaders = Leaders(plan, cluster)
        for event in events:
            wait(lambda: len(client.status().workers) == config.cluster.workers)
            wait(leaders.all_there)
            time.sleep(pause_s / 2)
            load = Load(client, models, rate, slo_ms)
            time.sleep(pause_s / 4)
            before, _ = leaders.leader()
            at_s = time.monotonic()
            pid = leaders.end(event)
            wait(lambda before=before: leaders.leader()[0] > before)  # type: ignore[misc]
            time.sleep(pause_s / 2)
            load.end()
            if event == "stop":
                os.kill(pid, signal.SIGCONT)
            outcomes.append(outcome(event, at_s, load))
            print(told(outcomes[-1]), flush=True)
    return outcomes


def outcome(event: str, at_s: float, load: Load) -> Outcome:
    """Return what an event at an instant cost."""
    ends = sorted(answer.ended_s for answer in load.answers if not answer.fault)
    ends.append(max(answer.asked_s for answer in load.answers))
    gaps = [later - sooner for sooner, later in itertools.pairwise(ends) if later >= at_s]
    faults = [answer.fault for answer in load.answers if answer.fault] + ["no answer"] * load.lost
    return Outcome(event, max(gaps, default=PATIENCE_S), len(load.answers) + load.lost, faults)


def told(found: Outcome) -> str:
    """Return an outcome as a line."""
    faults = f"; for example: {found.faults[0]}" if found.faults else ""
    return (
        f"{found.event}: {found.gap_s * 1e3:.0f} ms without an answer, {len(found.faults)} of {found.asked} "
        f"requests not answered in time{faults}"
    )


def wait(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit("waited in vain")
        time.sleep(0.01)


def main() -> int:
    """Play the events, and return 1 if ``--check`` is given and a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that each thing happens")
    parser.add_argument("--pause", type=float, default=6.0, help="seconds for each")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--slo-ms", type=float, default=2000.0)
    parser.add_argument("--events", default=",".join(BARS_S))
    parser.add_argument("--run-dir", help="folder for logs, which stays")
    parser.add_argument("--lease", default="", help="place of the lease, such as etcd://127.0.0.1:2379")
    parser.add_argument("--check", action="store_true", help="fail beyond the bars")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profiles = Path(folder, "profiles.csv")
        profiles.write_text(",".join(COLUMNS) + "\n" + MODEL)
        config = Config(
            cluster=ClusterConfig(
                workers=2,
                controllers=2,
                log_level="DEBUG" if arguments.run_dir else "WARNING",
                engine="emulated",
                profiles=str(profiles),
                copies=4,
                run_dir=arguments.run_dir or f"{folder}/run",
            ),
            controller=ControllerConfig(lease=arguments.lease),
            gateway=GatewayConfig(address=f"tcp://127.0.0.1:{free_ports(1)[0]}"),
            worker=WorkerConfig(name="worker", pages=16, realtime=False),
        )
        models = [f"quick-{number + 1}" for number in range(4)]
        events = [each for _ in range(arguments.rounds) for each in arguments.events.split(",")]
        found = play(config, models, events, arguments.pause, arguments.rate, arguments.slo_ms)
    failed = False
    for event in dict.fromkeys(events):
        gaps = [each.gap_s for each in found if each.event == event]
        faults = sum(len(each.faults) for each in found if each.event == event)
        failed = failed or max(gaps) > BARS_S[event] or faults > 0
        print(
            f"{event}: longest {max(gaps) * 1e3:.0f} ms (bar {BARS_S[event] * 1e3:.0f}), {faults} not in time"
        )
    return 1 if failed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
