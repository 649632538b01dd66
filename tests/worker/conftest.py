"""The clusters of the worker's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mainspring.worker.config import MIB, WorkerConfig
from tests.worker.peers import Cluster


@pytest.fixture
def start() -> Iterator[Callable[..., Cluster]]:
    """Start emulated workers named ``w``; fields of `WorkerConfig` may be given. Stopped at the end."""
    clusters: list[Cluster] = []

    def begin(*, welcome: bool = True, **fields: object) -> Cluster:
        given: dict[str, object] = {
            "name": "w",
            "engine": "emulated",
            "pages": 8,
            "io_bytes": MIB,
            "realtime": False,
            "controller_silence_ms": 60_000,
        }
        given |= fields
        clusters.append(Cluster(WorkerConfig(**given), welcome=welcome))  # type: ignore[arg-type]
        return clusters[-1]

    yield begin
    for cluster in clusters:
        cluster.close()
