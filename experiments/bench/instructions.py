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
from mainspring.experiments.scheduler_load import Setting, record
from mainspring.messages.events import RequestArrived
from mainspring.scheduler import core

OUTPUT = Path("out/bench")
COUNTED = ("CPyPy_core___Scheduler___handle", "CPyPy_core___Scheduler___schedule")
_COLLECTED = re.compile(r"Collected : (\d+)")
_REQUESTS = re.compile(r"requests: (\d+)")


def played(policy: str, models: int, seconds: float) -> int:
    """Record a setting, which plays it once; return the number of its requests."""
    recording = record(msgspec.structs.replace(Setting(), policy=policy, models=models, seconds=seconds))
    return sum(isinstance(event, RequestArrived) for _, event, _ in recording.turns)


def for_a_request(policy: str, models: int, seconds: float) -> float:
    """Return the instructions for a request; raise RuntimeError if they can't be counted."""
    (whole, all_requests), (half, fewer) = (count(policy, models, each) for each in (seconds, seconds / 2))
    return (whole - half) / (all_requests - fewer)


def count(policy: str, models: int, seconds: float) -> tuple[int, int]:
    """Return the instructions of a whole play and its requests; raise RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--collect-atstart=no"),
            *(f"--toggle-collect={name}" for name in COUNTED),
            *(sys.executable, "-m", "mainspring.experiments.bench.instructions"),
            *("--policy", policy, "--models", str(models), "--seconds", str(seconds), "--within"),
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
    seconds: Annotated[float, typer.Option(min=0.05, help="Virtual seconds of the longer play.")] = 2.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
    within: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Count, print a table, write it as JSON."""
    if within:
        gc.disable()
        print(f"requests: {played(policy, models, seconds)}")
        return
    if core.__file__.endswith(".py"):
        sys.exit("bench-instructions: the scheduler is not compiled: make native")
    if shutil.which("valgrind") is None:
        sys.exit("bench-instructions: valgrind is not installed: apt-get install valgrind")
    chosen = [policy] if policy else [Setting().policy, "clockwork"]
    figures = [
        Figure(f"{name}: instructions a request", round(for_a_request(name, models, seconds)), "")
        for name in chosen
    ]
    publish("instructions", f"The scheduler alone, {models:,} models on 12 devices", figures, output)


if __name__ == "__main__":
    typer.run(main)
