"""What may be set of `fifo`, `clipper` and `edf`: structs apart, so that the policies can be compiled."""

from __future__ import annotations

from typing import Literal

import msgspec


class FifoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Fifo`."""

    max_batch_size: int = 0
    """Most rows of a batch; 0: as many as the model's largest size has."""
    preferred_batch_sizes: str = ""
    """Rows of batches that are sent without delay, as ``"4,8"``; "" for the largest size alone."""
    max_queue_delay_ms: float = 0.0
    """How long a request may be held for others to fill its batch."""
    queue_timeout_ms: float = 0.0
    """How long a request may wait before `timeout_action` is taken; 0: for ever."""
    timeout_share: float = 1.0
    """A request's own time-out, as a share of the time that it can wait for and still be in time in the
    largest batch; the shorter of the two counts. 0: requests have none of their own."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """``reject``, or ``delay``: keep it, behind all that have not waited so long."""

    def __post_init__(self) -> None:
        """Raise ValueError for what no queue could be run by."""
        for name in ("max_batch_size", "max_queue_delay_ms", "queue_timeout_ms", "timeout_share"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be at least 0, and finite")
        self.preferred()

    def preferred(self) -> tuple[int, ...]:
        """Return the preferred sizes, ascending; raise ValueError if they are no list of sizes."""
        texts = [text.strip() for text in self.preferred_batch_sizes.split(",")]
        if texts == [""]:
            return ()
        if not all(text.isdecimal() and int(text) > 0 for text in texts):
            raise ValueError(
                f"preferred_batch_sizes is {self.preferred_batch_sizes!r}; "
                f"it must be whole numbers greater than 0 with commas between them, as '4,8'"
            )
        return tuple(sorted({int(text) for text in texts}))


class ClipperOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Clipper`."""

    batch_limit: Literal["aimd", "quantile", "single"] = "aimd"
    """How the limit is found; ``single`` is no batching."""
    latency_objective_ms: float = 0.0
    """How long a batch may take; 0: the time that was given to the hastiest of its requests."""
    additive_step: float = 1.0
    """Rows by which ``aimd`` raises a limit."""
    backoff: float = 0.1
    """Share by which it lowers one."""
    quantile_window: int = 200
    """Latest batches that the line of ``quantile`` is laid through."""
    batch_wait_ms: float = 0.0
    """How long a batch below its limit is delayed for more requests."""

    def __post_init__(self) -> None:
        """Raise ValueError for what no limit could be found by."""
        for name, least in (("latency_objective_ms", 0.0), ("batch_wait_ms", 0.0)):
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be at least 0, and finite")
        if not 0 < self.additive_step < float("inf"):
            raise ValueError(f"additive_step is {self.additive_step}; it must be greater than 0, and finite")
        if not 0 < self.backoff < 1:
            raise ValueError(f"backoff is {self.backoff}; it must be between 0 and 1")
        if self.quantile_window < 2:
            raise ValueError(f"quantile_window is {self.quantile_window}; a line takes 2 batches at least")


class EdfOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Edf`."""

    skip_heads: bool = False
    """Leave requests out of a batch that a smaller one could still save: larger batches, and more of them in
    time, for the price of those that were due first."""
