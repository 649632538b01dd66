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


FROM_FILE = (Kind.AZURE2019, Kind.AZURE2021)
"""What is read from a file and not generated."""
