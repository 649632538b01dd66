"""Ribbon's models on a running cluster of emulated devices, at a size that two cores can drive.

ResNet50 and VGG19 run as they were measured. The other models are slowed to a quarter, so requests come four
times as far apart and the target is four times as long: their batches take 4 to 50 ms, of which a message
between two processes is a large part. Devices take just what their profiles say, without a spread, so that
what is found live differs from an estimate by nothing that is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.bench.serving import cluster_of
from mainspring.experiments.ribbon.data import SHARED, Setting, prices, write_arrivals, write_profiles
from mainspring.planner.problem import Pool
from mainspring.simulator.spec import NetworkSpec, SimulationSpec
from mainspring.simulator.spec_file import Table

SLOWER = 4.0
AS_THEY_ARE = ("resnet", "vgg")
WARM_UP_S = 3.0
PAGES = 16


def slower(setting: Setting) -> float:
    """Return how many times as long everything takes as it was measured."""
    return 1.0 if setting.key in AS_THEY_ARE else SLOWER


def emulated_table(setting: Setting, seconds: float, folder: Path, shared: Path = SHARED) -> Table:
    """Return a spec's table of a model's queries over some seconds, with its files in a folder.

    Nothing is charged for messages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder, times = folder.absolute(), slower(setting)
    trace = folder / f"{setting.key}-{seconds:g}-s.csv"
    queries = round((WARM_UP_S + seconds) * 1e3 / (times * setting.gap_ms))
    end_s = write_arrivals(setting, trace, 0, "artifact", queries=queries, slower=times)
    files, priced = write_profiles(setting, folder, shared, spreads=False), prices(shared)
    return {
        "warm_up_s": WARM_UP_S,
        "duration_s": max(1.0, end_s - WARM_UP_S + 1e-6),
        "objective": {"attainment": 0.99},
        "network": {"delay_us": 0},
        "scheduler": {"policy": "first-free"},
        "devices": [
            {
                "kind": kind,
                "profiles": str(files[kind]),
                "speed": 1 / times,
                "price": priced[kind],
                "most": most,
                "pages": PAGES,
            }
            for kind, most in zip(setting.kinds, setting.most, strict=True)
        ],
        "models": [{"profiles": str(files[setting.kinds[0]])}],
        "workload": [{"kind": "csv", "trace": str(trace), "slo_ms": times * setting.target_ms}],
    }


@contextmanager
def emulated_cluster(spec: SimulationSpec, pool: Pool, run_dir: Path) -> Iterator[LocalCluster]:
    """Run a cluster that begins with a pool of the spec's devices."""
    devices: list[dict[str, Any]] = [
        {
            "kind": group.kind,
            "profiles": group.profiles,
            "speed": group.speed,
            "price": group.price,
            "count": count,
        }
        for group, count in zip(spec.devices, pool, strict=True)
    ]
    profiles = spec.models[0].profiles
    assert profiles is not None
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"devices": devices},
        "worker": {"pages": PAGES},
        "scheduler": {"policy": spec.scheduler.policy},
    }
    with cluster_of(run_dir, Path(profiles), tables) as cluster:
        yield cluster


def with_messages(spec: SimulationSpec, between_us: float, around_us: float) -> SimulationSpec:
    """Return a spec in which a device is idle for this time between two queries, and a client waits for
    ``around_us`` beyond that (`planner.problem`)."""
    delay_us = between_us / 3
    network = NetworkSpec(delay_us=delay_us, client_delay_us=max(0.0, (around_us - delay_us) / 2))
    return msgspec.structs.replace(spec, network=network)
