"""The cluster's activity in each second of a run."""

from __future__ import annotations

import msgspec


class LogSeries(msgspec.Struct, frozen=True):
    """Columns of equal length, one entry for each second; None while no worker was there."""

    start_ns: int
    """The controller's clock at second 0."""
    second: list[int]
    exec_utilisation: list[float | None]
    load_utilisation: list[float | None]
    page_occupancy: list[float | None]
    """Share of all pages that held weights at the end of the second."""
    loads: list[int]
