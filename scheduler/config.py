"""The scheduler's configuration: one flat struct, every field with its unit."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from mainspring.cluster.rolling import HIGHEST_RANK, RANK
from mainspring.messages.operating import LEAST_WEIGHT, MOST_WEIGHT, weight_fault
from mainspring.messages.tables import ConfigError

LOOKAHEAD_MS = 5.0
"""Clockwork, appendix B."""

MOST = 1e11
"""The most that any number here may be: in milliseconds, three years."""
LEAST_MS = 1e-3
"""The least of a duration that is not 0."""
TENANTS = "tenants"
"""Table of the tenants' weights, by name: what it says stands in the scheduler's configuration."""
_WEIGHTS = f"a tenant's weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,g}"
MAY_BE_ZERO = (
    "lookahead_ms",
    "dispatch_delay_ms",
    "response_margin_ms",
    "action_window_ms",
    "load_window_ms",
    "idle_load_protect_ms",
    "open_patience_ms",
    "open_within_ms",
    "refuse_wrongly",
    "best_effort_share",
    "best_effort_horizon_ms",
    "epoch",
)
"""Numbers that may be 0; the others must be greater."""
SLACKS = ("proportional", "even", "latest")
"""Ways of sharing out a query's time (`queries`)."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's settings. Durations are in milliseconds, as in the paper."""

    policy: str = "mainspring"
    """Name of the scheduling policy."""
    policy_options: dict[str, bool | int | float | str] = {}
    """The policy's own options; docs/policies.md lists those of each policy."""
    lookahead_ms: float | None = None
    """Work that each executor is given in advance; the policy's own default if it is not set (Clockwork,
    appendix B: 5 ms)."""
    dispatch_delay_ms: float = 0.5
    """Time from a decision until the action and small inputs are at the worker; nothing can begin earlier.
    The scheduler measures what larger inputs need beyond it."""
    response_margin_ms: float = 3.0
    """Taken off each deadline for the way back: outputs to the gateway, and what varies on it. Less of it
    accepts shorter deadlines, and more answers come late: on one host 1 served no more in time
    (docs/measurements.md)."""
    action_window_ms: float = 10.0
    """Time after the predicted beginning within which an INFER may begin, if its deadlines allow even
    more."""
    load_window_ms: float = 50.0
    """Time after the predicted beginning within which a LOAD may begin."""
    load_capacity_ms: float | None = None
    """Work that a device is taken to do before the deadlines of what is queued (``capacity`` in
    appendix B's load priority); if it is not set, for each model the SLO of its requests."""
    estimate_rank: int = RANK
    """Rank of the estimate among the last ten measured durations of an action, where they spread: 1 for the
    largest (Clockwork, section 5.3), 2 for the second largest. A higher rank serves more requests in time,
    and a few of them late."""
    pad_batches: bool | None = None
    """Run a larger batch with empty rows where that finishes sooner than two smaller batches; the policy's
    own default if it is not set."""
    idle_loads: bool | None = None
    """Let idle LOAD executors load models that requests asked for and that can't be loaded within the SLO;
    the policy's own default if it is not set. Models that only best-effort requests wait for are loaded in
    any case."""
    idle_load_protect_ms: float = 1000.0
    """An idle load does not evict a model that was used more recently than this."""
    equal_slack_ms: float = 1.0
    """Deadlines within the same slice of this length count as equal: there, priority decides. A request with
    a priority is due earlier for it by up to this."""
    refuse_wrongly: float | None = None
    """Waiting requests are refused once it is improbable that they are served in time. About this share of
    them would have been served, as a sample shows that is kept: more of them mean earlier refusals, and fewer
    answers. 0: a request is refused only once no device could serve it in time. The policy's own default if
    it is not set: 0.15 of mainspring, 0 of the others."""
    best_effort_share: float = 0.05
    """Part of EXEC's time that requests without a deadline get while any wait, if idle time gives them less;
    it costs the policy ``mainspring`` no more than this part of the others' goodput (docs/policy-results.md).
    0: idle time alone."""
    best_effort_horizon_ms: float = 600_000.0
    """A request without a deadline is refused on arrival, with when to come again, where those before it are
    expected to take longer than this; 0: none is."""
    query_slack: str = "proportional"
    """Share of each step in the time that a query of several steps has to spare: ``proportional`` to what the
    step takes, ``even``, or ``latest``: all that those behind it leave."""
    max_queued_requests: int = 100_000
    """Bound on queued requests in all; beyond it requests are rejected as overloaded."""
    max_queued_requests_per_model: int = 10_000
    """Bound on queued requests for each model."""
    max_queue_sizes: dict[str, int] = {}
    """The same of single models, by what clients call them; better said as ``max_queue_size`` in a table
    ``[models.NAME]`` of its own."""
    goodput_weights: dict[str, float] = {}
    """Weight of an answer of single models, in answers of others, by what clients call them; better said as
    ``goodput_weight`` in a table ``[models.NAME]`` of its own. The policy ``mainspring`` goes by it."""
    own_workers: dict[str, tuple[int, int, str]] = {}
    """Number of workers of single models' own, their largest batch (0: any) and their kind (empty: any), by
    model; better said as ``workers`` in a table ``[models.NAME]`` of its own."""
    tenant_weights: dict[str, float] = {}
    """Weight of each tenant's share of the devices' time while requests are being dropped, 1 for those that
    are not named; better said as ``NAME = WEIGHT`` in the table ``[tenants]``."""
    max_attempts: int = 5
    """Number of actions that may fail on a request before it is given up. Actions that could not begin in
    time do not count: a deadline bounds them, and a request without one waits for as long as it takes."""
    prepares_in_flight: int = 2
    """PREPARE actions outstanding at once on each worker."""
    open_patience_ms: float = 1000.0
    """Time for which an OPEN waits for a gap of EXEC in which no request like those of the last second
    would have come too late; after it, any gap will do in which no accepted request is kept waiting for
    too long."""
    open_within_ms: float = 10_000.0
    """Time for which an OPEN waits for such a gap before it is sent in any case."""
    action_timeout_ms: float = 2000.0
    """A worker that owes a LOAD's, UNLOAD's or INFER's result for longer than this is dropped."""
    prepare_timeout_ms: float = 600_000.0
    """A worker that owes a PREPARE's, OPEN's or RELEASE's result for longer than this is dropped."""
    epoch: int = 0
    """Epoch of the controller (`controller.lease`), which the ids of its actions hold."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a number that no scheduler could work with."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field} is {value}; it must be a number that is finite")
            if value < 0 or (value == 0 and field not in MAY_BE_ZERO):
                least = "at least 0" if field in MAY_BE_ZERO else "greater than 0"
                raise ValueError(f"{field} is {value}; it must be {least}")
            if field.endswith("_ms") and 0 < value < LEAST_MS:
                raise ValueError(f"{field} is {value}; it must be at least {LEAST_MS:g}")
            if value > MOST:
                raise ValueError(f"{field} is {value}; it must be at most {MOST:,.0f}")
        for name in ("refuse_wrongly", "best_effort_share"):
            if (value := getattr(self, name)) is not None and value >= 1:
                raise ValueError(f"{name} is {value}; it must be less than 1")
        if self.query_slack not in SLACKS:
            raise ValueError(f"query_slack is {self.query_slack!r}; it must be {', '.join(SLACKS)}")
        for name, size in self.max_queue_sizes.items():
            if size < 1:
                raise ValueError(f"the max_queue_size of {name!r} is {size}; it must be at least 1")
        for name, weight in self.goodput_weights.items():
            if fault := weight_fault(weight):
                raise ValueError(f"{name!r}: {fault}")
        for name, weight in self.tenant_weights.items():
            if weight_fault(weight):
                raise ValueError(f"{name!r} of tenant_weights is {weight}; {_WEIGHTS}")
        if self.estimate_rank > HIGHEST_RANK:
            raise ValueError(f"estimate_rank is {self.estimate_rank}; it must be 1 to {HIGHEST_RANK}")


def take_tenants(tables: dict[str, Any], source: str) -> None:
    """Move the weights of a table ``[tenants]``, if ``source`` has one, to where the configuration has them.

    Raises `ConfigError` if it is none.
    """
    if TENANTS not in tables:
        return
    weights = _weights(tables.pop(TENANTS), source)
    if isinstance(scheduler := tables.setdefault("scheduler", {}), dict):
        scheduler["tenant_weights"] = weights


def _weights(table: object, source: str) -> dict[str, float]:
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: tenants is a table: write [tenants] on a line of its own")
    for name, weight in table.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or weight_fault(weight):
            raise ConfigError(f"{source}, [tenants]: {name} is {weight!r}; {_WEIGHTS}")
    return {name: float(weight) for name, weight in table.items()}


def completed(
    config: SchedulerConfig,
    lookahead_ms: float = LOOKAHEAD_MS,
    pad_batches: bool = True,
    idle_loads: bool = True,
    refuse_wrongly: float = 0.0,
) -> SchedulerConfig:
    """Return the configuration with the policy's defaults in the fields that it leaves to the policy."""
    return msgspec.structs.replace(
        config,
        lookahead_ms=lookahead_ms if config.lookahead_ms is None else config.lookahead_ms,
        pad_batches=pad_batches if config.pad_batches is None else config.pad_batches,
        idle_loads=idle_loads if config.idle_loads is None else config.idle_loads,
        refuse_wrongly=refuse_wrongly if config.refuse_wrongly is None else config.refuse_wrongly,
    )


def milliseconds(value: float) -> int:
    """Return a duration given in milliseconds as nanoseconds."""
    return round(value * 1_000_000)
