"""Where a request's time went, by the gateway's clock and by the caller's."""

from __future__ import annotations

from mainspring.messages import clients


class Timing(clients.Timing, frozen=True):
    """What the gateway says of a request, and what the caller saw of it."""

    elapsed_ns: int = 0
    """From the call of `infer` or `submit` to its result, on the caller's clock: what an SLO is about."""
    slo_ns: int | None = None
    """The SLO that the caller gave; None for best effort."""

    @property
    def late(self) -> bool:
        """Whether the outputs came after the SLO, on the caller's clock; never for best effort."""
        return self.slo_ns is not None and self.elapsed_ns > self.slo_ns

    @property
    def elapsed_ms(self) -> float:
        """``elapsed_ns`` in milliseconds."""
        return self.elapsed_ns / 1e6

    @property
    def total_ms(self) -> float:
        """``total_ns`` in milliseconds: the gateway's part of ``elapsed_ms``."""
        return self.total_ns / 1e6

    @property
    def queue_ms(self) -> float:
        """``queue_ns`` in milliseconds."""
        return self.queue_ns / 1e6

    @property
    def execute_ms(self) -> float:
        """``execute_ns`` in milliseconds."""
        return self.execute_ns / 1e6

    @property
    def left_ms(self) -> float | None:
        """``left_ns`` in milliseconds; None for best effort."""
        return None if self.left_ns is None else self.left_ns / 1e6


def seen_by_caller(timing: clients.Timing, elapsed_ns: int, slo_ns: int | None) -> Timing:
    """Return what the gateway said with what the caller saw."""
    return Timing(
        total_ns=timing.total_ns,
        queue_ns=timing.queue_ns,
        execute_ns=timing.execute_ns,
        left_ns=timing.left_ns,
        batch_size=timing.batch_size,
        cold_start=timing.cold_start,
        worker=timing.worker,
        cached=timing.cached,
        elapsed_ns=elapsed_ns,
        slo_ns=slo_ns,
    )
