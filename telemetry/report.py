"""The report of a run: one format for live and simulated runs, so that they can be compared.

`Summary` is what clients saw; `telemetry.summary` adds what the event log tells. The words are those of
design.md, section 7. A latency is measured from the instant at which the request was *meant* to be sent,
so that a replayer or server that falls behind cannot hide it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length: one entry for each second of intended send time."""

    second: list[int]
    offered: list[int]
    goodput: list[int]
    rejected: list[int]
    late: list[int]
    lost: list[int]
    p50_ms: list[float | None]
    """Percentiles over the second's answers with outputs; None where there were none."""
    p99_ms: list[float | None]
    max_ms: list[float | None]
    mean_batch: list[float | None]
    cold_starts: list[int]


class Possible(msgspec.Struct, frozen=True):
    """What a schedule that knows all arrivals beforehand could have done with a run's requests."""

    requests: int
    """Requests with a deadline, which alone count here."""
    in_time: int
    """Of these, how many were answered in time."""
    at_most: float
    """Of these, more than which no schedule could have answered in time (`simulator.bound`)."""

    @property
    def share(self) -> float:
        """Return what was reached of what was possible; 1 if nothing was possible."""
        return self.in_time / self.at_most if self.at_most else 1.0


class Summary(msgspec.Struct, frozen=True):
    """What became of a run's requests; each is in exactly one of goodput, rejected, late, lost and unsent."""

    offered: int
    goodput: int
    """Outputs that left the gateway inside their deadline, and outputs of requests without one."""
    goodput_share: float
    """Of offered; 1 if nothing was offered."""
    rejected: dict[str, int]
    """Requests answered with an error, by `messages.codes.Reason`."""
    rejected_total: int
    late: int
    """Outputs that left the gateway after their deadline (`Timing.left_ns` below 0)."""
    lost: int
    """Requests without any answer when the run ended, however long they were waited for."""
    unsent: int
    """Requests that no gateway took: there was no link, or the send queue was full."""
    client_late: int
    """Outputs at the client later than the SLO after the intended send: network and lag included."""
    p50_ms: float | None
    """Latencies of outputs, late ones included, from the intended send to the answer at the client."""
    p90_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    p99_99_ms: float | None
    max_ms: float | None
    reject_p50_ms: float | None
    """How long errors took."""
    reject_p99_ms: float | None
    cold_starts: int
    """Outputs of requests whose model was resident nowhere when they arrived."""
    cold_start_share: float
    """Of outputs."""
    mean_batch: float | None
    """Batch size that the average answered request ran in."""
    replayer_lag_p50_us: float
    """Actual send minus intended send."""
    replayer_lag_p99_us: float
    replayer_lag_max_us: float
    duration_s: float
    """From the start of the workload to its end; to its last intended send where the end is not known."""
    offered_rate: float
    goodput_rate: float
    slo_ms: float | None
    """The largest SLO asked for; None if all were best effort."""
    models: int
    """Models that got at least one request."""
    start_ns: int
    """The workload's start on the monotonic clock of the machine (or on virtual time)."""
    series: Series
    possible: Possible | None = None
    """None if it was not computed, or can't be."""
    notes: dict[str, str | int | float | bool | None] = {}
    """What was run: workload, seed, cost of the replayer; free-form."""


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON; a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_summary(path: Path) -> Summary:
    """Read what `write_json` wrote of a `Summary`; more fields beside it are ignored.

    Raises ValueError naming the file if it is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: is no report of a run: {error}") from error


def flat(*structs: msgspec.Struct) -> dict[str, Any]:
    """Join the fields of several structs into one dict; raises ValueError for a name in two of them."""
    joined: dict[str, Any] = {}
    for struct in structs:
        fields = msgspec.to_builtins(struct)
        if twice := joined.keys() & fields.keys():
            raise ValueError(f"fields {sorted(twice)} are in more than one part of the report")
        joined |= fields
    return joined
