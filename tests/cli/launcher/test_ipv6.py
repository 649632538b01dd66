"""A whole cluster at addresses of IPv6: between its processes, and by each way in."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client import connection
from mainspring.client.client import Client
from tests.patience import PATIENCE_S

INPUT = {"data": np.zeros((1, 1000), np.float32)}


def has_ipv6() -> bool:
    """Say whether this machine has a loopback address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_cluster_at_addresses_of_ipv6_serves_by_every_way(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, controller, http, calls, metrics, console = free_ports(6)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "engine": "emulated",
            "profiles": str(profiles),
            "run_dir": str(tmp_path),
            "console": True,
        },
        "controller": {"address": f"tcp://[::1]:{controller}"},
        "gateway": {
            "address": f"tcp://[::1]:{clients}",
            "http_address": f"http://[::1]:{http}",
            "grpc_address": f"grpc://[::1]:{calls}",
            "metrics_address": f"http://[::1]:{metrics}",
        },
        "console": {"address": f"http://[::1]:{console}"},
        "worker": {"pages": 16, "data_address": "tcp://[::1]:*"},
    }
    with LocalCluster(make_plan(read_config(tables, "the test")), print) as cluster:
        assert cluster.address == f"tcp://[::1]:{clients}"
        for local in (True, False):
            if not local:
                monkeypatch.setattr(connection, "local_transport", lambda *_: None)
            with Client(cluster.address, connect_timeout_s=PATIENCE_S) as client:
                assert "output" in client.infer("quick", INPUT, slo_ms=PATIENCE_S * 1e3)
        for page in (f"http://[::1]:{http}/v2/health/ready", f"http://[::1]:{console}/"):
            with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        with urllib.request.urlopen(f"http://[::1]:{metrics}/metrics", timeout=PATIENCE_S) as answer:
            assert b"mainspring_worker_clock_error_seconds" in answer.read()
        with grpc.insecure_channel(f"[::1]:{calls}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
