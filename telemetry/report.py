"""The report of a run: one format for live and simulated runs, so that they can be compared.

`Summary` is what callers saw; `telemetry.summary` adds what the event log shows. A caller calls at the
instant at which the workload has its request. From there to the moment when the reply is in the caller's
hands is its latency, and what decides whether an answer is in time, whatever the gateway's clock says:
neither a replayer nor a server that falls behind can hide it. Latencies from the real send, and those that
the gateway measured, stand beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

BEHIND_US = 1_000
"""A replayer whose lag is above this at p99 says so: its own lag is then part of the latencies."""


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length: one entry for each second of intended send time."""

    second: list[int]
    offered: list[int]
    goodput: list[int]
    rejected: list[int]
    late: list[int]
    lost: list[int]
    unanswered: list[int]
    not_sent: list[int]
    """Unsent and expired together."""
    p50_ms: list[float | None]
    """Percentiles over the second's answers with outputs; None where there were none."""
    p99_ms: list[float | None]
    max_ms: list[float | None]
    mean_batch: list[float | None]
    cold_starts: list[int]


class Possible(msgspec.Struct, frozen=True):
    """The result that a schedule which knows all arrivals beforehand could have had with a run's requests."""

    requests: int
    """Requests with a deadline, which alone count here."""
    in_time: int
    """Number of these requests that were answered in time."""
    at_most: float
    """Bound on the number of these that any schedule could have answered in time (`simulator.bound`)."""

    @property
    def share(self) -> float:
        """Return what was reached of what was possible; 1 if nothing was possible."""
        return self.in_time / self.at_most if self.at_most else 1.0


class Latencies(msgspec.Struct, frozen=True):
    """Percentiles of outputs' latencies in milliseconds; None without outputs."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class ClassSummary(msgspec.Struct, frozen=True):
    """The outcome of the requests with a deadline, or of those without."""

    offered: int
    goodput: int
    late: int
    rejected: int
    latencies: Latencies

    @property
    def share(self) -> float:
        """Return the part of the offered requests that is goodput; 1 if nothing was offered."""
        return self.goodput / self.offered if self.offered else 1.0


class Summary(msgspec.Struct, frozen=True):
    """The outcome of a run's requests.

    Each is in exactly one of goodput, rejected, late, lost, unanswered, unsent and expired.
    """

    offered: int
    goodput: int
    """Outputs that their caller had by its deadline, and outputs of requests without one."""
    goodput_share: float
    """Goodput as a part of offered; 1 if nothing was offered."""
    rejected: dict[str, int]
    """Requests answered with an error, by `messages.codes.Reason`."""
    rejected_total: int
    late: int
    """Outputs that their caller had later than the SLO after its call."""
    lost: int
    """Requests without any answer though it is overdue and nothing else came any more."""
    unanswered: int
    """Requests without an answer yet when the run ended, though one could still come."""
    unsent: int
    """Requests that no gateway took: there was no link, or the send queue was full."""
    expired: int
    """Requests that were not sent, because the deadline had passed when the replayer came to send them."""
    gateway_late: int
    """Outputs that left the gateway after the deadline by its clock (`Timing.left_ns` below 0)."""
    with_deadline: ClassSummary
    best_effort: ClassSummary
    p50_ms: float | None
    """Latencies of outputs, late ones included, from the intended send to the answer at the caller."""
    p90_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    p99_99_ms: float | None
    max_ms: float | None
    since_sent: Latencies
    """Latencies from the real send, where the above count from the intended one."""
    at_gateway: Latencies
    """Latencies as the gateway measured them, from arrival there to the reply (`Timing.total_ns`)."""
    reject_p50_ms: float | None
    """Median latency of errors, in milliseconds."""
    reject_p99_ms: float | None
    cold_starts: int
    """Outputs of requests whose model was resident nowhere when they arrived."""
    cold_start_share: float
    """Part of the outputs that came after a cold start."""
    mean_batch: float | None
    """Batch size that the average answered request ran in."""
    replayer_lag_p50_us: float
    """Actual send minus intended send."""
    replayer_lag_p99_us: float
    replayer_lag_max_us: float
    duration_s: float
    """Time from the workload's start to its end; to its last intended send where the end is not known."""
    offered_rate: float
    goodput_rate: float
    slo_ms: float | None
    """The largest SLO asked for; None if all were best effort."""
    slos: list[tuple[float, int]]
    """SLOs in milliseconds with their numbers of requests, the most frequent first; 16 at most."""
    models: int
    """Models that got at least one request."""
    start_ns: int
    """The workload's start on the monotonic clock of the machine (or on virtual time)."""
    series: Series
    possible: Possible | None = None
    """Result of a schedule that knows all arrivals; None if it was not computed, or can't be."""
    notes: dict[str, str | int | float | bool | None] = {}
    """Facts about what was run: workload, seed, cost of the replayer; free-form."""

    @property
    def missing(self) -> int:
        """Return how many requests have no reply, for whatever reason."""
        return self.lost + self.unanswered + self.unsent + self.expired

    @property
    def fell_behind(self) -> bool:
        """Return whether the replayer kept its schedule so badly that latencies show it."""
        return self.replayer_lag_p99_us > BEHIND_US

    def whose_latencies(self) -> str:
        """Return whose the latencies are where the replayer fell behind; nothing where it did not."""
        if not self.fell_behind:
            return ""
        return (
            f"The replayer fell behind its schedule, by {_ms(self.replayer_lag_p99_us / 1e3)} at p99:"
            " goodput, late and latencies include its own delay and do not describe the cluster."
            " From the real send until the replayer read them, answers took"
            f" p50 {_ms(self.since_sent.p50_ms)}, p99 {_ms(self.since_sent.p99_ms)}; by the gateway's clock"
            f" p50 {_ms(self.at_gateway.p50_ms)}, p99 {_ms(self.at_gateway.p99_ms)}."
        )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


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
        raise ValueError(f"{path}: is not a report of a run: {error}") from error


def flat(*structs: msgspec.Struct) -> dict[str, Any]:
    """Join the fields of several structs into one dict; raises ValueError for a name in two of them."""
    joined: dict[str, Any] = {}
    for struct in structs:
        fields = msgspec.to_builtins(struct)
        if twice := joined.keys() & fields.keys():
            raise ValueError(f"fields {sorted(twice)} are in more than one part of the report")
        joined |= fields
    return joined
