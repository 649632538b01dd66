"""A cluster's own authority, made once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli.authority import Authority
from tests.transport.issuing import CLUSTER, Issue, issuing


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority."""
    folder = tmp_path_factory.mktemp("keys")
    Authority.create(folder, CLUSTER)
    return folder


@pytest.fixture
def issued(authority: Path) -> Issue:
    """What makes the folder of a process."""
    return issuing(authority)
