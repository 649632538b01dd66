"""Triton's settings of tracing and logging, as far as this server has what they set. Pure.

Traces go to the OpenTelemetry collector of ``[gateway] trace_address``. Clients decide for all models or for
one of them whether its requests are traced, one of how many, and how many more; a setting that a model has
not is that of all models, and one that these have not is the configuration's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.oip.datatypes import Unfit, Unserved
from mainspring.gateway.oip.json_data import whole
from mainspring.messages.codes import Reason

OFF, TIMESTAMPS = "OFF", "TIMESTAMPS"
_LEVELS = (OFF, TIMESTAMPS, "TENSORS")
_MOST = (1 << 31) - 1
_MOST_MODELS = 10_000
"""Most models that may have settings of their own."""
_FIXED: Mapping[str, tuple[str, str]] = {
    "log_frequency": ("0", "traces are sent as they come, not written to files"),
    "trace_file": ("", "traces are sent to trace_address of [gateway], not written to files"),
    "trace_mode": ("opentelemetry", "traces are OpenTelemetry's"),
}
"""Values of the settings that can't be changed, and why."""
_NAMES = ("trace_level", "trace_rate", "trace_count", *_FIXED)


class _Own(msgspec.Struct):
    """Settings that were made; None for the others."""

    level: str | None = None
    rate: int | None = None
    left: int | None = None
    """Number of requests that are yet to be traced; -1: no bound."""


class TraceSettings:
    """Trace settings of one gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        self._served = bool(config.trace_address)
        self._ratio = config.trace_sample_ratio
        self._all = _Own()
        self._models: dict[str, _Own] = {}

    def shown(self, model: str | None = None) -> dict[str, str | list[str]]:
        """Return the settings of a model, or of those that have none of their own."""
        rate = self._value("rate", model)
        return {
            "trace_level": [self._level(model)],
            "trace_rate": str(round(1 / self._ratio) if rate is None else rate),
            "trace_count": str(-1 if (left := self._value("left", model)) is None else left),
            **{name: value for name, (value, _) in _FIXED.items()},
        }

    def change(self, model: str | None, wanted: Mapping[str, Any]) -> None:
        """Set what is ``wanted`` of a model, or of all that have no setting of their own.

        Null, or an empty list, takes a setting back. Raises `Unfit` or `Unserved`, and then nothing is set.
        """
        changes: dict[str, Any] = {}
        for name, value in wanted.items():
            if name not in _NAMES:
                raise _wrong(f"there is no trace setting {name[:100]!r}; there are {', '.join(_NAMES)}")
            changes |= self._change(name, _listed(name, value))
        own = self._all if model is None else self._models.get(model, _Own())
        for field, value in changes.items():
            setattr(own, field, value)
        if model is not None:
            self._keep(model, own)

    def takes(self, model: str, sampled: bool | None, draw: float) -> bool:
        """Say whether to trace a request; ``sampled`` is what its client says, None if it does not.

        ``draw`` is a number from 0 up to 1.
        """
        if self._level(model) == OFF or self._value("left", model) == 0:
            return False
        if sampled is not None:
            return sampled
        rate = self._value("rate", model)
        return draw < (self._ratio if rate is None else 1 / rate)

    def took(self, model: str) -> None:
        """Count a request that is traced."""
        own = self._models.get(model)
        counted = self._all if own is None or own.left is None else own
        if counted.left is not None and counted.left > 0:
            counted.left -= 1

    def _level(self, model: str | None) -> str:
        level: str | None = self._value("level", model)
        return level or (TIMESTAMPS if self._served else OFF)

    def _value(self, field: str, model: str | None) -> Any:
        own = None if model is None else self._models.get(model)
        value = None if own is None else getattr(own, field)
        return getattr(self._all, field) if value is None else value

    def _change(self, name: str, values: list[str]) -> dict[str, Any]:
        """Return what a setting changes."""
        match name:
            case "trace_level":
                return {"level": self._wanted_level(values) if values else None}
            case "trace_rate":
                return {"rate": _number(name, values, 1) if values else None}
            case "trace_count":
                return {"left": _number(name, values, -1) if values else None}
        value, why = _FIXED[name]
        if values and values != [value]:
            raise Unserved(f"the trace setting {name} is always {value!r}: {why}")
        return {}

    def _wanted_level(self, values: list[str]) -> str:
        unknown = [value for value in values if value not in _LEVELS]
        if unknown:
            raise _wrong(f"there is no trace_level {unknown[0][:100]!r}; it is {OFF} or {TIMESTAMPS}")
        if "TENSORS" in values:
            raise Unserved("tensors are not written to traces; the trace_level is OFF or TIMESTAMPS")
        if TIMESTAMPS in values and not self._served:
            raise Unserved(
                "traces have nowhere to go: set trace_address in the table [gateway] to the address of an "
                "OpenTelemetry collector, and trace_level decides which requests it hears of"
            )
        return TIMESTAMPS if TIMESTAMPS in values else OFF

    def _keep(self, model: str, own: _Own) -> None:
        if own == _Own():
            self._models.pop(model, None)
        elif model not in self._models and len(self._models) >= _MOST_MODELS:
            raise Unfit(
                Reason.OVERLOADED,
                f"{_MOST_MODELS:,} models have trace settings of their own; take some back with null",
            )
        else:
            self._models[model] = own


def _listed(name: str, value: Any) -> list[str]:
    """Return a setting's values as text, as JSON or gRPC has them."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    values = [whole(each) for each in given]
    if not all(isinstance(each, str) or type(each) is int for each in values):
        raise _wrong(f"the trace setting {name} is a text, or a list of texts")
    return [str(each) for each in values]


def _number(name: str, values: list[str], least: int) -> int:
    text = values[0] if len(values) == 1 else ""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) <= _MOST:
        return int(text)
    raise _wrong(f"{name} is {', '.join(values)[:100]!r}; it is a whole number from {least} to {_MOST}")


_LEVEL_OF: Mapping[str, int] = {"log_info": 20, "log_warning": 30, "log_error": 40}
_VERBOSE, _NOTHING = 10, 50
"""The other levels that logging has: debug, and critical for a log of nothing."""
_LOG_FIXED = {
    "log_file": ("", "the log goes to standard error, where what started the gateway keeps it"),
    "log_format": ("default", "the lines' form is --log-format's at the start"),
}
_LOG_NAMES = ("log_file", *_LEVEL_OF, "log_verbose_level", "log_format")


def shown_log(level: int) -> dict[str, bool | int | str]:
    """Return what a process logs whose log has this level, one of `logging`'s."""
    return {
        "log_file": "",
        **{name: level <= each for name, each in _LEVEL_OF.items()},
        "log_verbose_level": int(level <= _VERBOSE),
        "log_format": "default",
    }


def changed_level(level: int, wanted: Mapping[str, Any]) -> int:
    """Return the level to log from on as ``wanted``; null leaves a setting as it is.

    Raises `Unfit` or `Unserved`.
    """
    settings = shown_log(level)
    for name, value in wanted.items():
        if name not in settings:
            raise _wrong(f"there is no log setting {name[:100]!r}; there are {', '.join(_LOG_NAMES)}")
        if value is not None:
            settings[name] = _log_setting(name, value)
    verbose = bool(settings["log_verbose_level"])
    on = {_VERBOSE: verbose, **{each: bool(settings[name]) for name, each in _LEVEL_OF.items()}}
    found = next((each for each in sorted(on) if on[each]), _NOTHING)
    gaps = [name for name, each in _LEVEL_OF.items() if each > found and not on[each]]
    if gaps:
        raise Unserved(
            f"{gaps[0]} can't be off while what is less severe is logged: the log has all from one level on"
        )
    return found


def _log_setting(name: str, value: Any) -> bool | int | str:
    if name in _LOG_FIXED:
        fixed, why = _LOG_FIXED[name]
        if value != fixed:
            raise Unserved(f"the log setting {name} is always {fixed!r}: {why}")
        return fixed
    if name in _LEVEL_OF:
        if not isinstance(value, bool):
            raise _wrong(f"the log setting {name} is {str(value)[:100]!r}; it is true or false")
        return value
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise _wrong(f"log_verbose_level is {str(value)[:100]!r}; it is a whole number from 0 to {_MOST}")
    return value


def _wrong(detail: str) -> Unfit:
    return Unfit(Reason.BAD_INPUT, detail)
