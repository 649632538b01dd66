"""How long a job takes on an emulated device: as long as its profile says. Pure."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import ModelSpec, Profile


class NoProfile(LookupError):
    """The model has no profile for this kind of device."""


def profile_of(model: ModelSpec, device_kind: str) -> Profile:
    """The model's profile on ``device_kind``; raise `NoProfile`, which names those that it has."""
    profile = model.profiles.get(device_kind)
    if profile is None:
        known = ", ".join(sorted(model.profiles)) or "none"
        raise NoProfile(f"model {model.name} has no profile for {device_kind!r}; it has: {known}")
    missing = [size for size in model.batch_sizes if size not in profile.infer_ns]
    if missing:
        raise NoProfile(f"model {model.name}: its profile for {device_kind!r} lacks batch sizes {missing}")
    return profile


def profiled_ns(action: Infer | Load, model: ModelSpec, device_kind: str) -> int:
    """Profiled duration of an INFER's EXEC or a LOAD's copy."""
    profile = profile_of(model, device_kind)
    return profile.load_ns if isinstance(action, Load) else profile.infer_ns[action.batch_size]
