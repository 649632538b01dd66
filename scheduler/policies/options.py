"""The options of every policy, and how they are read from the configuration.

The structs stand apart from the policies so that those are compiled: modules with structs stay Python.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Literal

import msgspec

from mainspring.messages.choices import did_you_mean, one_of


class NoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a policy that has none."""


class MainspringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `mainspring`."""

    fairness: float = 0.05
    """Factor from 0 to 1 for fairness. No model misses more than 1/fairness times as large a share of its
    requests as all models together, and none is answered less than fairness times as large a share: 0 serves
    the most requests, whichever models they are for; 1 drops the same share of every model's. Unless it is 0,
    models without an answer for long get a turn where that costs little."""
    distributions: bool = True
    """Plan erratic models by how their durations are distributed, instead of by estimates."""

    def __post_init__(self) -> None:
        """Raise ValueError for a number out of its range."""
        if not 0.0 <= self.fairness <= 1.0:
            raise ValueError(f"fairness is {self.fairness}; it must be from 0 to 1")


class FifoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `Fifo`."""

    max_batch_size: int = 0
    """Most rows of a batch; 0: as many as the model's largest size has."""
    preferred_batch_sizes: str = ""
    """Rows of batches that are sent without delay, as ``"4,8"``; "" for the largest size alone."""
    max_queue_delay_ms: float = 0.0
    """Longest time that a request is held for others to fill its batch."""
    queue_timeout_ms: float = 0.0
    """Longest time that a request waits before `timeout_action` is taken; 0: for ever."""
    timeout_share: float = 1.0
    """A request's own time-out, as a share of the time that it can wait for and still be in time in the
    largest batch; the shorter of the two counts. 0: requests have none of their own."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """``reject``, or ``delay``: keep it, behind all that have waited less."""

    def __post_init__(self) -> None:
        """Raise ValueError for what no queue could be run by."""
        for name in ("max_batch_size", "max_queue_delay_ms", "queue_timeout_ms", "timeout_share"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be at least 0, and finite")
        self.preferred()

    def preferred(self) -> tuple[int, ...]:
        """Return the preferred sizes, ascending; raise ValueError if they are not a list of sizes."""
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
    """Options of `Clipper`."""

    batch_limit: Literal["aimd", "quantile", "single"] = "aimd"
    """The way in which the limit is found; ``single`` runs one request at a time."""
    latency_objective_ms: float = 0.0
    """Time that a batch may take; 0: the time that was given to the hastiest of its requests."""
    additive_step: float = 1.0
    """Rows by which ``aimd`` raises a limit."""
    backoff: float = 0.1
    """Share by which it lowers one."""
    quantile_window: int = 200
    """Latest batches that the line of ``quantile`` is laid through."""
    batch_wait_ms: float = 0.0
    """Time for which a batch below its limit is delayed for more requests."""

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
    """Options of `Edf`."""

    skip_heads: bool = False
    """Leave requests out of a batch that a smaller one could still save: larger batches, and more of them in
    time, for the price of those that were due first."""


class ReleaseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `ClockworkRelease`."""

    largest_batch: int = 8
    """Rows of the largest batch that is filled; a request of more rows gets the size that it needs."""
    load_slo_ms: float = 25.0
    """Time since its arrival within which a request counts as demand for a LOAD."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if self.largest_batch < 1:
            raise ValueError(f"largest_batch is {self.largest_batch}; it must be at least 1")
        if not self.load_slo_ms > 0:
            raise ValueError(f"load_slo_ms is {self.load_slo_ms}; it must be greater than 0")


class NexusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `Nexus`."""

    epoch_ms: float = 1000.0
    """Time between two plans. Nexus plans each 30 s or when rates change much; a short epoch is for both."""
    smoothing: float = 0.2
    """Weight of the last epoch's rate against those before, once there are enough of them; 1 is the last
    epoch's alone."""
    headroom: float = 0.1
    """Part by which devices are planned for more than the rates that were measured, if there is room."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if not 1 <= self.epoch_ms <= 3_600_000:
            raise ValueError(f"epoch_ms is {self.epoch_ms}; it must be from 1 to 3600000")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing is {self.smoothing}; it must be greater than 0 and at most 1")
        if not 0 <= self.headroom <= 10:
            raise ValueError(f"headroom is {self.headroom}; it must be from 0 to 10")


class FirstFreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `FirstFree`."""

    kinds: str = ""
    """Kinds of devices in order of preference, as ``"g4dn,c5"``; others come last. Devices of one kind, or of
    none named, are preferred in the order in which they joined."""

    def __post_init__(self) -> None:
        """Raise ValueError for a list that names a kind twice, or an empty one."""
        kinds = self.order()
        if "" in kinds or len({*kinds}) < len(kinds):
            raise ValueError(f"kinds is {self.kinds!r}; it must name each kind once, with commas between")

    def order(self) -> tuple[str, ...]:
        """Return the kinds in order of preference."""
        return tuple(kind.strip() for kind in self.kinds.split(",")) if self.kinds else ()


class SymphonyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `Symphony`."""

    guard_ms: float = 0.1
    """Time before the beginning of its window at which a batch is dispatched, against what varies on its way:
    where the window is an instant, anything later is too late."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if not 0 <= self.guard_ms < 1000:
            raise ValueError(f"guard_ms is {self.guard_ms}; it must be at least 0 and less than 1000")


def read_options(policy: str, struct: type[msgspec.Struct], given: Mapping[str, object]) -> msgspec.Struct:
    """Return the options of a policy; raise ValueError for an unknown key or a value of the wrong type."""
    known = [field.name for field in msgspec.structs.fields(struct)]
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known, f"it has {', '.join(known) or 'none'}")
            raise ValueError(f"policy {policy!r} has no option {key!r}{hint}")
    for name, kind in typing.get_type_hints(struct).items():
        value, words = given.get(name), typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        if words and isinstance(value, str) and value not in words:
            raise ValueError(f"policy {policy!r}: {name} is {value!r}; it is one of {one_of(value, words)}")
    try:
        return msgspec.convert(dict(given), struct)
    except msgspec.ValidationError as error:
        raise ValueError(f"policy {policy!r}: {error}") from None
