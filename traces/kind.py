"""The names of the workloads; imports nothing heavy, for the command line's help."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Which workload."""

    AZURE2019 = "azure2019"
    AZURE2021 = "azure2021"
    POISSON = "poisson"
    GAMMA = "gamma"
    SYNTHETIC = "synthetic"
    CLOSED = "closed"
