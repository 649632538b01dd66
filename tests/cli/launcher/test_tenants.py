"""Two tenants of a running cluster: one floods it, and the other keeps its share."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from mainspring.cli.configuration.config import read_config, read_tables
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError, OverShare
from mainspring.client.result import InferResult
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.transport.tokens import token_sha256
from tests.gateway.metrics.test_series import parsed
from tests.patience import PATIENCE_S

X = {"data": np.zeros((1, 1000), np.float32)}
PROFILES = f"{','.join(COLUMNS)}\nm,4,4,20,2,20,35,60,110,210\n"
"""A request takes 20 ms of the device alone, and 13 ms in the largest batch: 76 a second at most."""
SECRETS = {name: f"ms_of_{name}_in_a_test" for name in ("mine", "other", "admin")}
SLO_MS = 400.0
CONFIG = """
[cluster]
engine = "emulated"
profiles = "profiles.csv"
run_dir = "{run}"
ready_timeout_s = 60.0
[worker]
pages = 16
[gateway]
address = "tcp://127.0.0.1:{gateway}"
metrics_address = "http://127.0.0.1:{metrics}"
token_file = "tokens.toml"
[tenants]
mine = 2
"""


def tokens() -> str:
    entries = []
    for name, secret in SECRETS.items():
        tenant = "admin = true" if name == "admin" else f'tenant = "{name}"'
        entries.append(
            f'[[token]]\nname = "{name}"\nsha256 = "{token_sha256(secret)}"\nmodels = ["*"]\n{tenant}\n'
        )
    return "".join(entries)


def outcome(future: Future[InferResult]) -> str:
    """Return how a request ended; anything but a reply of either kind fails the test."""
    fault = future.exception(PATIENCE_S)
    if fault is None:
        return "answered"
    assert isinstance(fault, MainspringError)
    if isinstance(fault, OverShare):
        assert "tenant 'other' is ahead of a share of" in str(fault)
        assert fault.retry_after_s is not None
        return "over_share"
    return "refused"


def flooded(address: str) -> dict[str, Counter[str]]:
    """Have one tenant ask for a fifth of the device and the other for four times all of it."""
    with Client(address, token=SECRETS["mine"]) as mine, Client(address, token=SECRETS["other"]) as other:
        sent: dict[str, list[Future[InferResult]]] = {"mine": [], "other": []}
        begun = time.monotonic()
        for turn in range(75):
            sent["mine"].append(mine.submit("m", X, slo_ms=SLO_MS))
            sent["other"] += [other.submit("m", X, slo_ms=SLO_MS) for _ in range(20)]
            time.sleep(max(0.0, begun + turn / 15 - time.monotonic()))
        # What came before it showed that requests are dropped is not part of what is promised.
        return {name: Counter(map(outcome, futures[len(futures) // 3 :])) for name, futures in sent.items()}


def test_who_floods_a_cluster_is_refused_and_the_other_is_served(tmp_path: Path) -> None:
    (tmp_path / "profiles.csv").write_text(PROFILES)
    (tmp_path / "tokens.toml").write_text(tokens())
    gateway, metrics = free_ports(2)
    written = tmp_path / "mainspring.toml"
    written.write_text(CONFIG.format(run=tmp_path / "run", gateway=gateway, metrics=metrics))
    config = read_config(read_tables(written), "the test")
    with LocalCluster(make_plan(config), lambda _: None) as cluster:
        found = flooded(cluster.address)
        assert found["mine"]["over_share"] == 0
        assert found["mine"]["answered"] > 0.8 * found["mine"].total()
        assert found["other"]["over_share"] > 0.3 * found["other"].total()
        assert found["other"]["answered"] > found["mine"].total(), "what is left is the other's"
        with Client(cluster.address, token=SECRETS["admin"]) as operator:
            status = {each.tenant: each for each in operator.status().tenants}
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as reply:
            told = parsed(reply.read().decode())
    assert (status["mine"].weight, status["other"].weight) == (2.0, 1.0)
    assert status["mine"].over_share == 0
    mine = (("tenant", "mine"),)
    assert told["mainspring_tenant_requests_total"][mine] == status["mine"].requests >= 75
    assert told["mainspring_tenant_over_share_total"][(("tenant", "other"),)] >= found["other"]["over_share"]
    assert told["mainspring_tenant_device_seconds_total"][mine] > 0.5
