"""The base of all workloads: an arrival, of which each is a stream, their kinds, and the error of a bad one.

Imports little, for the help of the command line.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

SECOND_NS = 1_000_000_000


class WorkloadError(ValueError):
    """A workload is described wrongly; the text says what would be right."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One request that a client means to send."""

    time_ns: int
    """Time from the start of the workload."""
    model: str
    rows: int = 1
    slo_ns: int | None = None
    """Time to the deadline; None for best effort."""
    client: int = -1
    """Number of the closed-loop client that waits for the answer; -1 in an open loop."""
    sizes: tuple[int, ...] = ()
    """Size of each of the model's symbols, if it has any."""
    retry_ns: int = 0
    """Time that its client waits after a refusal before it asks once more, with what is left of the time to
    the deadline; 0 if it does not."""
    priority: int = 0
    """Same as `RequestArrived.priority`. Only heeded in simulations."""
    tenant: str = ""
    """Same as `RequestArrived.tenant`. Only heeded in simulations; live a token names it."""


class Kind(StrEnum):
    """The workloads by name."""

    AZURE2019 = "azure2019"
    AZURE2021 = "azure2021"
    POISSON = "poisson"
    GAMMA = "gamma"
    SYNTHETIC = "synthetic"
    CLOSED = "closed"
    CSV = "csv"


FROM_FILE = (Kind.AZURE2019, Kind.AZURE2021, Kind.CSV)
"""The workloads that are read from a file; the others are generated."""
