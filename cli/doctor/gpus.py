"""This machine's GPUs for the launcher and for ``mainspring doctor``: which there are, and what ails them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mainspring import extras
from mainspring.cli.configuration.config import AUTO, Tables, merged
from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.doctor.machine import Finding
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.worker.engines.cuda.devices import FoundDevice, find_devices
from mainspring.worker.engines.cuda.driver import DriverMissing
from mainspring.worker.engines.cuda.numa import node_of
from mainspring.worker.engines.cuda.nvml import NvmlMissing, read_states
from mainspring.worker.engines.cuda.state import GpuState, Problem, describe, idle_clock, problems

CONTROL_FILE = Path("/dev/nvidiactl")
"""Device file that exists where the kernel has NVIDIA's driver."""


@functools.cache
def usable_gpus() -> tuple[FoundDevice, ...]:
    """Return the GPUs that workers can have; raise `ConfigError`, which says what is missing, if none."""
    try:
        return tuple(find_devices())
    except DriverMissing as error:
        raise ConfigError(f'device = "cuda" needs a GPU: {error}') from None


def with_gpus(tables: Tables) -> dict[str, dict[str, Any]]:
    """Return a cluster's tables, completed if its device is ``cuda``: where they say nothing else, a worker
    for each GPU, all of its memory, and each model's own engine.

    Raises `ConfigError` if there is no GPU.
    """
    if tables.get("cluster", {}).get("device") != CUDA:
        return merged(tables, {})
    defaults: Tables = {"cluster": {"workers": len(usable_gpus()), "engine": AUTO}, "worker": {"pages": 0}}
    return merged(defaults, tables)


def gpu_findings(
    read: Callable[[], Sequence[GpuState]] = read_states, control_file: Path = CONTROL_FILE
) -> list[Finding]:
    """Return findings about this machine's GPUs; nothing where there is none."""
    try:
        states = read()
    except NvmlMissing as error:
        return [_unknown(error)] if control_file.exists() else []
    return [finding for state in states for finding in _about(state)]


def _unknown(error: NvmlMissing) -> Finding:
    return Finding(
        subject="GPUs",
        good=False,
        found=f"NVIDIA's driver is there, and the state of its GPUs is not known: {error}",
        costs="what makes their timing unpredictable is not noticed",
        remedy=f"{extras.command('gpu')}; in a container, start it with --gpus all",
    )


def _about(state: GpuState) -> list[Finding]:
    subject = f"GPU {state.index}"
    if state.silent:
        return [_bad(subject, each) for each in problems(state)]
    node = node_of(state.bus_id)
    near = "" if node is None else f", near memory node {node}"
    found = [Finding(subject=subject, good=True, found=describe(state) + near)]
    found += [_bad(subject, each) for each in (*idle_clock(state), *problems(state))]
    return found


def _bad(subject: str, problem: Problem) -> Finding:
    found, costs, remedy = problem
    return Finding(subject=subject, good=False, found=found, costs=costs, remedy=remedy)
