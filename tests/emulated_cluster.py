"""A local cluster of emulated devices, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.profiles import COLUMNS

BATCH_SIZES = (1, 2, 4, 8, 16)


def write_profile(path: Path, *, input_kb: float, output_kb: float, execute_ms: float) -> Path:
    """Write a table of one model, of one page, whose batches take ``execute_ms`` for each row."""
    row = ("model", input_kb, output_kb, 16, 3, *(execute_ms * size for size in BATCH_SIZES))
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(map(str, row)) + "\n")
    return path


@contextmanager
def cluster_of(
    run_dir: Path, profiles: Path, tables: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[LocalCluster]:
    """Run a cluster of emulated devices on free ports; ``tables`` are further keys of a mainspring.toml."""
    gateway, controller = free_ports(2)
    chosen: dict[str, dict[str, Any]] = {
        "cluster": {"engine": "emulated", "profiles": str(profiles), "run_dir": str(run_dir)},
        "worker": {"pages": 4},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    for name, table in (tables or {}).items():
        chosen.setdefault(name, {}).update(table)
    with LocalCluster(make_plan(read_config(chosen, "this test")), typer.echo) as cluster:
        yield cluster
