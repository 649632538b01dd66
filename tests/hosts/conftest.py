"""Hosts and clusters; all of these tests are skipped, with the reason, where hosts can't be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import profiles
from tests.hosts.cluster import Cluster
from tests.hosts.network import Network, lacking

__all__ = ["profiles"]


@pytest.fixture
def network() -> Iterator[Network]:
    """Return a network without hosts."""
    if why := lacking():
        pytest.skip(f"no hosts of a test's own: {why}")
    made = Network()
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, profiles: Path) -> Callable[..., Cluster]:
    """Return a function that makes a cluster without processes, in a folder of its own.

    Its arguments are the controller's options that say which models; by default those of a table.
    """
    made = 0

    def make(*models: str) -> Cluster:
        nonlocal made
        made += 1
        folder = tmp_path / f"cluster-{made}"
        folder.mkdir()
        options = models or ("--profiles", str(profiles), "--copies", "2")
        return Cluster(folder, *options, number=made)

    return make
