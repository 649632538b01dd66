"""Estimates of how long actions take, as snapshots of the state and the controller's memory have them."""

from __future__ import annotations

import msgspec


class DurationState(msgspec.Struct, frozen=True, array_like=True):
    """An estimate with its samples (`cluster.estimates.Rolling`)."""

    samples: tuple[int, ...]
    estimate_ns: int
    since_ns: int
    review_ns: int
    doubts: int
    doubted: bool
    halfway_ns: int
    seed_ns: int = -1
    """Negative in logs of releases that did not keep it."""
    returns: int = 0
    aside: tuple[int, ...] = ()
    """The last durations, if they were outliers: the estimate does not follow one."""
    aside_ns: int = 0
    """Instant at which the last of them ended."""
    known: bool = True
    """True if anything was measured, by a profile or an action."""


class LoadRates(msgspec.Struct, frozen=True, tag="load_rates", omit_defaults=True):
    """The rates of each kind of device, by which new estimates begin."""

    ns_per_byte: dict[str, float]
    """Time that the last LOAD took for each byte, in nanoseconds, by kind of device."""
    openings: dict[str, DurationState] = {}
    """Durations of the last OPENs, of any executable, by kind of device."""


class InferEstimate(msgspec.Struct, frozen=True, tag="infer_estimate", omit_defaults=True):
    """The estimated durations of INFERs on one kind of device, for all models of an executable and its batch
    sizes."""

    device_kind: str
    executable: str
    batch_sizes: tuple[int, ...]
    durations: tuple[DurationState, ...]
    """One estimate for each batch size."""
    transfers: dict[int, DurationState]
    """Time for which inputs keep the way to the worker busy, by the index of the batch size, where it was
    ever measured to be more than nothing."""
    opening: DurationState | None = None
    """Durations of the executable's OPENs; None if none was ever measured."""
    spreads: tuple[dict[int, int], ...] = ()
    """Number of durations in each part of an octave, for each batch size (`cluster.estimates.Spreads`)."""
    measured: int = 0
    """Number of durations that entered them."""
    erratic: bool = False
    """True if its models are erratic: their durations are far from even."""


class LoadEstimate(msgspec.Struct, frozen=True, tag="load_estimate"):
    """The estimated duration of LOADs on one kind of device, for all models of as many bytes."""

    device_kind: str
    weights_bytes: int
    duration: DurationState


EstimateState = LoadRates | InferEstimate | LoadEstimate


def subject_of(state: EstimateState) -> tuple[object, ...]:
    """Return what an estimate is about, which a later one of the same replaces."""
    match state:
        case LoadRates():
            return ("rates",)
        case InferEstimate():
            return "infer", state.device_kind, state.executable, state.batch_sizes
        case LoadEstimate():
            return "load", state.device_kind, state.weights_bytes


def steady(state: EstimateState, known: EstimateState | None) -> bool:
    """Return whether an estimate is near enough to one that is kept for that to stay."""
    match state, known:
        case InferEstimate(), InferEstimate():
            both = zip(state.durations, known.durations, strict=False)
            return all(_near(now.estimate_ns, then.estimate_ns) for now, then in both)
        case LoadEstimate(), LoadEstimate():
            return _near(state.duration.estimate_ns, known.duration.estimate_ns)
        case LoadRates(), LoadRates():
            return state.ns_per_byte.keys() == known.ns_per_byte.keys() and all(
                _near(rate, known.ns_per_byte[kind]) for kind, rate in state.ns_per_byte.items()
            )
    return False


APART = 0.05
"""Share of an estimate by which another one must differ to be kept in its place."""


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= APART * max(one, other)
