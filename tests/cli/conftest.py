"""A small emulated cluster's configuration, on ports of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.compiler.artifact.profiles import COLUMNS

PROFILES = f"""{",".join(COLUMNS)}
quick,4,4,20,2,2,3,4,6,9
slow,4,4,40,4,5,7,10,16,28
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.csv"
    path.write_text(PROFILES)
    return path


@pytest.fixture
def emulated(profiles: Path, tmp_path: Path) -> Callable[..., Config]:
    """Return a function that makes a configuration; its keywords go into [cluster]."""

    def make(**cluster: Any) -> Config:
        (gateway,) = free_ports(1)
        return read_config(
            {
                "cluster": {
                    "engine": "emulated",
                    "profiles": str(profiles),
                    "copies": 2,
                    "run_dir": str(tmp_path / "run"),
                    "ready_timeout_s": 60.0,
                    **cluster,
                },
                "worker": {"pages": 16},
                "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            },
            "the test",
        )

    return make
