"""Instructions of the compiled scheduler for a request: a figure that no neighbour's load moves.

``make bench-instructions`` plays the request mix of `bench_scheduler` under Valgrind (Debian's package
``valgrind``), for a time and for half of it, and counts what runs within `Scheduler.handle` and
`Scheduler.schedule` alone; the difference is what the requests of the second half take. Two commits are
compared by running it in a checkout of each.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.experiments.bench.report import Figure, publish
from mainspring.experiments.bench_scheduler import DEVICE_RATE
from mainspring.experiments.scheduler_load import Setting, record
from mainspring.messages.events import RequestArrived
from mainspring.scheduler import core

OUTPUT = Path("out/bench")
COUNTED = ("CPyPy_core___Scheduler___handle", "CPyPy_core___Scheduler___schedule")
_COLLECTED = re.compile(r"Collected : (\d+)")
_REQUESTS = re.compile(r"requests: (\d+)")


def played(setting: Setting) -> int:
    """Record a setting, which plays it once; return the number of its requests."""
    return sum(isinstance(event, RequestArrived) for _, event, _ in record(setting).turns)


def for_a_request(setting: Setting) -> float:
    """Return the instructions for a request; raise RuntimeError if they can't be counted."""
    half_as_long = msgspec.structs.replace(setting, seconds=setting.seconds / 2)
    (whole, all_requests), (half, fewer) = count(setting), count(half_as_long)
    return (whole - half) / (all_requests - fewer)


def count(setting: Setting) -> tuple[int, int]:
    """Return the instructions of a whole play and its requests; raise RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--collect-atstart=no"),
            *(f"--toggle-collect={name}" for name in COUNTED),
            *(sys.executable, "-m", "mainspring.experiments.bench.instructions"),
            *("--policy", setting.policy, "--models", str(setting.models), "--within"),
            *("--devices", str(setting.devices), "--seconds", str(setting.seconds)),
            *(["--everywhere"] if setting.everywhere else []),
        ]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    collected, requests = _COLLECTED.search(done.stderr), _REQUESTS.search(done.stdout)
    if done.returncode or collected is None or requests is None:
        raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr[-500:]}")
    return int(collected[1]), int(requests[1])


def main(
    policy: Annotated[str, typer.Option(help="One policy; the default one and clockwork by default.")] = "",
    models: Annotated[int, typer.Option(min=1)] = 1_000,
    devices: Annotated[int, typer.Option(min=1)] = 12,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Every model is on every device, 200 requests/s for each.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.05, help="Virtual seconds of the longer play.")] = 2.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
    within: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Count, print a table, write it as JSON."""
    rate = DEVICE_RATE * devices if everywhere else Setting().rate
    setting = Setting(models=models, devices=devices, rate=rate, seconds=seconds, everywhere=everywhere)
    if within:
        gc.disable()
        print(f"requests: {played(msgspec.structs.replace(setting, policy=policy))}")
        return
    if core.__file__.endswith(".py"):
        sys.exit("bench-instructions: the scheduler is not compiled: make native")
    if shutil.which("valgrind") is None:
        sys.exit("bench-instructions: valgrind is not installed: apt-get install valgrind")
    chosen = [policy] if policy else [Setting().policy, "clockwork"]
    figures = [
        Figure(
            f"{name}: instructions a request",
            round(for_a_request(msgspec.structs.replace(setting, policy=name))),
            "",
        )
        for name in chosen
    ]
    title = f"The scheduler alone, {models:,} models on {devices} devices{', each on all' * everywhere}"
    publish("instructions", title, figures, output)


if __name__ == "__main__":
    typer.run(main)
