"""The processes of ``bench.controller``: a controller, or a bare one, its peers, and a console."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.scheduler_load import Setting

MODELS = Setting().models
_MODULE = "mainspring.experiments.bench"


def controller(folder: Path | None, address: str, models: int = MODELS) -> AbstractContextManager[int]:
    """Run a controller of the models, with its event log unless there is no folder; yield its process id."""
    return _served("controller_served", address, str(models), *([] if folder is None else [str(folder)]))


def bare_controller(address: str) -> AbstractContextManager[int]:
    """Run a controller that decides nothing; yield its process id."""
    return _served("controller_bare", address)


@contextlib.contextmanager
def _served(module: str, *arguments: str) -> Iterator[int]:
    """Run a module of the benchmarks until the block ends; yield its process id once it has said a line."""
    command = [sys.executable, "-m", f"{_MODULE}.{module}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def fleet(address: str, rate: float, seconds: float, models: int = MODELS) -> Iterator[subprocess.Popen[str]]:
    """Play the load; yield its process once the workers have joined: its last line says what came of it."""
    command = [sys.executable, "-m", f"{_MODULE}.controller_peers"]
    command += [address, str(rate), str(seconds), str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the fleet did not come up; its words are above")
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def console(address: str) -> Iterator[subprocess.Popen[str]]:
    """Run a console of the controller at an address."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "mainspring", "console", "--controller", address]
    command += ["--address", f"http://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
