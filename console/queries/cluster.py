"""Query ``cluster``: attainment, series, workers."""

from __future__ import annotations

from mainspring.console.payloads import Cluster
from mainspring.console.view.view import View


def cluster(view: View, *, recent: int = 50) -> Cluster:
    """Return the cluster with at most ``recent`` rejected and late requests."""
    raise NotImplementedError
