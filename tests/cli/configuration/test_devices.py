"""What follows from a cluster's groups of devices."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.cli.configuration.config import read_config

GROUPS = [{"kind": "fast", "count": 1}, {"kind": "cheap", "count": 0}]


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ({"policy": "first-free"}, {"kinds": "fast,cheap"}),
        ({"policy": "first-free", "policy_options": {"kinds": "cheap"}}, {"kinds": "cheap"}),
        ({"policy": "edf"}, {}),
    ],
)
def test_first_free_prefers_groups_in_their_order(scheduler: dict[str, Any], options: dict[str, str]) -> None:
    cluster = {"engine": "emulated", "profiles": "table.csv", "devices": GROUPS}
    found = read_config({"cluster": cluster, "scheduler": scheduler}, "this test")
    assert found.scheduler.policy_options == options
    assert found.cluster.workers == 1
