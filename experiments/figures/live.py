"""Serves a case through real sockets: controller, gateway and emulated workers on this machine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from mainspring.experiments.figures.case import Case, Observed, Outcomes
from mainspring.telemetry.summary import analyse_log
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.replayer import ReplayConfig, Replayer
from tests.emulated_cluster import cluster_of

SPIN_US = 0
"""Devices that spin before each instant would leave two cores for nothing else."""
IO_BYTES = 32 << 20
STRAGGLER_WAIT_S = 3.0


def serve(case: Case) -> Observed:
    """Start a cluster for the case, play its workload, and stop the cluster."""
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"workers": case.devices, "copies": case.copies, "event_log": case.log},
        "worker": {"pages": case.pages, "spin_us": SPIN_US, "io_bytes": IO_BYTES},
        "scheduler": {"policy": case.policy},
    }
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        folder = Path(name)
        profiles = folder / "profiles.csv"
        profiles.write_text(case.table, encoding="utf-8")
        with cluster_of(folder / "run", profiles, tables) as cluster:
            replayer = Replayer(
                ReplayConfig(address=cluster.address, seed=case.seed, straggler_wait_s=STRAGGLER_WAIT_S)
            )
            try:
                began_s = time.monotonic()
                summary, records = replayer.play(case.workload)
                wall_s = time.monotonic() - began_s
            finally:
                replayer.close()
        warm_ns = summary.start_ns + round(case.warm_up_s * SECOND_NS)
        analysis = analyse_log(folder / "run" / "events", start_ns=warm_ns) if case.log else None
    return Observed(summary, Outcomes(records), analysis, wall_s, None)
